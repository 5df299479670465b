"""The linear classifier on frozen features, refitted on all of them at each update."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from densekd.model.copies import first_copies

# Measured in docs/heads.md.
_L2 = 2e-3
_MOST = 100  # photos that a class counts as: thousands beside a few would lose to them
_SCALE = 10.0
_ITERATIONS, _TOLERANCE = 60, 1e-5


class LinearHead(NamedTuple):
    """Scores of features of length 1: ``features @ weight.T + bias``."""

    weight: Tensor  # [classes, D]
    bias: Tensor  # [classes]

    def scores(self, features: Tensor) -> Tensor:
        """``[n, D]`` to ``[n, classes]``."""
        return features @ self.weight.T + self.bias


def fit_head(features: Tensor, labels: Tensor, classes: int) -> LinearHead:
    """Fit a logistic head that serves rare and frequent classes alike.

    While fitting, the score of a class is shifted by the logarithm of its share of the photos, so
    that a class of few photos isn't crowded out, and a photo of a frequent class weighs less.
    Photos that are near-copies of one another count as one.

    Args:
        features: of length 1, ``[n, D]``.
        labels: from 0 to ``classes - 1``, ``[n]``; every class must occur.
        classes: how many there are.
    """
    first = first_copies(features, labels)
    share = 1 / torch.bincount(first)[first]  # of a photo among its copies
    counts = torch.zeros(classes).index_add(0, labels, share)
    # Statistics over classes, not photos: a class of thousands would hide the others.
    per_class = share / (classes * counts[labels])
    centre = per_class @ features
    centred = features - centre
    scale = _SCALE / (per_class @ centred.square().sum(1)).sqrt().clamp(min=1e-6)
    limited = counts.clamp(max=_MOST)
    inputs, shift = centred * scale, (limited / limited.sum()).log()
    weights = per_class * limited.sqrt()[labels]
    weights /= weights.sum()
    weight = torch.zeros(classes, features.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weight, bias],
        max_iter=_ITERATIONS,
        tolerance_grad=_TOLERANCE,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        values = inputs @ weight.T + bias + shift
        total = weights @ cross_entropy(values, labels, reduction="none")
        total = total + _L2 * weight.square().sum()
        total.backward()
        return total

    optimiser.step(loss)
    fitted = weight.detach() * scale
    return LinearHead(fitted, bias.detach() - fitted @ centre)
