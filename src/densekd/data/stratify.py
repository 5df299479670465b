"""Of a split, class by class: what is held out to test on, the first of each, repeated images."""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from densekd.data.dataset import Split
from densekd.seeds import Seeds

# Of the images of the largest class, what another has at least once its images are repeated; but
# no image more often than so.
_LEAST = 1 / 4
_MOST_OFTEN = 16


def stratified_split(
    split: Split, fraction: float, seed: int, most: int | None = None
) -> tuple[Split, Split]:
    """Divide images class by class: what is left, and what was held out; see `held_out`.

    Args:
        split: images and labels.
        fraction: of each class, what is held out.
        seed: draws it.
        most: as if no class had more images than this.
    """
    chosen = held_out(split.labels.tolist(), fraction, seed, most)
    return split.take(torch.nonzero(~chosen).flatten()), split.take(torch.nonzero(chosen).flatten())


def first_of_each(split: Split, count: int) -> Split:
    """The first ``count`` images of each class, or all of a class that has fewer."""
    ranks = torch.empty_like(split.labels)
    for label in split.labels.unique():
        own = split.labels == label
        ranks[own] = torch.arange(int(own.sum()))
    return split.take(torch.nonzero(ranks < count).flatten())


def oversample_rare(split: Split) -> Split:
    """Images and labels, each as often as `how_often` says."""
    often = oversampling_counts(split.labels)
    return split.take(torch.arange(len(split)).repeat_interleave(often))


def oversampling_counts(labels: Tensor) -> Tensor:
    """How often to show each image of an epoch, those of rare classes more often than others.

    An image of a class of n images comes ``round(N / 4n)`` times where the largest class has N, but
    at least once and at most 16 times.

    Args:
        labels: int64 ``[n]``.

    Returns:
        int64 ``[n]``.
    """
    counts = torch.bincount(labels).clamp(min=1)
    return (_LEAST * counts.max() / counts).round().clamp(1, _MOST_OFTEN).long()[labels]


def held_out(
    classes: Sequence[str | int], fraction: float, seed: int, most: int | None = None
) -> Tensor:
    """Draw test images from those of each class.

    A class of several images has at least one on either side; one of a single image keeps it to
    learn from. The draw of a class depends on no other, so a new class moves none.

    Args:
        classes: the class of each of n images.
        fraction: of each class, what is kept for testing; 0 for nothing.
        seed: draws them.
        most: as many are drawn as if no class had more images than this.

    Returns:
        bool ``[n]``.
    """
    places = defaultdict[str | int, list[int]](list)
    for place, label in enumerate(classes):
        places[label].append(place)
    chosen = torch.zeros(len(classes), dtype=torch.bool)
    for label, own in places.items():
        count = held_count(len(own) if most is None else min(len(own), most), fraction)
        order = torch.randperm(len(own), generator=Seeds(seed).at(label).generator("split"))
        chosen[torch.tensor(own)[order[:count]]] = True
    return chosen


def held_count(images: int, fraction: float) -> int:
    """How many images of a class are held out: never all, and at least one if it has several."""
    return max(0, min(max(1, round(images * fraction)), images - 1)) if fraction else 0
