"""The live display of a run or a compression, on stderr."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from densekd.cli import output
from densekd.cli.progress import Bar, Bars, Display, display_target
from densekd.cli.signals import Interrupts, resumable
from densekd.cli.wording import wording_for
from densekd.compression.config import CompressionConfig
from densekd.config.schema import Config
from densekd.data.scenario import Task
from densekd.jobs.estimate import Estimate, TimeLeft
from densekd.runs.observer import RunObserver
from densekd.runs.record import StepRecord
from densekd.training.callbacks import TrainingProgress

_AnyConfig = Config | CompressionConfig


def run_with_display(
    config: _AnyConfig, folder: Path, quiet: bool, work: Callable[[RunObserver], dict[str, Any]]
) -> dict[str, Any]:
    """Do the work while showing its progress. If it is interrupted, say how to resume, and exit."""
    if not quiet and (folder / "result.json").exists():
        typer.echo("Already finished; showing the stored result.", err=True)
    with resumable() as interrupts, _run_display(config, interrupts, quiet) as observer:
        return work(observer)


@contextmanager
def _run_display(config: _AnyConfig, interrupts: Interrupts, quiet: bool) -> Iterator[RunObserver]:
    with display_target(quiet, Bar) as target:
        if isinstance(target, Bar):
            yield RunScreen(target, config, interrupts)
        else:
            yield RunLines(target, config, interrupts)


class RunLines(Display, RunObserver):
    """Prints a line for each task, and every few seconds one about progress."""

    def __init__(self, target: Console | Bars, config: _AnyConfig, interrupts: Interrupts) -> None:
        super().__init__(target, interrupts)
        self.config, self.wording = config, wording_for(config)
        self.tasks: Sequence[Task] = ()
        self.estimate = Estimate([])

    def loading(self, done: int, total: int) -> None:
        """Say how much of the data was read."""
        if self.pace.due():
            self.say(f"{self.reading}: {output.share(done, total)}")

    @property
    def reading(self) -> str:
        """The label while data are read."""
        return f"Reading {output.safe(self.config.data.source)}"

    def started(self, folder: Path, tasks: Sequence[Task], done: int) -> None:
        """Say what will run, and what was done before."""
        self.tasks = tasks
        self.estimate = Estimate(self.config.workload(tasks))
        self.say(self.wording.headline(tasks))
        self.say(f"Run folder: {output.safe(folder)}")
        if before := self.wording.done(done, len(tasks)):
            self.say(before)

    def training(self, number: int, classes: Sequence[str]) -> None:
        """Start to count the time until the next line."""
        self.pace = output.Pace()

    def shared_base(self, waiting: bool) -> None:
        """Say where the base task comes from."""
        self.say(self.wording.shared(waiting))

    def report(self, report: TrainingProgress) -> None:
        """Say how far training is."""
        left = self.estimate.left(report)
        if self.pace.due():
            facts = [_epoch(report, left), *_facts(report), *_run_left(left)]
            self.say(f"{self.label(report.task, report.phase)}: {', '.join(facts)}")

    def evaluated(self, record: StepRecord) -> None:
        """Say how well a task was learned."""
        self.say(self.wording.outcome(record, self.tasks[record.number].classes))

    @property
    def stopping_note(self) -> str:
        """The answer to a signal: with several processes, they agree to stop once an epoch."""
        note = super().stopping_note
        return note if self.config.engine.devices == 1 else note.replace("batch", "epoch")

    def label(self, number: int, activity: str) -> str:
        """The current task and activity."""
        return f"{self.wording.task(number, len(self.tasks))} · {activity}"


class RunScreen(RunLines):
    """Shows a bar for the current activity, below a line for each finished task."""

    def __init__(self, bar: Bar, config: _AnyConfig, interrupts: Interrupts) -> None:
        super().__init__(bar, config, interrupts)
        self.bar = bar

    def loading(self, done: int, total: int) -> None:
        """Show how much of the data was read."""
        self.bar.draw(self.reading, done, total, output.share(done, total))

    def training(self, number: int, classes: Sequence[str]) -> None:
        """Show which classes come next."""
        self.bar.draw(self.label(number, "preparing"))
        self.describe_task(number)

    def shared_base(self, waiting: bool) -> None:
        """Say where the base task comes from, and show that it is being waited for."""
        super().shared_base(waiting)
        if waiting:
            self.bar.draw(self.label(0, "waiting"))

    def report(self, report: TrainingProgress) -> None:
        """Show how far training is."""
        left = self.estimate.left(report)
        done = report.epoch * report.batches + report.batch
        total = report.epochs * report.batches
        if done == total:  # if another phase follows, its first report replaces this
            self.bar.draw(self.label(report.task, "evaluating"))
            self.describe_task(report.task)
            return
        self.bar.draw(self.label(report.task, report.phase), done, total, _epoch(report, left))
        self.describe_task(report.task, _run_left(left), _facts(report))

    def describe_task(
        self, number: int, beside: Sequence[str] = (), below: Sequence[str] = ()
    ) -> None:
        """Show the classes of a task and other details under the bar."""
        learning = f"learning {output.name_list(self.tasks[number].classes)}"
        lines = ((learning, *beside), below)
        self.describe("\n".join(" · ".join(line) for line in lines if line))


def _epoch(report: TrainingProgress, left: TimeLeft | None) -> str:
    epoch = f"epoch {report.epoch + 1}/{report.epochs}"
    return epoch if left is None else f"{epoch}, {output.duration(left.phase)} left"


def _run_left(left: TimeLeft | None) -> list[str]:
    return [] if left is None else [f"{output.duration(left.run)} left in the run"]


def _facts(report: TrainingProgress) -> list[str]:
    losses = ", ".join(f"{slot} {loss:.3f}" for slot, loss in report.losses.items())
    return [losses, f"lr {report.lr:.2g}", f"{output.number(report.images_per_second)} images/s"]
