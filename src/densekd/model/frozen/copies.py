"""Near-copies among the photos of a class: mirrored, edited and repeated ones, and bursts."""

import torch
from torch import Tensor

# The distance of two features of length 1 with a cosine of 0.95. Measured in docs/heads.md.
_CLOSE = 0.1**0.5
_ROWS = 1024  # compared at once with all photos of a class, to bound the memory


def first_copies(features: Tensor, labels: Tensor) -> Tensor:
    """Group near-copies: for each photo, the place of the photo that stands for its group.

    A photo points to the first one of its class that it nearly copies, or to itself; links are
    followed twice, so that a copy of a copy joins the same group. Features are ``[n, D]``, each of
    length 1.
    """
    first = torch.arange(len(labels))
    for label in labels.unique():
        own = (labels == label).nonzero().flatten()
        photos = features[own]
        close = [torch.cdist(rows, photos) < _CLOSE for rows in photos.split(_ROWS)]
        # argmax gives the first close photo; there is one, since each is close to itself.
        first[own] = own[torch.cat([each.byte().argmax(1) for each in close])]
    return first[first]
