"""The live display of an update of a model, on stderr."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from densekd.display import output
from densekd.display.interrupts import Interrupts, interruptible
from densekd.display.progress import Bar, Bars, Display, display_target
from densekd.jobs.estimate import CountEstimate, Estimate, PhaseWork
from densekd.model.request import Plan, TeachObserver
from densekd.training.callbacks import TrainingProgress


@contextmanager
def learn_display(*, quiet: bool) -> Iterator[TeachObserver]:
    """A bar on a terminal, lines elsewhere, nothing if quiet; Ctrl-C stops the update."""
    with interruptible() as interrupts, display_target(quiet, Bar) as target:
        yield LearnDisplay(target, interrupts)


class LearnDisplay(Display, TeachObserver):
    """Says what will be learned, and shows the current activity."""

    def __init__(self, target: Console | Bars, interrupts: Interrupts) -> None:
        super().__init__(target, interrupts)
        self.estimate = Estimate([])
        self.reading_estimate = CountEstimate()

    def reading(self, done: int, total: int) -> None:
        """Show how many images were read, and the time left."""
        left, amount = self.reading_estimate.left(done, total), output.share(done, total)
        if left is not None:
            amount += f", {output.duration(left)} left"
        self.draw("Reading images", done, total, amount)
        self.say_sometimes(f"Reading images: {amount}")

    def planned(self, plan: Plan) -> None:
        """Say what will be learned."""
        images = sum(plan.learned.values()) + sum(plan.replayed.values())
        self.estimate = Estimate(
            [PhaseWork(plan.task, name, epochs * images) for name, epochs in plan.phases]
        )
        self.say(plan_sentence(plan))
        if plan.resumed:
            self.say("Resuming where it stopped.")

    def doing(self, what: str) -> None:
        """Show another activity."""
        self.draw(what.capitalize())
        self.describe("")

    def report(self, report: TrainingProgress) -> None:
        """Show how far training is."""
        epoch, speed = self.epoch(report), f"{output.number(report.images_per_second)} images/s"
        self.say_sometimes(f"Learning: {epoch}, {speed}")
        done = report.epoch * report.batches + report.batch
        self.draw("Learning", done, report.epochs * report.batches, epoch)
        self.describe(speed)

    def repeated(self, step: int) -> None:
        """Say that there is nothing to do."""
        self.say(f"These images were already learned in step {step}; showing its result.")

    def finetuned_before(self) -> None:
        """Say that there is nothing to do."""
        self.say("The model was already fine-tuned like this; showing the result.")

    def epoch(self, report: TrainingProgress) -> str:
        """The current epoch, and the time left."""
        left = self.estimate.left(report)
        epoch = f"epoch {report.epoch + 1}/{report.epochs}"
        if report.phase != "train":
            epoch = f"{report.phase}, {epoch}"
        return epoch if left is None else f"{epoch}, {output.duration(left.run)} left"


def plan_sentence(plan: Plan) -> str:
    """What an update will do."""
    if plan.phases and not plan.learned:
        images = output.count(sum(plan.replayed.values()), "kept image")
        epochs = output.count(plan.phases[0][1], "epoch")
        return f"Step {plan.step}: fine-tune {plan.network} on {images}, at most {epochs}."
    parts = []
    if plan.learned:
        parts.append(
            f"{output.count(len(plan.learned), 'new class', 'new classes')} "
            f"({output.name_list(list(plan.learned))}) from "
            f"{output.count(sum(plan.learned.values()), 'image')}"
        )
    if plan.replayed:
        more = output.count(sum(plan.replayed.values()), "more image")
        parts.append(f"{more} of {output.name_list(list(plan.replayed))}")
    size, epochs = f"{plan.image_size} x {plan.image_size} pixels", ""
    if plan.phases:
        epochs = f", {output.count(plan.phases[0][1], 'epoch')}"
    return (
        f"Step {plan.step}: learn {' and '.join(parts)}, at {size} "
        f"by {plan.method} with {plan.network}{epochs}."
    )
