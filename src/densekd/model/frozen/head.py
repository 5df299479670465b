"""The linear classifier on frozen features, refitted to all features at each update."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from densekd.model.frozen.copies import first_copies
from densekd.model.minimise import lbfgs

# Measured in docs/heads.md.
_L2 = 2e-3
# Count at most 100 photos of a class; otherwise large classes lose to small ones.
_MOST = 100
_SCALE = 10.0
_ITERATIONS, _TOLERANCE = 60, 1e-5
_PER_THREAD = 1 << 26  # multiplications (features by classes) that make another thread worth it


class LinearHead(NamedTuple):
    """Scores features of length 1: ``features @ weight.T + bias``."""

    weight: Tensor  # [classes, D]
    bias: Tensor  # [classes]

    def scores(self, features: Tensor) -> Tensor:
        """Turn features ``[n, D]`` into scores ``[n, classes]``."""
        return features @ self.weight.T + self.bias


def fit_head(features: Tensor, labels: Tensor, classes: int) -> LinearHead:
    """Fit a logistic head that works for rare and frequent classes alike.

    While fitting, the score of a class is shifted by the logarithm of its share of the photos, so
    that rare classes aren't crowded out, and a photo of a frequent class weighs less. Photos that
    are near-copies of one another count as one.

    Args:
        features: of length 1, ``[n, D]``.
        labels: from 0 to ``classes - 1``, ``[n]``; every class must occur.
        classes: how many there are.
    """
    with few_threads(features, classes):
        return _fit(features, labels, classes)


@contextmanager
def few_threads(features: Tensor, classes: int) -> Iterator[None]:
    """Use no more threads than are worth it for a fit to these features.

    On a busy machine, threads wait for a core in every matrix product, several times as long as the
    fit itself takes.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(min(threads, 1 + features.numel() * classes // _PER_THREAD))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _fit(features: Tensor, labels: Tensor, classes: int) -> LinearHead:
    first = first_copies(features, labels)
    share = 1 / torch.bincount(first)[first]  # of a photo among its copies
    counts = torch.zeros(classes).index_add(0, labels, share)
    # Average over classes, not photos: otherwise a class of thousands would hide the others.
    per_class = share / (classes * counts[labels])
    centre = per_class @ features
    centred = features - centre
    scale = _SCALE / (per_class @ centred.square().sum(1)).sqrt().clamp(min=1e-6)
    limited = counts.clamp(max=_MOST)
    inputs, shift = centred * scale, (limited / limited.sum()).log()
    weights = per_class * limited.sqrt()[labels]
    weights /= weights.sum()
    fitted, bias = _minimise(inputs, labels, weights, shift)
    fitted *= scale
    return LinearHead(fitted, bias - fitted @ centre)


def _minimise(
    inputs: Tensor, labels: Tensor, weights: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    """Weight and bias that minimise the cross-entropy, weighted by photo, plus L2."""
    photos, classes = len(labels), len(shift)
    truth = weights[:, None] * one_hot(labels, classes)

    def loss(values: Tensor) -> tuple[float, Tensor]:
        weight, bias = values[:, :-1], values[:, -1]
        log_shares = (inputs @ weight.T + (bias + shift)).log_softmax(1)
        error = weights[:, None] * log_shares.exp() - truth
        gradient = torch.empty_like(values)
        gradient[:, :-1] = error.T @ inputs + 2 * _L2 * weight
        gradient[:, -1] = error.sum(0)
        total = _L2 * weight.square().sum() - weights @ log_shares[torch.arange(photos), labels]
        return float(total), gradient

    start = torch.zeros(classes, inputs.shape[1] + 1)
    values = lbfgs(loss, start, _ITERATIONS, _TOLERANCE)
    return values[:, :-1].clone(), values[:, -1].clone()
