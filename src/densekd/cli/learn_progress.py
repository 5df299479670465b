"""What is seen of a model while it is taught, on stderr."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from densekd.cli import output
from densekd.cli.progress import Silent, Spoken
from densekd.cli.run_progress import Bar
from densekd.cli.signals import Interrupts
from densekd.jobs.estimate import Estimate, PhaseWork
from densekd.model.request import Plan
from densekd.model.teach import TeachObserver
from densekd.training.callbacks import TrainingProgress


@contextmanager
def watching(interrupts: Interrupts, *, quiet: bool) -> Iterator[TeachObserver]:
    """An observer that fits where stderr goes; warnings are shown by the way."""
    console = output.console(stderr=True)
    with output.warnings(console):
        if quiet:
            yield LearnQuiet(interrupts)
        elif console.is_terminal:
            with Bar(console) as bar:
                yield LearnScreen(bar, interrupts)
        else:
            yield LearnLines(console, interrupts)


class LearnQuiet(Silent, TeachObserver):
    """Says nothing, but stops when it should."""


class LearnLines(Spoken, TeachObserver):
    """What will be done, and now and then how far it is, as suits a file."""

    def __init__(self, console: Console, interrupts: Interrupts) -> None:
        super().__init__(console, interrupts)
        self.estimate = Estimate([])
        self.pace = output.Pace()

    def reading(self, done: int, total: int) -> None:
        """Say how many images were read."""
        if self.pace.due():
            self.say(f"Reading images: {output.share(done, total)}")

    def planned(self, plan: Plan) -> None:
        """Say what will be learned."""
        images = sum(plan.learned.values()) + sum(plan.replayed.values())
        self.estimate = Estimate(
            [PhaseWork(plan.task, name, epochs * images) for name, epochs in plan.phases]
        )
        self.say(outline(plan))
        if plan.resumed:
            self.say("It goes on where it was left.")

    def report(self, report: TrainingProgress) -> None:
        """Say how far training is."""
        place = self.place(report)
        if self.pace.due():
            self.say(f"Learning: {place}, {_speed(report)}")

    def repeated(self, step: int) -> None:
        """Say that there is nothing to do."""
        self.say(f"These images were learned before, in step {step}; here is what came of it.")

    def place(self, report: TrainingProgress) -> str:
        """The epoch, and the time that is left."""
        left = self.estimate.left(report)
        epoch = f"epoch {report.epoch + 1}/{report.epochs}"
        if report.phase != "train":
            epoch = f"{report.phase}, {epoch}"
        return epoch if left is None else f"{epoch}, {output.duration(left.run)} left"


class LearnScreen(LearnLines):
    """A bar for what is going on, below what stays."""

    def __init__(self, bar: Bar, interrupts: Interrupts) -> None:
        super().__init__(bar.console, interrupts)
        self.bar = bar

    def reading(self, done: int, total: int) -> None:
        """Show how many images were read."""
        self.bar.draw("Reading images", done, total, output.share(done, total))

    def doing(self, what: str) -> None:
        """Show what is going on."""
        self.bar.draw(what.capitalize())
        self.bar.details = ""

    def report(self, report: TrainingProgress) -> None:
        """Show how far training is."""
        done = report.epoch * report.batches + report.batch
        self.bar.draw("Learning", done, report.epochs * report.batches, self.place(report))
        if self.interrupts.received is None:
            self.bar.details = _speed(report)

    def stopping(self) -> None:
        """Acknowledge a signal where the bar will show it when it is next drawn."""
        self.bar.details = self.farewell


def _speed(report: TrainingProgress) -> str:
    return f"{output.number(report.images_per_second)} images/s"


def outline(plan: Plan) -> str:
    """What an update will do, in a sentence."""
    images = output.number(sum(plan.learned.values()))
    noun = "class" if len(plan.learned) == 1 else "classes"
    epochs = plan.phases[0][1]
    more = ""
    if plan.replayed:
        more = f" and {output.number(sum(plan.replayed.values()))} more of known classes"
    return (
        f"Step {plan.step}: {len(plan.learned)} new {noun} ({output.names(list(plan.learned))}) "
        f"from {images} images{more}, at {plan.image_size} x {plan.image_size} pixels "
        f"by {plan.method} with {plan.network}, {epochs} {'epoch' if epochs == 1 else 'epochs'}."
    )
