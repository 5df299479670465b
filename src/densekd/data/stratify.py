"""Subsets of a split, class by class: held-out images, first images, oversampled rare classes."""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from densekd.data.dataset import Split
from densekd.seeds import RandomStream, Seeds

# The share of each class to test on if a data set has no test images.
TEST_FRACTION = 0.2
# Rare classes are oversampled to this share of the largest class, within this many repeats.
_LEAST_SHARE = 1 / 4
_MOST_REPEATS = 16


def stratified_split(
    split: Split,
    fraction: float,
    seed: int,
    most: int | None = None,
    stream: RandomStream = "split",
) -> tuple[Split, Split]:
    """Divide a split class by class into the rest and the held-out images; see `held_out`."""
    chosen = held_out(split.labels.tolist(), fraction, seed, most, stream)
    return split.take(~chosen), split.take(chosen)


def first_of_each(split: Split, count: int) -> Split:
    """Return the first ``count`` images of each class, or all if it has fewer."""
    order, counts = split.labels.argsort(stable=True), torch.bincount(split.labels)
    first = (counts.cumsum(0) - counts)[split.labels[order]]
    ranks = torch.empty_like(split.labels)
    ranks[order] = torch.arange(len(split)) - first
    return split.take(ranks < count)


def oversample_rare(split: Split) -> Split:
    """Repeat the images of rare classes; see `oversampling_counts`."""
    counts = oversampling_counts(split.labels)
    return split.take(torch.arange(len(split)).repeat_interleave(counts))


def oversampling_counts(labels: Tensor) -> Tensor:
    """Return how often an epoch shows each image, int64 ``[n]``, from its label.

    An image of a class of n images is shown ``round(N / 4n)`` times, N being the size of the
    largest class, but at least once and at most 16 times.
    """
    counts = torch.bincount(labels).clamp(min=1)
    return (_LEAST_SHARE * counts.max() / counts).round().clamp(1, _MOST_REPEATS).long()[labels]


def held_out(
    classes: Sequence[str | int],
    fraction: float,
    seed: int,
    most: int | None = None,
    stream: RandomStream = "split",
) -> Tensor:
    """Draw test or validation images of each class, from a stream of the seed.

    A class of several images keeps at least one on either side, unless ``fraction`` is 0; a single
    image is trained on. Each class is drawn by itself, so adding a class changes no other. The
    number is a ``fraction`` of a class, computed as if it had at most ``most`` images.

    Returns:
        bool ``[n]``, True where an image is held out.
    """
    places = defaultdict[str | int, list[int]](list)
    for place, label in enumerate(classes):
        places[label].append(place)
    chosen = torch.zeros(len(classes), dtype=torch.bool)
    for label, own in places.items():
        count = held_count(len(own) if most is None else min(len(own), most), fraction)
        order = torch.randperm(len(own), generator=Seeds(seed).at(label).generator(stream))
        chosen[torch.tensor(own)[order[:count]]] = True
    return chosen


def held_count(images: int, fraction: float) -> int:
    """How many of a class's images to hold out.

    Never all; of several, at least one, unless ``fraction`` is 0.
    """
    return max(0, min(max(1, round(images * fraction)), images - 1)) if fraction else 0
