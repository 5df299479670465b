"""What is written down of a run, step by step and at its end."""

import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

import densekd
from densekd.data.scenario import Task
from densekd.learn.evaluate import Evaluation
from densekd.learn.learner import Learned, Learner
from densekd.metrics import (
    Matrix,
    StepMetrics,
    accuracy_matrix,
    average_incremental_accuracy,
    forgetting,
    step_metrics,
)

_PACKAGES = ("torch", "numpy", "lightning-fabric", "safetensors")


@dataclass(frozen=True)
class StepRecord:
    """What is known after a task was learned and tested.

    Accuracies are shares from 0 to 1 of test images, with the best of all classes seen by the
    method's own predictor; see `densekd.metrics.StepMetrics`. ``head_accuracy`` and
    ``nme_accuracy`` are those of all seen classes by the classifier and by the nearest mean of
    exemplars; ``notes`` are what the method's terms recorded.
    """

    number: int
    classes: tuple[str, ...]
    classes_seen: int
    accuracy: float
    base_accuracy: float
    old_accuracy: float
    new_accuracy: float
    task_accuracies: tuple[float, ...]
    head_accuracy: float
    nme_accuracy: float | None
    seconds: float
    images_per_second: float
    notes: dict[str, float]

    @classmethod
    def of(
        cls, task: Task, evaluation: Evaluation, learner: Learner, learned: Learned
    ) -> "StepRecord":
        """The record of a task that ``learner`` has just learned."""
        nearest = evaluation.nearest_mean
        return cls(
            task.number,
            task.classes,
            **asdict(step_metrics(evaluation.by(learner.method.predicts), learner.sizes)),
            head_accuracy=_accuracy(evaluation.head),
            nme_accuracy=None if nearest is None else _accuracy(nearest),
            seconds=learned.seconds,
            images_per_second=learned.images / max(learned.seconds, 1e-9),
            notes=dict(learned.notes),
        )

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> "StepRecord":
        """The record that became ``facts`` in JSON, which has no NaN and no tuples."""
        known: dict[str, Any] = {k: math.nan if v is None else v for k, v in facts.items()}
        tasks = tuple(math.nan if value is None else value for value in facts["task_accuracies"])
        known |= {"nme_accuracy": facts["nme_accuracy"], "task_accuracies": tasks}
        return cls(**{**known, "classes": tuple(facts["classes"])})

    @property
    def metrics(self) -> StepMetrics:
        """Its accuracies alone."""
        return StepMetrics(**{name: getattr(self, name) for name in _METRICS})


_METRICS = tuple(StepMetrics.__dataclass_fields__)


def result_of(records: Sequence[StepRecord], last: Matrix) -> dict[str, Any]:
    """What a run reached, for ``result.json``; ``last`` is its last confusion matrix."""
    steps = [record.metrics for record in records]
    nearest = [record.nme_accuracy for record in records if record.nme_accuracy is not None]
    complete = len(nearest) == len(records)
    return {
        "average_incremental_accuracy": average_incremental_accuracy(steps),
        "average_incremental_accuracy_nme": float(np.mean(nearest)) if complete else None,
        "forgetting": forgetting(steps),
        "steps": [asdict(record) for record in records],
        "accuracy_matrix": accuracy_matrix(steps).tolist(),
        "confusion_matrix": last.tolist(),
    }


def versions() -> dict[str, str]:
    """What a run was computed with."""
    ours = {"densekd": densekd.__version__, "python": platform.python_version()}
    return {**ours, **{package: version(package) for package in _PACKAGES}}


def _accuracy(confusion: Matrix) -> float:
    return float(np.trace(confusion) / confusion.sum())
