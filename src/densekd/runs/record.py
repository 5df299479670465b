"""What is written down of a run, step by step and at its end."""

import functools
import math
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import densekd
from densekd.data.scenario import Task
from densekd.metrics import (
    Matrix,
    StepMetrics,
    accuracy_matrix,
    average_incremental_accuracy,
    forgetting,
    step_metrics,
)
from densekd.training.evaluate import Evaluation
from densekd.training.learner import Learned, Learner

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


@functools.cache
def commit() -> str | None:
    """The commit of the source, with a ``+`` if it was changed since; None if it is installed.

    Asked once, for what runs is what was there when the process began.
    """
    source = Path(__file__)
    # Tracked: an environment may lie in a checkout that is none of ours.
    if _git(source.parent, "ls-files", "--error-unmatch", source.name) is None:
        return None
    head = _git(source.parent, "rev-parse", "HEAD")
    package = str(Path(densekd.__file__).parent)
    changed = _git(source.parent, "diff", "--quiet", "HEAD", "--", package) is None
    return head and head + ("+" if changed else "")


def machine(device: torch.device) -> dict[str, Any]:
    """What a run was computed on; None is what can't be told.

    Returns:
        ``processor`` and ``accelerator`` by name, ``cores`` and ``memory``, in bytes, of all.
    """
    cuda = device.type == "cuda"
    other = None if device.type == "cpu" else device.type
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory": _memory(),
        "accelerator": torch.cuda.get_device_name(device) if cuda else other,
    }


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None if it fails, or isn't there."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.processor() or platform.machine())


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not every system has these
        return None


def _accuracy(confusion: Matrix) -> float:
    return float(np.trace(confusion) / confusion.sum())
