"""Tell photos of what a model was taught from photos of other things."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from densekd.model.frozen.copies import first_copies
from densekd.model.frozen.head import fit_head

# The share of photos of known classes that may be called unknown.
REFUSED = 0.05
_FOLDS = 4
_FEWEST = 8  # scores: from fewer, the two parts can't be weighed
_CONFIDENCE = 1.28  # standard deviations: nine times of ten, fewer are refused than allowed


class UnknownRule(NamedTuple):
    """How familiar a photo looks: its largest logit plus its weighted mean cosine.

    The mean cosine is that of its feature to those of a class's photos, for the class where it is
    largest: a dot product with the mean of their features, which have length 1. docs/heads.md
    compares it with other rules.
    """

    means: Tensor  # [classes, D]
    cosine_weight: Tensor  # a number
    scores: Tensor  # of photos of known classes that were left out of head and means, sorted

    def familiarity(self, features: Tensor, logits: Tensor) -> Tensor:
        """``[n]``, from features ``[n, D]`` and the head's logits ``[n, classes]``."""
        return logits.amax(1) + self.cosine_weight * (features @ self.means.T).amax(1)

    def threshold(self, refused: float = REFUSED) -> float:
        """The familiarity below which a photo is unknown.

        At most a share ``refused`` of photos of known classes is below it, nine times of ten. With
        too few photos to tell, no photo is unknown.
        """
        if not 0 <= refused < 1:
            raise ValueError(f"The share to refuse must be from 0 to below 1, not {refused}.")
        count = len(self.scores)
        if count < _FEWEST or refused == 0:
            return -math.inf
        allowed = refused * count - _CONFIDENCE * math.sqrt(count * refused * (1 - refused))
        return float(self.scores[max(0, math.floor(allowed))])


class CrossScores(NamedTuple):
    """What is found in each photo by a head and by means to which it didn't contribute."""

    places: Tensor  # of the photos, [m]
    logits: Tensor  # [m, classes]
    cosines: Tensor  # the largest mean cosine, [m]


def cross_scores(features: Tensor, labels: Tensor, classes: int) -> CrossScores:
    """Score each photo by the others: in four folds, each scored by what the rest gives.

    Near-copies are in one fold, since they would recognise each other. The only photo of a class,
    or one with nothing but copies, has no score: without it nothing is known of the class.

    Args:
        features: of length 1, ``[n, D]``.
        labels: from 0 to ``classes - 1``, ``[n]``; every class must occur.
        classes: how many there are.
    """
    folds = _draw_folds(features, labels)
    found = [CrossScores(torch.empty(0).long(), torch.empty(0, classes), torch.empty(0))]
    for number in range(_FOLDS):
        left, kept = (folds == number).nonzero().flatten(), folds != number
        if len(left):
            head = fit_head(features[kept], labels[kept], classes)
            means = _means(features[kept], labels[kept], classes)
            cosines = (features[left] @ means.T).amax(1)
            found.append(CrossScores(left, head.scores(features[left]), cosines))
    return CrossScores(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def fit_unknown(
    features: Tensor, labels: Tensor, classes: int, crossed: CrossScores
) -> UnknownRule:
    """Weigh the two parts of the rule by what `cross_scores` found."""
    logit, cosine, weight = crossed.logits.amax(1), crossed.cosines, torch.tensor(1.0)
    if len(logit) >= _FEWEST and float(logit.std()) > 1e-6:  # a single class has equal logits
        weight = logit.std() / cosine.std().clamp(min=1e-6)
    scores = (logit + weight * cosine).sort().values
    return UnknownRule(_means(features, labels, classes), weight, scores)


def _means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The mean feature of each class; shorter, the more its photos differ."""
    members = one_hot(labels, classes).to(features.dtype)
    return (members.T @ features) / members.sum(0)[:, None]


def _draw_folds(features: Tensor, labels: Tensor) -> Tensor:
    """A fold for each photo; each class is spread evenly. -1 where a class has no other photo."""
    generator, folds = torch.Generator().manual_seed(0), torch.full_like(labels, -1)
    first = first_copies(features, labels)
    for label in labels.unique():
        own = first[labels == label].unique()
        if len(own) > 1:
            order = torch.randperm(len(own), generator=generator)
            folds[own[order]] = torch.arange(len(own)) % _FOLDS
    return folds[first]
