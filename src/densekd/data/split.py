"""Images held out for testing, class by class."""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from densekd.data.dataset import Split
from densekd.seeds import Seeds


def apart(split: Split, fraction: float, seed: int, most: int | None = None) -> tuple[Split, Split]:
    """Divide images class by class: what is left, and what was held out; see `held_out`.

    Args:
        split: images and labels.
        fraction: of each class, what is held out.
        seed: draws it.
        most: how many images of a class are held out at the most.
    """
    chosen = held_out(split.labels.tolist(), fraction, seed)
    if most is not None:
        for label in split.labels.unique().tolist():
            extra = torch.nonzero(chosen & (split.labels == label)).flatten()[most:]
            chosen[extra] = False
    return split.take(torch.nonzero(~chosen).flatten()), split.take(torch.nonzero(chosen).flatten())


def held_out(classes: Sequence[str | int], fraction: float, seed: int) -> Tensor:
    """Draw test images from those of each class.

    A class of several images has at least one on either side; one of a single image keeps it to
    learn from. The draw of a class depends on no other, so a new class moves none.

    Args:
        classes: the class of each of n images.
        fraction: of each class, what is kept for testing; 0 for nothing.
        seed: draws them.

    Returns:
        bool ``[n]``.
    """
    places = defaultdict[str | int, list[int]](list)
    for place, label in enumerate(classes):
        places[label].append(place)
    chosen = torch.zeros(len(classes), dtype=torch.bool)
    for label, own in places.items():
        count = min(max(1, round(len(own) * fraction)), len(own) - 1) if fraction else 0
        order = torch.randperm(len(own), generator=Seeds(seed).at(label).generator("split"))
        chosen[torch.tensor(own)[order[:count]]] = True
    return chosen
