"""What a learner gets right, by its classifier and by the nearest class mean."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from densekd.data.dataset import Split
from densekd.learn.learner import Learner
from densekd.metrics import Matrix, confusion_matrix


@dataclass(frozen=True)
class Evaluation:
    """Confusion matrices over all classes seen.

    Args:
        head: with the argmax of the logits.
        nearest_mean: with the nearest mean of the exemplars; None without exemplars.
    """

    head: Matrix
    nearest_mean: Matrix | None


def evaluate(learner: Learner, test: Split) -> Evaluation:
    """Test a learner on images of classes that it has learned; each rank takes its share."""
    engine = learner.settings.engine
    mine = test.take(engine.share.of(torch.arange(len(test))))
    seen = learner.see(mine.images)
    guesses = [seen.logits.argmax(1)]
    means = class_means(learner)
    if means is not None:
        guesses.append(nearest_mean(seen.features, means))
    classes = len(learner.classes)
    counts = torch.stack(
        [torch.from_numpy(confusion_matrix(g.cpu(), mine.labels, classes)) for g in guesses]
    )
    head, *nearest = engine.total(counts.to(engine.device)).cpu().numpy()
    return Evaluation(head, nearest[0] if nearest else None)


def class_means(learner: Learner) -> Tensor | None:
    """ICaRL's class means, unit vectors ``[classes, D]``, by the network as it is.

    The mean of the L2-normalised features of a class's exemplars and their mirror images,
    normalised again. None if some class has no exemplar.
    """
    if len(learner.memory) == 0:
        return None
    exemplars = learner.memory.exemplars()
    both = [learner.see(exemplars.images, flipped=flipped).features for flipped in (False, True)]
    unit = sum(normalize(features, dim=1) for features in both)
    assert isinstance(unit, Tensor)
    labels = exemplars.labels.to(unit.device)
    if len(labels.unique()) < len(learner.classes):
        return None
    sums = unit.new_zeros(len(learner.classes), unit.shape[1]).index_add(0, labels, unit)
    return normalize(sums, dim=1)  # the length of a mean doesn't matter, so neither do counts


def nearest_mean(features: Tensor, means: Tensor) -> Tensor:
    """The nearest mean of each normalised feature: ``[n, D]`` and ``[classes, D]`` to ``[n]``.

    Between unit vectors the smallest distance is the largest product.
    """
    return (normalize(features, dim=1) @ means.T).argmax(1)
