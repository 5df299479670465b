"""What is reported of a run: arrays in, floats out.

Everything follows from the confusion matrix after each step, over the test images of all classes
seen so far. Accuracies are over images, so tasks of different sizes count by their images.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Matrix = NDArray[np.int64]


def confusion_matrix(predicted: ArrayLike, labels: ArrayLike, classes: int) -> Matrix:
    """Count images by true class (row) and predicted class (column).

    Args:
        predicted: ``[n]``, predicted classes.
        labels: ``[n]``, true classes.
        classes: how many classes were seen.

    Returns:
        int ``[classes, classes]``.
    """
    guesses, truths = np.asarray(predicted), np.asarray(labels)
    if guesses.shape != truths.shape or guesses.ndim != 1:
        raise ValueError(
            f"Predictions of shape {list(guesses.shape)} for labels of shape {list(truths.shape)}."
        )
    for name, values in (("prediction", guesses), ("label", truths)):
        wrong = values[(values < 0) | (values >= classes)]
        if len(wrong):
            raise ValueError(f"The {name} {wrong[0]} is not one of the {classes} classes seen.")
    counts: Matrix = np.bincount(truths * classes + guesses, minlength=classes**2)
    return counts.reshape(classes, classes)


@dataclass(frozen=True)
class StepMetrics:
    """The accuracies after one step, each with the argmax over all seen classes.

    Args:
        classes_seen: how many classes were learned so far.
        accuracy: over the test images of all of them.
        base_accuracy: over those of the base task.
        old_accuracy: over those of all tasks but the last; NaN after the base task.
        new_accuracy: over those of the last task.
        task_accuracies: over those of each task.
    """

    classes_seen: int
    accuracy: float
    base_accuracy: float
    old_accuracy: float
    new_accuracy: float
    task_accuracies: tuple[float, ...]


def step_metrics(confusion: Matrix, task_sizes: Sequence[int]) -> StepMetrics:
    """The accuracies after a step, from its confusion matrix and the sizes of its tasks."""
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
    """The mean accuracy over the models after each step, the base included."""
    return float(np.mean([step.accuracy for step in steps]))


def accuracy_matrix(steps: Sequence[StepMetrics]) -> NDArray[np.float64]:
    """Row s, column i: the accuracy on task i after step s; NaN before it was learned."""
    matrix = np.full((len(steps), len(steps)), np.nan)
    for number, step in enumerate(steps):
        matrix[number, : number + 1] = step.task_accuracies
    return matrix


def forgetting(steps: Sequence[StepMetrics]) -> float:
    """How far old tasks fell from their best, on average over them; NaN if there are none.

    ``mean_{i < T} (max_{s < T} A[s, i] - A[T, i])``
    """
    matrix = accuracy_matrix(steps)
    best = np.fmax.reduce(matrix[:-1, :-1], axis=0, initial=-np.inf)
    falls = best - matrix[-1, :-1]
    known = falls[np.isfinite(falls)]  # a task without test images has no accuracy
    return float(known.mean()) if len(known) else float("nan")
