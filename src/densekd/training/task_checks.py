"""Whether tasks can be learned, checked before anything is trained."""

from collections.abc import Sequence

import torch

from densekd.data.memory import ExemplarMemory
from densekd.data.scenario import Task
from densekd.methods.method import Method
from densekd.training.checkpoint import most_bytes


def check_tasks(tasks: Sequence[Task], method: Method, memory: ExemplarMemory) -> None:
    """Refuse the next tasks of a learner unless they can be learned.

    Raises:
        ValueError: a class has no images, a label is not of its task, the memory is another
            learner's, or the method keeps all images and they are too large for a checkpoint.
    """
    if tasks and memory.classes != tasks[0].first:
        raise ValueError(
            f"The memory has exemplars of {memory.classes} classes, but the learner learned "
            f"{tasks[0].first}; give each learner a memory of its own."
        )
    for task in tasks:
        _check_labels(task)
    if method.keeps != "everything":
        return
    old = [memory.exemplars()] if len(memory) else []
    needed = sum(x.images.state_bytes() for x in [*old, *(task.train for task in tasks)])
    if needed > most_bytes():
        raise ValueError(
            f"{method.name} saves all training images in each checkpoint, and their "
            f"{needed / 1e9:.3g} GB are more than half of this computer's memory; shrink them "
            "with `densekd data pack --shorter-side`, or take fewer of each class."
        )


def _check_labels(task: Task) -> None:
    """Refuse a task with labels of other classes, or without images of one of its classes."""
    labels, last = task.train.labels, task.first + len(task.classes) - 1
    wrong = labels[(labels < task.first) | (labels > last)]
    if len(wrong):
        raise ValueError(
            f"Task {task.number} has the label {int(wrong[0])}, but its {len(task.classes)} "
            f"classes have the labels {task.first} to {last}; correct the labels."
        )
    counts = torch.bincount(labels - task.first, minlength=len(task.classes))
    if not counts.all():
        empty = task.classes[int(counts.argmin())]
        raise ValueError(
            f"The class {empty!r} has no image to learn from; add some, or leave it out."
        )
