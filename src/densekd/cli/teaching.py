"""What is seen of a model while it is taught, on stderr."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from densekd.cli import show
from densekd.cli.display import Bar
from densekd.cli.estimate import Estimate, Stretch
from densekd.cli.signals import Interrupts
from densekd.cli.voice import Silent, Spoken
from densekd.learn.watch import Report
from densekd.model.folder import Observer, Plan


@contextmanager
def watching(interrupts: Interrupts, *, quiet: bool) -> Iterator[Observer]:
    """An observer that fits where stderr goes; warnings are shown by the way."""
    console = show.console(stderr=True)
    with show.warnings(console):
        if quiet:
            yield Quiet(interrupts)
        elif console.is_terminal:
            with Bar(console) as bar:
                yield Screen(bar, interrupts)
        else:
            yield Lines(console, interrupts)


class Quiet(Silent, Observer):
    """Says nothing, but stops when it should."""


class Lines(Spoken, Observer):
    """What will be done, and now and then how far it is, as suits a file."""

    def __init__(self, console: Console, interrupts: Interrupts) -> None:
        super().__init__(console, interrupts)
        self.estimate = Estimate([])
        self.pace = show.Pace()

    def reading(self, done: int, total: int) -> None:
        """Say how many images were read."""
        if self.pace.due():
            self.say(f"Reading images: {show.share(done, total)}")

    def planned(self, plan: Plan) -> None:
        """Say what will be learned."""
        images = sum(plan.learned.values()) + sum(plan.replayed.values())
        self.estimate = Estimate(
            [Stretch(plan.task, name, epochs * images) for name, epochs in plan.phases]
        )
        self.say(outline(plan))
        if plan.resumed:
            self.say("It goes on where it was left.")

    def report(self, report: Report) -> None:
        """Say how far training is."""
        place = self.place(report)
        if self.pace.due():
            self.say(f"Learning: {place}, {_speed(report)}")

    def repeated(self, step: int) -> None:
        """Say that there is nothing to do."""
        self.say(f"These images were learned before, in step {step}; here is what came of it.")

    def place(self, report: Report) -> str:
        """The epoch, and the time that is left."""
        left = self.estimate.left(report)
        epoch = f"epoch {report.epoch + 1}/{report.epochs}"
        if report.phase != "train":
            epoch = f"{report.phase}, {epoch}"
        return epoch if left is None else f"{epoch}, {show.duration(left.run)} left"


class Screen(Lines):
    """A bar for what is going on, below what stays."""

    def __init__(self, bar: Bar, interrupts: Interrupts) -> None:
        super().__init__(bar.console, interrupts)
        self.bar = bar

    def reading(self, done: int, total: int) -> None:
        """Show how many images were read."""
        self.bar.draw("Reading images", done, total, show.share(done, total))

    def doing(self, what: str) -> None:
        """Show what is going on."""
        self.bar.draw(what.capitalize())
        self.bar.details = ""

    def report(self, report: Report) -> None:
        """Show how far training is."""
        done = report.epoch * report.batches + report.batch
        self.bar.draw("Learning", done, report.epochs * report.batches, self.place(report))
        if self.interrupts.received is None:
            self.bar.details = _speed(report)

    def stopping(self) -> None:
        """Acknowledge a signal where the bar will show it when it is next drawn."""
        self.bar.details = self.farewell


def _speed(report: Report) -> str:
    return f"{show.number(report.images_per_second)} images/s"


def outline(plan: Plan) -> str:
    """What an update will do, in a sentence."""
    images = show.number(sum(plan.learned.values()))
    noun = "class" if len(plan.learned) == 1 else "classes"
    epochs = plan.phases[0][1]
    more = ""
    if plan.replayed:
        more = f" and {show.number(sum(plan.replayed.values()))} more of known classes"
    return (
        f"Step {plan.step}: {len(plan.learned)} new {noun} ({show.names(list(plan.learned))}) from "
        f"{images} images{more}, at {plan.image_size} x {plan.image_size} pixels by {plan.method} "
        f"with {plan.network}, {epochs} {'epoch' if epochs == 1 else 'epochs'}."
    )
