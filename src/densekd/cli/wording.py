"""What a display is about, in words: a run, or a compression."""

from collections.abc import Sequence
from typing import Protocol

from densekd.cli import output
from densekd.compression.config import CompressionConfig
from densekd.config.schema import Config
from densekd.data.scenario import Task
from densekd.runs.record import StepRecord


class Subject(Protocol):
    """What is said of something that is trained task by task."""

    def headline(self, tasks: Sequence[Task]) -> str:
        """What it is."""

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
        self.method = config.method.make(config.schedules())

    def headline(self, tasks: Sequence[Task]) -> str:
        """The method, the data, the network and how the classes come."""
        config = self.config
        return (
            f"{self.method.name} on {output.safe(config.data.source)} with {config.network}, "
            f"seed {config.seed}: {_sizes([len(task.classes) for task in tasks])}."
        )

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
        accuracy = f"accuracy {output.percent(record.accuracy)} %"
        if record.number:
            old, new = output.percent(record.old_accuracy), output.percent(record.new_accuracy)
            accuracy += f" (old {old}, new {new})"
        took = output.duration(record.seconds)
        return f"task {record.number + 1} learned {output.names(classes)}: {accuracy}, {took}"


class CompressionSubject:
    """A teacher and its student."""

    def __init__(self, config: CompressionConfig) -> None:
        self.config = config

    def headline(self, tasks: Sequence[Task]) -> str:
        """The method, the data and the networks."""
        config, teacher = self.config, f" from {self.config.teacher}"
        return (
            f"{config.student} learns {output.number(len(tasks[0].classes))} classes of "
            f"{output.safe(config.data.source)}{teacher if self._taught else ''} "
            f"by {config.method if self._taught else 'labels alone'}, seed {config.seed}."
        )

    def done(self, done: int, total: int) -> str:
        """Whether the teacher was given."""
        given = self._taught and self.config.teacher_file is not None
        return (
            f"The teacher is that of {output.safe(self.config.teacher_file or '')}."
            if given
            else ""
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
        accuracy, took = output.percent(record.accuracy), output.duration(record.seconds)
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
    classes, tasks = f"{output.number(sum(sizes))} classes", f"{len(sizes)} tasks"
    if len(sizes) == 1:
        return f"{classes} in one task"
    if len(set(sizes)) == 1:
        return f"{classes} in {tasks} of {sizes[0]}"
    return f"{classes} in {tasks}, {sizes[0]} first and then {sizes[1]} at a time"
