"""What is seen of a run while it goes on, on stderr."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from densekd.cli import output
from densekd.cli.progress import Bars, Silent, Spoken
from densekd.cli.signals import Interrupts
from densekd.cli.wording import subject_of
from densekd.compression.config import CompressionConfig
from densekd.config.schema import Config
from densekd.data.scenario import Task
from densekd.jobs.estimate import Estimate, TimeLeft
from densekd.runs.observer import RunObserver
from densekd.runs.record import StepRecord
from densekd.training.callbacks import TrainingProgress

AnyConfig = Config | CompressionConfig


@contextmanager
def watching(config: AnyConfig, interrupts: Interrupts, *, quiet: bool) -> Iterator[RunObserver]:
    """An observer that fits where stderr goes; warnings are shown by the way."""
    console = output.console(stderr=True)
    with output.warnings(console):
        if quiet:
            yield RunQuiet(interrupts)
        elif console.is_terminal:
            with Bar(console) as bar:
                yield RunScreen(bar, config, interrupts)
        else:
            yield RunLines(console, config, interrupts)


class RunQuiet(Silent, RunObserver):
    """Says nothing, but stops when it should."""


class RunLines(Spoken, RunObserver):
    """A line for each task, and now and then one about how far it is, as suits a file."""

    def __init__(self, console: Console, config: AnyConfig, interrupts: Interrupts) -> None:
        super().__init__(console, interrupts)
        self.config, self.subject = config, subject_of(config)
        self.tasks: Sequence[Task] = ()
        self.estimate = Estimate([])
        self.pace = output.Pace()

    def loading(self, done: int, total: int) -> None:
        """Say how much of the data was read."""
        if self.pace.due():
            self.say(f"Reading {output.safe(self.config.data.source)}: {output.share(done, total)}")

    def started(self, folder: Path, tasks: Sequence[Task], done: int) -> None:
        """Say what will run, and what is left of it."""
        self.tasks = tasks
        self.estimate = Estimate(self.config.workload(tasks))
        self.say(self.subject.headline(tasks))
        self.say(f"The run is kept in {output.safe(folder)}.")
        if known := self.subject.done(done, len(tasks)):
            self.say(known)

    def training(self, number: int, classes: Sequence[str]) -> None:
        """Begin a task."""
        self.pace = output.Pace()

    def shared_base(self, waiting: bool) -> None:
        """Say where the base task comes from."""
        self.say(self.subject.shared(waiting))

    def report(self, report: TrainingProgress) -> None:
        """Say how far training is."""
        left = self.estimate.left(report)
        if self.pace.due():
            facts = [_epoch(report, left), *_facts(report), *_rest(left)]
            self.say(f"{self.label(report.task, report.phase)}: {', '.join(facts)}")

    def evaluated(self, record: StepRecord) -> None:
        """Say how well a task was learned."""
        self.say(self.subject.outcome(record, self.tasks[record.number].classes))

    @property
    def farewell(self) -> str:
        """What is said on a signal."""
        unit = "batch" if self.config.engine.devices == 1 else "epoch"
        return f"Stopping after this {unit}; Ctrl-C leaves at once."

    def label(self, number: int, doing: str) -> str:
        """What is going on, people counting from one."""
        return f"{self.subject.task(number, len(self.tasks))} · {doing}"


class Bar(Bars):
    """A bar for one thing at a time."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, width=32)
        # Unseen until there is something to show, which may be at the end of a short run.
        self.task = self.add_task("", total=None, visible=False, amount="")

    def draw(self, label: str, done: int = 0, total: int = 0, amount: str = "") -> None:
        """Show how far it is, or, with a total of 0, that something is going on."""
        # Set here, for `update` takes None for no change.
        self.tasks[0].total = total or None
        # What is newly going on is seen at once, however short it is; the rest now and then.
        new = label != self.tasks[0].description
        self.update(
            self.task, refresh=new, description=label, completed=done, visible=True, amount=amount
        )


class RunScreen(RunLines):
    """A bar for what is going on, below a line for each task that is done."""

    def __init__(self, bar: Bar, config: AnyConfig, interrupts: Interrupts) -> None:
        super().__init__(bar.console, config, interrupts)
        self.bar = bar

    def loading(self, done: int, total: int) -> None:
        """Show how much of the data was read."""
        label = f"Reading {output.safe(self.config.data.source)}"
        self.bar.draw(label, done, total, output.share(done, total))

    def training(self, number: int, classes: Sequence[str]) -> None:
        """Show which classes are learned next."""
        self.bar.draw(self.label(number, "preparing"))
        self.describe(number)

    def shared_base(self, waiting: bool) -> None:
        """Show what is waited for; where it came from stays as a line."""
        super().shared_base(waiting)
        if waiting:
            self.bar.draw(self.label(0, "waiting"))

    def report(self, report: TrainingProgress) -> None:
        """Show how far training is."""
        left = self.estimate.left(report)
        done = report.epoch * report.batches + report.batch
        total = report.epochs * report.batches
        if done == total:  # unless there is another phase, which will show soon
            self.bar.draw(self.label(report.task, "evaluating"))
            self.describe(report.task)
            return
        label = self.label(report.task, report.phase)
        self.bar.draw(label, done, total, _epoch(report, left))
        self.describe(report.task, _rest(left), _facts(report))

    def describe(self, number: int, beside: Sequence[str] = (), below: Sequence[str] = ()) -> None:
        """Show details under the bar, unless a signal was acknowledged there."""
        if self.interrupts.received is None:
            learning = f"learning {output.names(self.tasks[number].classes)}"
            lines = ((learning, *beside), below)
            self.bar.details = "\n".join(" · ".join(line) for line in lines if line)

    def stopping(self) -> None:
        """Acknowledge a signal where the bar will show it when it is next drawn."""
        self.bar.details = self.farewell


def _epoch(report: TrainingProgress, left: TimeLeft | None) -> str:
    """Where a phase is, and when it will be over."""
    epoch = f"epoch {report.epoch + 1}/{report.epochs}"
    return epoch if left is None else f"{epoch}, {output.duration(left.phase)} left"


def _rest(left: TimeLeft | None) -> list[str]:
    """When the run will be over."""
    return [] if left is None else [f"the run takes {output.duration(left.run)} more"]


def _facts(report: TrainingProgress) -> list[str]:
    """The other numbers of a report."""
    losses = ", ".join(f"{slot} {loss:.3f}" for slot, loss in report.losses.items())
    return [losses, f"lr {report.lr:.2g}", f"{output.number(report.images_per_second)} images/s"]
