"""UCIR's ranking loss, which keeps old classes apart from new ones."""

from torch import Tensor

from densekd.losses.classify import check_labels, widened


def margin_ranking(
    cosines: Tensor, labels: Tensor, old: int, margin: float = 0.5, k: int = 2
) -> Tensor:
    """Puts an image's own old class ahead of the new classes nearest to it, by a margin.

    ``max(0, margin - s_y + s_j)``, the mean over the images of old classes and, for each of them,
    over the K new classes j with the largest cosines s. K is ``k``, or the number of new classes
    where that is smaller.

    Args:
        cosines: ``[B, seen]``, before the classifier scales them.
        labels: int64 ``[B]``; images of new classes are left out.
        old: how many classes, the first columns, were learned before.
        margin: how far ahead.
        k: how many new classes to compare with, at least 1.

    Returns:
        A scalar; 0, without effect on the cosines, if no image is of an old class.
    """
    check_labels(cosines, labels, old)
    if k < 1:
        raise ValueError(f"k must be 1 or more new classes, not {k!r}.")
    cosines = widened(cosines)
    nearest = cosines[:, old:].topk(min(k, cosines.shape[1] - old), dim=1).values
    own = cosines.gather(1, labels[:, None])
    each = (margin - own + nearest).relu().mean(1)
    # Weighed, not selected: to select, the number of such images would have to be waited for.
    counted = (labels < old).to(each.dtype)
    return (each * counted).sum() / counted.sum().clamp(min=1)
