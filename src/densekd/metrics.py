"""Accuracies and forgetting of a run: arrays in, floats out.

All of them are computed from the confusion matrix after each step, over the test images of all
classes learned so far. Accuracies are means over images, so a larger task counts more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class StepMetrics:
    """The accuracies after one step, predicting among all classes seen; NaN without images."""

    classes_seen: int
    accuracy: float  # on all tasks
    base_accuracy: float  # on the base task
    old_accuracy: float  # on all tasks but the last; NaN after the base task
    new_accuracy: float  # on the last task
    task_accuracies: tuple[float, ...]  # on each task


def step_metrics(confusion: Matrix, task_sizes: Sequence[int]) -> StepMetrics:
    """Compute the accuracies after a step from its confusion matrix and its tasks' sizes."""
    ends = np.cumsum(task_sizes).tolist()
    if confusion.shape != (ends[-1], ends[-1]):
        raise ValueError(
            f"A confusion matrix of shape {list(confusion.shape)} for {ends[-1]} classes."
        )

    def accuracy(start: int, end: int) -> float:
        images = confusion[start:end].sum()
        return float(np.diagonal(confusion)[start:end].sum() / images) if images else float("nan")

    starts = [0, *ends[:-1]]
    return StepMetrics(
        classes_seen=ends[-1],
        accuracy=accuracy(0, ends[-1]),
        base_accuracy=accuracy(0, ends[0]),
        old_accuracy=accuracy(0, starts[-1]),
        new_accuracy=accuracy(starts[-1], ends[-1]),
        task_accuracies=tuple(accuracy(*span) for span in zip(starts, ends, strict=True)),
    )


def average_incremental_accuracy(steps: Sequence[StepMetrics]) -> float:
    """The mean of the accuracies after each step, including the base task."""
    return float(np.mean([step.accuracy for step in steps]))


def accuracy_matrix(steps: Sequence[StepMetrics]) -> NDArray[np.float64]:
    """Accuracy on task i (column) after step s (row); NaN before the task is learned."""
    matrix = np.full((len(steps), len(steps)), np.nan)
    for number, step in enumerate(steps):
        matrix[number, : number + 1] = step.task_accuracies
    return matrix


def forgetting(steps: Sequence[StepMetrics]) -> float:
    """The mean drop of the old tasks from their best accuracy; NaN if there are none.

    ``mean_{i < T} (max_{s < T} A[s, i] - A[T, i])``
    """
    matrix = accuracy_matrix(steps)
    best = np.fmax.reduce(matrix[:-1, :-1], axis=0, initial=-np.inf)
    drops = best - matrix[-1, :-1]
    known = drops[np.isfinite(drops)]  # a task without test images has no accuracy
    return float(known.mean()) if len(known) else float("nan")
