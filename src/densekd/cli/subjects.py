"""What a display is about, in words: a run, or a compression."""

from collections.abc import Sequence
from typing import Protocol

from densekd.cli import show
from densekd.cli.estimate import Stretch, stretches
from densekd.data.memory import Quota
from densekd.data.scenario import Task
from densekd.experiment.compression import CompressionConfig
from densekd.experiment.config import Config
from densekd.experiment.record import StepRecord


class Subject(Protocol):
    """What is said of something that is trained task by task."""

    def headline(self, tasks: Sequence[Task]) -> str:
        """What it is."""

    def stretches(self, tasks: Sequence[Task]) -> list[Stretch]:
        """What it goes through."""

    def done(self, done: int, total: int) -> str:
        """What was done before; empty if that goes without saying."""

    def task(self, number: int, total: int) -> str:
        """A task, people counting from one."""

    def shared(self, waiting: bool) -> str:
        """That the first task was trained by somebody else, or just is."""

    def outcome(self, record: StepRecord, classes: Sequence[str]) -> str:
        """How well a task was learned."""


class RunSubject:
    """A run of several tasks."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.method = config.method.make(config.course())

    def headline(self, tasks: Sequence[Task]) -> str:
        """The method, the data, the network and how the classes come."""
        config = self.config
        return (
            f"{self.method.name} on {show.safe(config.data.source)} with {config.network}, "
            f"seed {config.seed}: {_sizes([len(task.classes) for task in tasks])}."
        )

    def stretches(self, tasks: Sequence[Task]) -> list[Stretch]:
        """All phases of all tasks."""
        memory = self.config.memory
        return stretches(self.method, tasks, Quota(memory.per_class, memory.total))

    def done(self, done: int, total: int) -> str:
        """The number of tasks."""
        return f"{done} of the {total} tasks are done already." if done else ""

    def task(self, number: int, total: int) -> str:
        """Its number, and that of the last."""
        return f"task {number + 1}/{total}"

    def shared(self, waiting: bool) -> str:
        """Where the base task comes from."""
        if waiting:
            return "Another process is training the same base task; this one waits for it."
        return "The base task was trained before, and is taken from there."

    def outcome(self, record: StepRecord, classes: Sequence[str]) -> str:
        """Accuracies and time."""
        accuracy = f"accuracy {show.percent(record.accuracy)} %"
        if record.number:
            old, new = show.percent(record.old_accuracy), show.percent(record.new_accuracy)
            accuracy += f" (old {old}, new {new})"
        took = show.duration(record.seconds)
        return f"task {record.number + 1} learned {show.names(classes)}: {accuracy}, {took}"


class CompressionSubject:
    """A teacher and its student."""

    def __init__(self, config: CompressionConfig) -> None:
        self.config = config

    def headline(self, tasks: Sequence[Task]) -> str:
        """The method, the data and the networks."""
        config, teacher = self.config, f" from {self.config.teacher}"
        return (
            f"{config.student} learns {show.number(len(tasks[0].classes))} classes of "
            f"{show.safe(config.data.source)}{teacher if self._taught else ''} "
            f"by {config.method if self._taught else 'labels alone'}, seed {config.seed}."
        )

    def stretches(self, tasks: Sequence[Task]) -> list[Stretch]:
        """All epochs of teacher and student."""
        both = zip((self.config.make_teacher(), self.config.make()), tasks, strict=True)
        return [each for method, task in both for each in stretches(method, [task], Quota(0))]

    def done(self, done: int, total: int) -> str:
        """Whether the teacher was given."""
        given = self._taught and self.config.teacher_file is not None
        return (
            f"The teacher is that of {show.safe(self.config.teacher_file or '')}." if given else ""
        )

    def task(self, number: int, total: int) -> str:
        """Whose it is."""
        return ("teacher", "student")[number]

    def shared(self, waiting: bool) -> str:
        """Where the teacher comes from."""
        if waiting:
            return "Another process is training the same teacher; this one waits for it."
        return "The teacher was trained before, and is taken from there."

    def outcome(self, record: StepRecord, classes: Sequence[str]) -> str:
        """The accuracy and the time."""
        name = (self.config.teacher, self.config.student)[record.number]
        accuracy, took = show.percent(record.accuracy), show.duration(record.seconds)
        return f"{self.task(record.number, 2)} {name}: accuracy {accuracy} %, {took}"

    @property
    def _taught(self) -> bool:
        return self.config.method != "alone"


def subject_of(config: Config | CompressionConfig) -> Subject:
    """What is said of what a configuration stands for."""
    if isinstance(config, Config):
        return RunSubject(config)
    return CompressionSubject(config)


def _sizes(sizes: Sequence[int]) -> str:
    """How a scenario's classes come."""
    classes, tasks = f"{show.number(sum(sizes))} classes", f"{len(sizes)} tasks"
    if len(sizes) == 1:
        return f"{classes} in one task"
    if len(set(sizes)) == 1:
        return f"{classes} in {tasks} of {sizes[0]}"
    return f"{classes} in {tasks}, {sizes[0]} first and then {sizes[1]} at a time"
