"""The live display of a run or a compression, on stderr."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from densekd.compression.config import CompressionConfig
from densekd.config.schema import Config
from densekd.data.dataset import image_shape
from densekd.data.scenario import Task
from densekd.display import output
from densekd.display.interrupts import Interrupts, first_process, interruptible
from densekd.display.progress import Bar, Bars, Display, display_target
from densekd.jobs.estimate import Estimate
from densekd.runs.observer import RunObserver
from densekd.runs.record import StepRecord
from densekd.training.callbacks import TrainingProgress

_AnyConfig = Config | CompressionConfig


@contextmanager
def run_display(config: _AnyConfig, *, quiet: bool) -> Iterator[RunObserver]:
    """Show the progress of a run, and stop it on Ctrl-C.

    Of several processes that share a run, only the first shows it.
    """
    quiet = quiet or not first_process()
    with interruptible() as interrupts, display_target(quiet, Bar) as target:
        display = RunDisplay(target, config, interrupts)
        yield display
        if not quiet and not display.tasks:  # it never started
            display.say("Already finished; showing the stored result.")


class RunDisplay(Display, RunObserver):
    """Prints a line for each task, and shows the current activity."""

    def __init__(self, target: Console | Bars, config: _AnyConfig, interrupts: Interrupts) -> None:
        super().__init__(target, interrupts)
        self.config = config
        self.wording = (
            _RunWording(config) if isinstance(config, Config) else _CompressionWording(config)
        )
        self.tasks: Sequence[Task] = ()
        self.estimate = Estimate([])

    def loading(self, done: int, total: int) -> None:
        """Show how much of the data was read."""
        label, amount = f"Reading {output.safe(self.config.data.source)}", output.share(done, total)
        self.draw(label, done, total, amount)
        self.say_sometimes(f"{label}: {amount}")

    def started(self, folder: Path, tasks: Sequence[Task], done: int) -> None:
        """Say what will run, and what was done before."""
        self.tasks = tasks
        self.estimate = Estimate(self.config.workload(tasks))
        self.say(self.wording.headline(tasks))
        self.say(f"Run folder: {output.safe(folder)}")
        if before := self.wording.done(done, len(tasks)):
            self.say(before)

    def training(self, number: int, classes: Sequence[str]) -> None:
        """Show which classes come next, and start to count the time until the next line."""
        self.pace = output.Pace()
        self.draw(self.label(number, "preparing"))
        self.describe_task(number)

    def shared_base(self, waiting: bool) -> None:
        """Say that another run has trained the base task or teacher, or is training it now."""
        base, kind = self.wording.base, self.wording.kind
        if waiting:
            self.say(f"Waiting for another process that is training the same {base}.")
            self.draw(self.label(0, "waiting"))
        else:
            self.say(f"Reusing the {base} of an earlier {kind}.")

    def report(self, report: TrainingProgress) -> None:
        """Show how far training is."""
        label, facts = self.label(report.task, report.phase), _facts(report)
        epoch, in_the_run = f"epoch {report.epoch + 1}/{report.epochs}", []
        if (left := self.estimate.left(report)) is not None:
            epoch += f", {output.duration(left.phase)} left"
            in_the_run = [f"{output.duration(left.run)} left in the run"]
        self.say_sometimes(f"{label}: {', '.join([epoch, *facts, *in_the_run])}")
        done = report.epoch * report.batches + report.batch
        total = report.epochs * report.batches
        if done == total:  # if another phase follows, its first report replaces this
            self.draw(self.label(report.task, "evaluating"))
            self.describe_task(report.task)
        else:
            self.draw(label, done, total, epoch)
            self.describe_task(report.task, in_the_run, facts)

    def resumed_within(self, task: int, epoch: int) -> None:
        """Say that a task goes on from a checkpoint within it."""
        self.say(f"Resumed {self.wording.task(task, len(self.tasks))} after epoch {epoch}.")

    def evaluated(self, record: StepRecord) -> None:
        """Say how well a task was learned."""
        self.say(self.wording.outcome(record))

    @property
    def stopping_note(self) -> str:
        """The message shown after a signal; several processes stop only at the end of an epoch."""
        note = super().stopping_note
        return note if self.config.engine.ranks == 1 else note.replace("batch", "epoch")

    def label(self, number: int, activity: str) -> str:
        """The current task and activity."""
        return f"{self.wording.task(number, len(self.tasks))} · {activity}"

    def describe_task(
        self, number: int, beside: Sequence[str] = (), below: Sequence[str] = ()
    ) -> None:
        """Show the classes of a task and other details under the bar."""
        learning = f"learning {output.name_list(self.tasks[number].classes)}"
        lines = ((learning, *beside), below)
        self.describe("\n".join(" · ".join(line) for line in lines if line))


def _facts(report: TrainingProgress) -> list[str]:
    losses = ", ".join(f"{slot} {loss:.3f}" for slot, loss in report.losses.items())
    return [losses, f"lr {report.lr:.2g}", f"{output.number(report.images_per_second)} images/s"]


class _RunWording:
    """Sentences about a run of several tasks."""

    kind, base = "run", "base task"

    def __init__(self, config: Config) -> None:
        self.config = config

    def headline(self, tasks: Sequence[Task]) -> str:
        config = self.config
        images = f"{output.safe(config.data.source)}{_pixels(config, tasks)}"
        return (
            f"{config.method.name} on {images} with {config.network}, "
            f"seed {config.seed}: {_sizes([len(task.classes) for task in tasks])}."
        )

    def done(self, done: int, total: int) -> str:
        start = self.config.start
        if start is not None and done == start.after:
            return f"Goes on from {output.safe(start.run)} after task {done} of {total}."
        return f"Resumed after task {done} of {total}." if done else ""

    def task(self, number: int, total: int) -> str:
        return f"task {number + 1}/{total}"

    def outcome(self, record: StepRecord) -> str:
        accuracy = f"accuracy {output.percent(record.accuracy)} %"
        if record.number:
            old, new = output.percent(record.old_accuracy), output.percent(record.new_accuracy)
            accuracy += f" (old {old}, new {new})"
        if record.validation is not None:
            accuracy += f", validation {output.percent(record.validation.accuracy)} %"
        classes, took = output.name_list(record.classes), output.duration(record.seconds)
        return f"task {record.number + 1} learned {classes}: {accuracy}, {took}"


class _CompressionWording:
    """Sentences about a teacher and its student."""

    kind, base = "compression", "teacher"

    def __init__(self, config: CompressionConfig) -> None:
        self.config = config
        self._has_teacher = config.method != "alone"

    def headline(self, tasks: Sequence[Task]) -> str:
        config = self.config
        how = (
            f"from {config.teacher} by {config.method}" if self._has_teacher else "by labels alone"
        )
        classes = output.number(len(tasks[0].classes))
        source = output.safe(config.data.source)
        return f"{config.student} learns {classes} classes of {source} {how}, seed {config.seed}."

    def done(self, done: int, total: int) -> str:
        file = self.config.teacher_file
        return f"Teacher from {output.safe(file)}." if file and self._has_teacher else ""

    def task(self, number: int, total: int) -> str:
        return ("teacher", "student")[number]

    def outcome(self, record: StepRecord) -> str:
        name = (self.config.teacher, self.config.student)[record.number]
        accuracy, took = output.percent(record.accuracy), output.duration(record.seconds)
        return f"{self.task(record.number, 2)} {name}: accuracy {accuracy} %, {took}"


def _pixels(config: Config, tasks: Sequence[Task]) -> str:
    """The size that image files are brought to, in words; empty for data that has a fixed size."""
    if config.data.source.partition(":")[0] in ("digits", "cifar10", "cifar100", "npz"):
        return ""
    height, width = image_shape(tasks[0].train.images)
    return f" at {height} x {width} pixels"


def _sizes(sizes: Sequence[int]) -> str:
    classes, tasks = f"{output.number(sum(sizes))} classes", f"{len(sizes)} tasks"
    if len(sizes) == 1:
        return f"{classes} in one task"
    if len(set(sizes)) == 1:
        return f"{classes} in {tasks} of {sizes[0]}"
    return f"{classes} in {tasks}, {sizes[0]} first and then {sizes[1]} at a time"
