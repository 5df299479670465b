"""Tell photos of classes that a model was taught from photos of other things."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from densekd.model.frozen.copies import first_copies
from densekd.model.frozen.head import fit_head

# The largest share of photos of known classes to call unknown.
REFUSED = 0.05
_FOLDS = 4
_FEWEST = 8  # with fewer scores, the weight is 1 and no photo is called unknown
_CONFIDENCE = 1.28  # standard deviations: the limit on refused photos holds with 90 % confidence


class UnknownRule(NamedTuple):
    """How familiar a photo looks: its largest logit plus its weighted mean cosine.

    The mean cosine of a photo and a class is the mean of its cosines with the class's photos. Since
    features have length 1, that is the dot product with the class's mean feature. The largest over
    all classes counts. docs/heads.md compares other rules.
    """

    means: Tensor  # [classes, D]
    cosine_weight: Tensor  # a number
    scores: Tensor  # sorted; of photos of known classes, each left out when it was scored

    def familiarity(self, features: Tensor, logits: Tensor) -> Tensor:
        """Familiarity ``[n]`` from features ``[n, D]`` and the head's logits ``[n, classes]``."""
        return logits.amax(1) + self.cosine_weight * (features @ self.means.T).amax(1)

    def threshold(self, refused: float = REFUSED) -> float:
        """The familiarity below which a photo is unknown.

        With 90 % confidence, at most a share ``refused`` of photos of known classes is below it.
        With too few photos to tell, no photo is unknown.
        """
        if not 0 <= refused < 1:
            raise ValueError(f"The share to refuse must be from 0 to below 1, not {refused}.")
        count = len(self.scores)
        if count < _FEWEST or refused == 0:
            return -math.inf
        allowed = refused * count - _CONFIDENCE * math.sqrt(count * refused * (1 - refused))
        return float(self.scores[max(0, math.floor(allowed))])


class CrossScores(NamedTuple):
    """Scores of photos by heads and class means that were fitted without them."""

    places: Tensor  # indices of the photos, [m]
    logits: Tensor  # [m, classes]
    cosines: Tensor  # the largest mean cosine, [m]


def cross_scores(features: Tensor, labels: Tensor, classes: int) -> CrossScores:
    """Cross-validate in four folds: score each photo by a head and means fitted without its fold.

    Near-copies are in one fold, since they would recognise each other. A class's only photo,
    near-copies aside, gets no score: no other photo shows the class.

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
    """Fit the rule: weigh its two parts by the scores that `cross_scores` gave."""
    logit, cosine, weight = crossed.logits.amax(1), crossed.cosines, torch.tensor(1.0)
    if len(logit) >= _FEWEST and float(logit.std()) > 1e-6:  # a single class has equal logits
        weight = logit.std() / cosine.std().clamp(min=1e-6)
    scores = (logit + weight * cosine).sort().values
    return UnknownRule(_means(features, labels, classes), weight, scores)


def _means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The mean feature of each class; the more its photos differ, the shorter it is."""
    members = one_hot(labels, classes).to(features.dtype)
    return (members.T @ features) / members.sum(0)[:, None]


def _draw_folds(features: Tensor, labels: Tensor) -> Tensor:
    """The fold of each photo, classes spread evenly; -1 if its class has no other photo."""
    generator, folds = torch.Generator().manual_seed(0), torch.full_like(labels, -1)
    first = first_copies(features, labels)
    for label in labels.unique():
        own = first[labels == label].unique()
        if len(own) > 1:
            order = torch.randperm(len(own), generator=generator)
            folds[own[order]] = torch.arange(len(own)) % _FOLDS
    return folds[first]
