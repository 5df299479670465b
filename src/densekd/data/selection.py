"""Which images of a class are kept as exemplars."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, cast

import torch
from torch import Tensor
from torch.nn.functional import normalize

from densekd.parts import OwnPartError, display_name, explain_errors, find, is_reference
from densekd.seeds import fixed_random_state

Selection = Literal["random", "herding", "greedy"]
# A custom selection gets the features [n, D] of a class's images and the number of exemplars, and
# returns the positions of the selected images, the most wanted first.
SelectionPolicy = Callable[[Tensor, int], Tensor | Sequence[int]]
# iCaRL's code stops after this many picks, repeated ones included.
_MOST_PICKS = 1000
# The most feature values, in float64, to select from at once: 256 MB.
_MOST_NUMBERS = 1 << 25


def selection_of(name: str) -> Selection | SelectionPolicy:
    """The selection that a setting names: a word, or a function such as ``mine.py:policy``."""
    if not is_reference(name):
        return cast(Selection, name)
    policy = find(name)
    if not callable(policy):
        part = display_name(name, "selection")
        raise OwnPartError(f"{part} must be a function that selects images, not {policy!r}.")
    return cast(SelectionPolicy, policy)


def select(
    selection: Selection | SelectionPolicy,
    features: list[Tensor],
    count: int,
    generator: torch.Generator,
) -> list[Tensor]:
    """Select ``count`` images of each class, or all if there are fewer, the most wanted first.

    Args:
        selection: any but ``random``, which needs no features.
        features: ``[n, D]`` of each class.
        count: the number of images to select of each class.
        generator: seeds a custom function.
    """
    if callable(selection):
        return _own_order(selection, features, count, generator)
    by = herding if selection == "herding" else greedy
    return [order for some in _in_parts(features) for order in by(some, count)]


def _own_order(
    policy: SelectionPolicy, rows: list[Tensor], count: int, generator: torch.Generator
) -> list[Tensor]:
    """Call a custom function for each class, and check the positions that it returns."""
    name = getattr(policy, "__name__", type(policy).__name__)
    orders = []
    for features in rows:
        wanted = min(count, len(features))
        seed = int(torch.randint(2**62, (), generator=generator))
        with explain_errors(f"The selection {name}"), fixed_random_state(seed):
            chosen = policy(features, wanted)
        try:
            order = torch.as_tensor(chosen).cpu()
        except (TypeError, ValueError, RuntimeError):
            order = torch.empty(0, 0)
        whole = order.ndim == 1 and not order.is_floating_point() and order.dtype != torch.bool
        if not whole or len(order) != wanted:
            given = f"{len(order)} positions" if whole else type(chosen).__name__
            raise OwnPartError(
                f"The selection {name} must return {wanted} positions of {len(features)} images as "
                f"whole numbers, but returned {given}."
            )
        if len(order.unique()) < wanted or bool(((order < 0) | (order >= len(features))).any()):
            raise OwnPartError(
                f"The selection {name} must return different positions from 0 to "
                f"{len(features) - 1}, but returned {order.tolist()[:5]}, ..."
            )
        orders.append(order.long())
    return orders


def herding(features: list[Tensor], count: int) -> list[Tensor]:
    """Select images by iCaRL's herding, for many classes at once.

    Features are L2-normalised, mu is their mean, and w starts as mu. Each pick is the feature with
    the largest product with w, even if it was picked before; then mu minus that feature is added to
    w. Images are ordered by their first pick; those never picked follow by their product with mu.

    Takes features ``[n, D]`` of each class, and returns indices ``[min(count, n)]`` of each.
    """
    rows, present, mean = _padded(features)
    wanted = present.sum(1).clamp(max=count)
    # The first pick of each image; images never picked rank behind, by similarity.
    similarity = _products(rows, mean, present)
    first = torch.full_like(similarity, float(_MOST_PICKS)) + (4 - similarity)
    weight, open_ = mean, torch.arange(len(rows))
    for pick in range(_MOST_PICKS):
        unfinished = (first[open_] < _MOST_PICKS).sum(1) < wanted[open_]
        if not bool(unfinished.all()):
            # Drop finished classes, since one with many equal images may go on for long.
            open_ = open_[unfinished]
            rows, mean, weight, present = (x[unfinished] for x in (rows, mean, weight, present))
        if len(open_) == 0:
            break
        best = _products(rows, weight, present).argmax(1)
        first[open_, best] = first[open_, best].clamp(max=float(pick))
        weight = weight + mean - rows[torch.arange(len(rows)), best]
    return _ordered(first, wanted)


def greedy(features: list[Tensor], count: int) -> list[Tensor]:
    """Select images so that the mean of the picks stays nearest to the class mean.

    With L2-normalised features and their mean mu, the k-th pick is the image, not picked before,
    that brings ``(sum of picks) / k`` nearest to mu. Arguments and result are those of `herding`.
    """
    rows, present, mean = _padded(features)
    wanted = present.sum(1).clamp(max=count)
    squares = rows.square().sum(-1)
    first = torch.full(present.shape, torch.inf, dtype=rows.dtype)
    total = torch.zeros_like(mean)
    free, every = present, torch.arange(len(rows))
    for pick in range(int(wanted.max()) if len(wanted) else 0):
        # |mu - (total + row) / k|^2 times k^2 / 2, without the terms that all rows share.
        target = total - (pick + 1) * mean
        distance = squares / 2 + torch.einsum("cnd,cd->cn", rows, target)
        best = distance.masked_fill(~free, torch.inf).argmin(1)
        first[every, best] = first[every, best].clamp(max=float(pick))
        free = free.scatter(1, best[:, None], False)
        total = total + rows[every, best]
    return _ordered(first, wanted)


def _in_parts(features: list[Tensor]) -> Iterator[list[Tensor]]:
    """Divide many classes into parts that take little memory once they are padded."""
    largest = max((rows.numel() for rows in features), default=1)
    at_once = max(1, _MOST_NUMBERS // max(1, largest))
    return (features[i : i + at_once] for i in range(0, len(features), at_once))


def _padded(features: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return unit features, padded to ``[classes, most images, D]``, a mask of rows, and means."""
    rows = torch.nn.utils.rnn.pad_sequence(
        [normalize(f.detach().double().cpu(), dim=1) for f in features], batch_first=True
    )
    counts = torch.tensor([len(f) for f in features])
    return rows, torch.arange(rows.shape[1]) < counts[:, None], rows.sum(1) / counts[:, None]


def _products(rows: Tensor, weight: Tensor, present: Tensor) -> Tensor:
    """Multiply each row with its class's weight; padding gets minus infinity."""
    products = torch.einsum("cnd,cd->cn", rows, weight)
    return products.masked_fill(~present, -torch.inf)


def _ordered(first: Tensor, wanted: Tensor) -> list[Tensor]:
    order = first.argsort(dim=1, stable=True)
    return [row[:count] for row, count in zip(order, wanted.tolist(), strict=True)]
