"""UCIR's ranking loss, which keeps old classes apart from new ones."""

from torch import Tensor

from densekd.losses.checks import check_labels, widened


def margin_ranking(
    cosines: Tensor, labels: Tensor, old: int, margin: float = 0.5, k: int = 2
) -> Tensor:
    """Put an image's own old class ahead of the nearest new classes by a margin.

    ``max(0, margin - s_y + s_j)``, the mean over the images of old classes and, for each, over the
    k new classes j (or all, if there are fewer) with the largest cosines s. The cosines,
    ``[B, seen]``, are unscaled, and their first columns are the ``old`` classes. It is 0 with no
    gradient if no image is of an old class.
    """
    check_labels(cosines, labels, old)
    if k < 1:
        raise ValueError(f"k must be 1 or more new classes, not {k!r}.")
    cosines = widened(cosines)
    nearest = cosines[:, old:].topk(min(k, cosines.shape[1] - old), dim=1).values
    own = cosines.gather(1, labels[:, None])
    each = (margin - own + nearest).relu().mean(1)
    # Weighted rather than selected: selecting would wait for the device to count the images.
    counted = (labels < old).to(each.dtype)
    return (each * counted).sum() / counted.sum().clamp(min=1)
