"""The record of a run: accuracies after each task, with settings, versions and machine."""

import functools
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import densekd
from densekd import metrics
from densekd.allocator import physical_memory
from densekd.data.scenario import Task
from densekd.files import write_sealed_json
from densekd.runs.stored import RESULT_FILE, load_result
from densekd.training.engine import Engine
from densekd.training.evaluate import Evaluation
from densekd.training.learner import Learned, Learner

_PACKAGES = ("torch", "numpy", "lightning-fabric", "safetensors")


@dataclass(frozen=True, kw_only=True)
class StepRecord(metrics.StepMetrics):
    """The results after a task.

    Accuracies go from 0 to 1; the inherited ones are measured with the method's own predictor.
    ``head_accuracy`` and ``nme_accuracy`` are on all classes seen, predicted by the classifier and
    by the nearest mean of exemplars. ``notes`` are numbers that the method's loss terms recorded.
    ``forward_transfer`` is the transfer to this task, NaN for the base task.
    """

    number: int
    classes: tuple[str, ...]
    head_accuracy: float
    nme_accuracy: float | None
    seconds: float
    images_per_second: float
    notes: dict[str, float]
    validation: metrics.StepMetrics | None = None  # on validation images, if there are any
    metrics: dict[str, float] = field(default_factory=dict)  # custom metrics
    forward_transfer: float = math.nan

    @classmethod
    def of(
        cls,
        task: Task,
        evaluation: Evaluation,
        learner: Learner,
        learned: Learned,
        validation: Evaluation | None = None,
    ) -> "StepRecord":
        """Make the record of a task that ``learner`` has just learned."""

        def measure(evaluated: Evaluation) -> metrics.StepMetrics:
            confusion = evaluated.by(learner.method.predicts)
            return metrics.step_metrics(confusion, learner.sizes, evaluated.within_task)

        nearest = evaluation.nearest_mean
        return cls(
            number=task.number,
            classes=task.classes,
            **asdict(measure(evaluation)),
            head_accuracy=metrics.accuracy(evaluation.head),
            nme_accuracy=None if nearest is None else metrics.accuracy(nearest),
            seconds=learned.seconds,
            images_per_second=learned.images / max(learned.seconds, 1e-9),
            notes=dict(learned.notes),
            validation=None if validation is None else measure(validation),
        )

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> "StepRecord":
        """Restore a record from JSON, which has null for NaN and lists for tuples.

        Entries that only other versions have are left out.
        """
        known = _numbers(cls, facts)
        known["nme_accuracy"] = facts["nme_accuracy"]
        kind, held = metrics.StepMetrics, facts.get("validation")
        known["validation"] = None if held is None else kind(**_numbers(kind, held))
        return cls(**known)


def _numbers(kind: type[metrics.StepMetrics], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The known fields of a record, from JSON."""
    return {each.name: _from_json(facts[each.name]) for each in fields(kind) if each.name in facts}


def result_of(records: Sequence[StepRecord], last: metrics.Matrix) -> dict[str, Any]:
    """Summarise a run for ``result.json``; ``last`` is its last confusion matrix."""
    nearest = [record.nme_accuracy for record in records if record.nme_accuracy is not None]
    complete = len(nearest) == len(records)
    held = [record.validation for record in records if record.validation is not None]
    transfers = [record.forward_transfer for record in records[1:]]
    return {
        **_totals(records),
        "average_incremental_accuracy_nme": float(np.mean(nearest)) if complete else None,
        "forward_transfer": float(np.mean(transfers)) if transfers else None,
        "validation": _totals(held) if held else None,
        "steps": [asdict(record) for record in records],
        "accuracy_matrix": metrics.accuracy_matrix(records).tolist(),
        "confusion_matrix": last.tolist(),
    }


def _totals(steps: Sequence[metrics.StepMetrics]) -> dict[str, float]:
    """The numbers of a whole run, on test or on validation images."""
    average = functools.partial(metrics.average_incremental_accuracy, steps)
    return {
        "average_incremental_accuracy": average(),
        "average_mean_task_accuracy": average("mean_task_accuracy"),
        "average_mean_class_accuracy": average("mean_class_accuracy"),
        "average_task_incremental_accuracy": average("task_incremental_accuracy"),
        "last_accuracy": steps[-1].accuracy,
        "learning_accuracy": metrics.learning_accuracy(steps),
        "forgetting": metrics.forgetting(steps),
        "backward_transfer": metrics.backward_transfer(steps),
    }


def store_result(
    folder: Path, reached: Mapping[str, Any], settings: Mapping[str, Any], engine: Engine
) -> dict[str, Any]:
    """Write ``result.json``: the numbers reached, with settings, versions and machine.

    Returns it as it will be read from the file, with None for NaN.
    """
    result = {
        **reached,
        "config": settings,
        "precision": engine.precision,
        "engine": engine.describe(),
        "versions": versions(),
        "commit": commit(),
        "machine": machine(engine.device),
        "folder": str(folder),
    }
    if engine.first:
        write_sealed_json(folder / RESULT_FILE, result)
    engine.broadcast(True)  # other ranks wait until the file is there
    return load_result(folder)


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that results depend on."""
    ours = {"densekd": densekd.__version__, "python": platform.python_version()}
    return {**ours, **{package: version(package) for package in _PACKAGES}}


@functools.cache
def commit() -> str | None:
    """The commit of the source, with ``+`` if the source was edited; None outside of a checkout.

    Cached, because a process runs the code that it imported, not what is edited later.
    """
    # An installed package can lie inside the checkout of another project, which doesn't track it.
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    head = _git("rev-parse", "HEAD")
    changed = _git("diff", "--quiet", "HEAD", "--", ".") is None
    return head and head + ("+" if changed else "")


def machine(device: torch.device) -> dict[str, Any]:
    """Describe the machine: processor, cores, memory in bytes, accelerator; None if unknown."""
    cuda = device.type == "cuda"
    other = None if device.type == "cpu" else device.type
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory": physical_memory(),
        "accelerator": torch.cuda.get_device_name(device) if cuda else other,
    }


def _git(*arguments: str) -> str | None:
    """The output of git in the package's folder; None if it fails or isn't installed."""
    command = ["git", "-C", str(Path(densekd.__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
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


def _from_json(value: Any) -> Any:
    """Read null as NaN, and a list as a tuple."""
    if isinstance(value, list):
        return tuple(map(_from_json, value))
    return math.nan if value is None else value
