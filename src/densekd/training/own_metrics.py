"""Custom metrics: functions of the outputs for all test images after each step."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from densekd.data.scenario import Scenario
from densekd.parts import OwnPartError, display_name, explain_errors, find, short_name


@dataclass(frozen=True)
class StepOutputs:
    """What a metric gets after a step: the outputs for the test images of all classes seen.

    A label is the rank of its class in learning order, an index into ``classes`` and into the
    columns of ``logits``.

    Example:
        >>> import torch
        >>> from densekd import StepOutputs
        >>> def confidence(outputs: StepOutputs) -> float:
        ...     return outputs.logits.softmax(1).amax(1).mean().item()
        >>> logits, labels = torch.zeros(3, 2), torch.tensor([0, 1, 1])
        >>> confidence(StepOutputs(logits, labels, labels, logits, (2,), ("a", "b"), 0))
        0.5
    """

    logits: Tensor  # float32 [n, classes]
    labels: Tensor  # int64 [n]
    predictions: Tensor  # int64 [n], by the method's own predictor
    features: Tensor  # float32 [n, D]
    sizes: tuple[int, ...]  # the number of classes of each task seen
    classes: tuple[str, ...]  # their names
    step: int  # 0 after the base task


# Returns a number, or numbers by name.
Metric = Callable[[StepOutputs], object]


def find_metrics(references: Sequence[str]) -> dict[str, Metric]:
    """The functions that settings name, by reference."""
    found: dict[str, Metric] = {}
    for name in references:
        metric: Any = find(name)
        if not callable(metric):
            part = display_name(name, "metric")
            raise OwnPartError(f"{part} must be a function of the outputs, not {metric!r}.")
        found[name] = metric
    return found


def measure(metrics: Mapping[str, Metric], outputs: StepOutputs) -> dict[str, float]:
    """The numbers of all metrics for the outputs after a step, by name.

    Raises:
        OwnPartError: a metric raises, or returns what is not a finite number.
    """
    numbers: dict[str, float] = {}
    for name, metric in metrics.items():
        found = _call(name, metric, outputs)
        for key, number in found.items():
            if not math.isfinite(number):
                part = display_name(name, "metric")
                raise OwnPartError(
                    f"{part} returned {number} after task {outputs.step + 1}; return a finite one."
                )
            if key in numbers:
                raise OwnPartError(f"Two metrics are called {key!r}; rename one of them.")
            numbers[key] = number
    return numbers


def try_metrics(metrics: Mapping[str, Metric], scenario: Scenario) -> None:
    """Call each metric with random outputs for the base task, to find mistakes before training."""
    if not metrics:
        return
    task = scenario[0]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(task.test), len(task.classes), generator=generator)
    features = torch.randn(len(task.test), 4, generator=generator)
    outputs = StepOutputs(
        logits,
        task.test.labels,
        logits.argmax(1),
        features,
        (len(task.classes),),
        task.classes,
        0,
    )
    for name, metric in metrics.items():
        _call(name, metric, outputs)


def _call(name: str, metric: Metric, outputs: StepOutputs) -> dict[str, float]:
    part = display_name(name, "metric")
    with explain_errors(part):
        value: Any = metric(outputs)
        named = value if isinstance(value, Mapping) else {short_name(name): value}
    numbers = {}
    for key, number in named.items():
        number = number.item() if getattr(number, "ndim", None) == 0 else number
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not isinstance(key, str) or not is_number:
            raise OwnPartError(
                f"{part} must return a number, or numbers by name, not {type(number).__name__}."
            )
        numbers[key] = float(number)
    return numbers
