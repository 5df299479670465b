"""How well a model names images, and how far its probabilities can be trusted."""

import math
from collections.abc import Sequence

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import cross_entropy

from densekd.data.dataset import Split
from densekd.model.records import Accuracy, ClassChange
from densekd.training.learner import Learner

# Of the temperature; the ends are only reached by scores that say nothing, or everything.
_RANGE = (math.log(0.01), math.log(100.0))
_BINS = 15


def fit_temperature(values: Tensor, labels: Tensor) -> float:
    """The temperature that makes softmax(values / temperature) fit the labels best.

    As Platt has it, each label counts for a little less than certain, so that the probabilities
    stay below 1 where all predictions are right, the more so the fewer there are.

    Args:
        values: scores ``[n, classes]`` of images that were not learned from.
        labels: their classes ``[n]``.
    """
    count, classes = values.shape
    if count == 0 or classes < 2:
        return 1.0
    values, doubt = values.double(), classes / (classes - 1) / (count + 2)

    def misfit(log_temperature: float) -> float:
        scaled = values / math.exp(log_temperature)
        return float(cross_entropy(scaled, labels, label_smoothing=min(doubt, 1.0)))

    return math.exp(float(minimize_scalar(misfit, bounds=_RANGE, method="bounded").x))


def calibration_error(probabilities: Tensor, labels: Tensor) -> float | None:
    """The expected calibration error, in bins of equal width; None without images.

    Args:
        probabilities: ``[n, classes]``.
        labels: ``[n]``.
    """
    if len(labels) == 0:
        return None
    sure, guess = probabilities.double().max(1)
    right = (guess == labels).double()
    bins = (sure * _BINS).long().clamp(max=_BINS - 1)
    gaps = torch.zeros(_BINS, dtype=torch.float64).index_add_(0, bins, right - sure)
    return float(gaps.abs().sum() / len(labels))


def right(learner: Learner, test: Split) -> Tensor:
    """Which images a learner names right, bool ``[n]``; those of unknown classes it can't."""
    return learner.scores(test.images).argmax(1).cpu() == test.labels


def accuracy(named: Tensor, labels: Tensor, known: int) -> Accuracy:
    """Of new classes, old classes and all.

    Args:
        named: bool ``[n]``, whether an image is named right.
        labels: ``[n]``.
        known: how many classes were known before; new ones are numbered from there.
    """
    new = labels >= known
    return Accuracy(_share(named[new]), _share(named[~new]), _share(named))


def changes(
    names: Sequence[str], labels: Tensor, before: Tensor | None, after: Tensor, known: int
) -> tuple[ClassChange, ...]:
    """What became of each class.

    Args:
        names: of all classes.
        labels: ``[n]``.
        before: bool ``[n]``, whether the model before names an image right; None without one.
        after: the same of the new model.
        known: how many classes were known before.
    """
    found = []
    for rank, name in enumerate(names):
        own = labels == rank
        earlier = None if before is None or rank >= known else _share(before[own])
        found.append(ClassChange(name, int(own.sum()), earlier, _share(after[own])))
    return tuple(found)


def _share(named: Tensor) -> float | None:
    return float(named.double().mean()) if len(named) else None
