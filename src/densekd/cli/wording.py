"""The sentences in which a display speaks of a run, or of a compression."""

from collections.abc import Sequence

from densekd.cli import output
from densekd.compression.config import CompressionConfig
from densekd.config.schema import Config
from densekd.data.scenario import Task
from densekd.runs.record import StepRecord


class RunWording:
    """Sentences about a run of several tasks."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.method = config.method.make(config.schedules())

    def headline(self, tasks: Sequence[Task]) -> str:
        """The method, the data, the network and the sizes of the tasks."""
        config = self.config
        return (
            f"{self.method.name} on {output.safe(config.data.source)} with {config.network}, "
            f"seed {config.seed}: {_sizes([len(task.classes) for task in tasks])}."
        )

    def done(self, done: int, total: int) -> str:
        """How many tasks were learned before; empty if none."""
        return f"{done} of {total} tasks already done." if done else ""

    def task(self, number: int, total: int) -> str:
        """A task, counted from one."""
        return f"task {number + 1}/{total}"

    def shared(self, waiting: bool) -> str:
        """Where the base task comes from."""
        if waiting:
            return "Waiting for another process that is training the same base task."
        return "Reusing the base task of an earlier run."

    def outcome(self, record: StepRecord, classes: Sequence[str]) -> str:
        """The accuracies after a task, and the time."""
        accuracy = f"accuracy {output.percent(record.accuracy)} %"
        if record.number:
            old, new = output.percent(record.old_accuracy), output.percent(record.new_accuracy)
            accuracy += f" (old {old}, new {new})"
        took = output.duration(record.seconds)
        return f"task {record.number + 1} learned {output.name_list(classes)}: {accuracy}, {took}"


class CompressionWording:
    """Sentences about a teacher and its student."""

    def __init__(self, config: CompressionConfig) -> None:
        self.config = config
        self._has_teacher = config.method != "alone"

    def headline(self, tasks: Sequence[Task]) -> str:
        """The method, the data and the networks."""
        config = self.config
        how = (
            f"from {config.teacher} by {config.method}" if self._has_teacher else "by labels alone"
        )
        classes = output.number(len(tasks[0].classes))
        source = output.safe(config.data.source)
        return f"{config.student} learns {classes} classes of {source} {how}, seed {config.seed}."

    def done(self, done: int, total: int) -> str:
        """Where the teacher comes from; empty if it is trained here, or if there is none."""
        file = self.config.teacher_file
        return f"Teacher from {output.safe(file)}." if file and self._has_teacher else ""

    def task(self, number: int, total: int) -> str:
        """The network that is trained."""
        return ("teacher", "student")[number]

    def shared(self, waiting: bool) -> str:
        """Where the teacher comes from."""
        if waiting:
            return "Waiting for another process that is training the same teacher."
        return "Reusing the teacher of an earlier compression."

    def outcome(self, record: StepRecord, classes: Sequence[str]) -> str:
        """The accuracy and the time."""
        name = (self.config.teacher, self.config.student)[record.number]
        accuracy, took = output.percent(record.accuracy), output.duration(record.seconds)
        return f"{self.task(record.number, 2)} {name}: accuracy {accuracy} %, {took}"


def wording_for(config: Config | CompressionConfig) -> RunWording | CompressionWording:
    """The sentences that fit a configuration."""
    return RunWording(config) if isinstance(config, Config) else CompressionWording(config)


def _sizes(sizes: Sequence[int]) -> str:
    classes, tasks = f"{output.number(sum(sizes))} classes", f"{len(sizes)} tasks"
    if len(sizes) == 1:
        return f"{classes} in one task"
    if len(set(sizes)) == 1:
        return f"{classes} in {tasks} of {sizes[0]}"
    return f"{classes} in {tasks}, {sizes[0]} first and then {sizes[1]} at a time"
