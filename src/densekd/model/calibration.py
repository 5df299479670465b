"""Accuracy on held-out images, and the temperature that calibrates probabilities."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from densekd.model.minimise import golden_section
from densekd.model.store import Accuracy, ClassChange

# Of the log temperature. Only scores without any information, or perfect ones, reach the ends.
_RANGE = (math.log(0.01), math.log(100.0))
_BINS = 15


def fit_temperature(values: Tensor, labels: Tensor) -> float:
    """The temperature for which softmax(values / temperature) fits the labels best.

    Labels are smoothed as in Platt scaling, the more the fewer images there are, so that
    probabilities stay below 1 even if all predictions are right. ``values`` are scores
    ``[n, classes]`` of held-out images.
    """
    count, classes = values.shape
    if count == 0 or classes < 2:
        return 1.0
    values, smoothing = values.double(), classes / (classes - 1) / (count + 2)

    def loss(log_temperature: float) -> float:
        scaled = values / math.exp(log_temperature)
        return float(cross_entropy(scaled, labels, label_smoothing=min(smoothing, 1.0)))

    return math.exp(golden_section(loss, *_RANGE))


def calibrate(values: Tensor, labels: Tensor) -> dict[str, Any]:
    """Facts for a model's record: temperature, and calibration error without and with it."""
    temperature = fit_temperature(values, labels)
    before, after = (calibration_error((values / t).softmax(1), labels) for t in (1.0, temperature))
    return {
        "temperature": temperature,
        "calibration": {"error_before": before, "error": after},
    }


def calibration_error(probabilities: Tensor, labels: Tensor) -> float | None:
    """The expected calibration error in bins of equal width; None without images."""
    if len(labels) == 0:
        return None
    confidence, guess = probabilities.double().max(1)
    correct = (guess == labels).double()
    bins = (confidence * _BINS).long().clamp(max=_BINS - 1)
    gaps = torch.zeros(_BINS, dtype=torch.float64).index_add_(0, bins, correct - confidence)
    return float(gaps.abs().sum() / len(labels))


def split_accuracy(correct: Tensor, labels: Tensor, known: int) -> Accuracy:
    """Accuracy on new classes, old classes and all; the first ``known`` classes are old.

    ``correct`` is bool ``[n]``: whether each image was predicted right.
    """
    new = labels >= known
    return Accuracy(_mean(correct[new]), _mean(correct[~new]), _mean(correct))


def class_changes(
    names: Sequence[str], labels: Tensor, before: Tensor | None, after: Tensor, known: int
) -> tuple[ClassChange, ...]:
    """The accuracy of each class before and after an update; the first ``known`` classes are old.

    ``before`` and ``after`` are bool ``[n]``: whether each image was predicted right.
    """
    found = []
    for rank, name in enumerate(names):
        own = labels == rank
        earlier = None if before is None or rank >= known else _mean(before[own])
        found.append(ClassChange(name, int(own.sum()), earlier, _mean(after[own])))
    return tuple(found)


def _mean(correct: Tensor) -> float | None:
    return float(correct.double().mean()) if len(correct) else None
