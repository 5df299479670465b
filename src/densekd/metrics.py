"""Accuracies and forgetting of a run: arrays in, floats out.

All are computed from the confusion matrix after each step, over the test images of all classes
learned so far. Accuracies are means over images, so a larger task counts more. In those called
``mean_task`` or ``mean_class``, and in `learning_accuracy`, each task or class counts once.
docs/metrics.md has all definitions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

Matrix = NDArray[np.int64]


def confusion_matrix(predicted: ArrayLike, labels: ArrayLike, classes: int) -> Matrix:
    """Count images by true class (row) and predicted class (column): ``[classes, classes]``."""
    predictions, truths = np.asarray(predicted), np.asarray(labels)
    if predictions.shape != truths.shape or predictions.ndim != 1:
        shapes = list(predictions.shape), list(truths.shape)
        raise ValueError("Predictions of shape {} for labels of shape {}.".format(*shapes))
    for name, values in (("prediction", predictions), ("label", truths)):
        wrong = values[(values < 0) | (values >= classes)]
        if len(wrong):
            raise ValueError(f"The {name} {wrong[0]} is not one of the {classes} classes seen.")
    counts: Matrix = np.bincount(truths * classes + predictions, minlength=classes**2)
    return counts.reshape(classes, classes)


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """The accuracies after one step, predicting among all classes seen; NaN without images.

    Fields with a default are unknown (NaN or empty) in records of versions without them.
    """

    classes_seen: int
    accuracy: float  # on all tasks
    base_accuracy: float  # on the base task
    old_accuracy: float  # on all tasks but the last; NaN after the base task
    new_accuracy: float  # on the last task
    task_accuracies: tuple[float, ...]  # on each task
    class_accuracies: tuple[float, ...] = ()  # on each class
    mean_task_accuracy: float = math.nan  # the mean of the tasks' accuracies
    mean_class_accuracy: float = math.nan  # the mean of the classes' accuracies
    # When predicting only among the classes of the image's own task: on all tasks, and on each.
    task_incremental_accuracy: float = math.nan
    task_incremental_accuracies: tuple[float, ...] = ()


def step_metrics(
    confusion: Matrix, task_sizes: Sequence[int], within_task: Matrix | None = None
) -> StepMetrics:
    """Compute the accuracies after a step.

    Args:
        confusion: the confusion matrix of predictions among all classes seen.
        task_sizes: the number of classes of each task.
        within_task: the same, but predicting only among the classes of the image's own task.
    """
    ends = np.cumsum(task_sizes).tolist()
    for matrix in (confusion, within_task):
        if matrix is not None and matrix.shape != (ends[-1], ends[-1]):
            shape = list(matrix.shape)
            raise ValueError(f"A confusion matrix of shape {shape} for {ends[-1]} classes.")
    starts = [0, *ends[:-1]]
    tasks = list(zip(starts, ends, strict=True))
    by_task = [accuracy(confusion, *task) for task in tasks]
    by_class = [accuracy(confusion, label, label + 1) for label in range(ends[-1])]
    known = StepMetrics(
        classes_seen=ends[-1],
        accuracy=accuracy(confusion, 0, ends[-1]),
        base_accuracy=accuracy(confusion, 0, ends[0]),
        old_accuracy=accuracy(confusion, 0, starts[-1]),
        new_accuracy=accuracy(confusion, starts[-1], ends[-1]),
        task_accuracies=tuple(by_task),
        class_accuracies=tuple(by_class),
        mean_task_accuracy=_mean_of_known(by_task),
        mean_class_accuracy=_mean_of_known(by_class),
    )
    if within_task is None:
        return known
    return replace(
        known,
        task_incremental_accuracy=accuracy(within_task, 0, ends[-1]),
        task_incremental_accuracies=tuple(accuracy(within_task, *task) for task in tasks),
    )


def average_incremental_accuracy(steps: Sequence[StepMetrics], measure: str = "accuracy") -> float:
    """The mean of ``measure``, a field of `StepMetrics`, over all steps including the base task."""
    return float(np.mean([getattr(step, measure) for step in steps]))


def accuracy_matrix(steps: Sequence[StepMetrics]) -> NDArray[np.float64]:
    """Accuracy on task i (column) after step s (row); NaN before the task is learned."""
    matrix = np.full((len(steps), len(steps)), np.nan)
    for number, step in enumerate(steps):
        matrix[number, : number + 1] = step.task_accuracies
    return matrix


def forgetting(steps: Sequence[StepMetrics]) -> float:
    """The mean drop in accuracy of the old tasks from their best; NaN if there are none.

    ``mean_{i < T} (max_{s < T} A[s, i] - A[T, i])``
    """
    matrix = accuracy_matrix(steps)
    best = np.fmax.reduce(matrix[:-1, :-1], axis=0, initial=-np.inf)
    return _mean_of_known(best - matrix[-1, :-1])


def backward_transfer(steps: Sequence[StepMetrics]) -> float:
    """The mean change in accuracy of the old tasks since each was learned; NaN if there are none.

    ``mean_{i < T} (A[T, i] - A[i, i])``, as in GEM; negative if tasks were forgotten.
    """
    matrix = accuracy_matrix(steps)
    return _mean_of_known((matrix[-1] - np.diagonal(matrix))[:-1])


def learning_accuracy(steps: Sequence[StepMetrics]) -> float:
    """The mean accuracy on each task right after it was learned: ``mean_i A[i, i]``."""
    return _mean_of_known(np.diagonal(accuracy_matrix(steps)))


def accuracy(confusion: Matrix, start: int = 0, end: int | None = None) -> float:
    """The share of the images of classes ``start`` to ``end - 1`` that were predicted correctly."""
    images = confusion[start:end].sum()
    return float(np.diagonal(confusion)[start:end].sum() / images) if images else math.nan


def _mean_of_known(values: ArrayLike) -> float:
    """The mean without NaN and infinity: a task without test images has no accuracy."""
    given = np.asarray(values, np.float64)
    known = given[np.isfinite(given)]
    return float(known.mean()) if len(known) else math.nan
