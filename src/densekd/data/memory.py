"""Exemplar memory: the few images of each old class that are kept for replay."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor
from torch.nn.functional import normalize

from densekd.checks import check_choice
from densekd.data.dataset import Images, Split, images_from_state, join_images, join_splits
from densekd.parts import OwnPartError, explain_errors, find, is_reference, spoken
from densekd.seeds import fixed_random_state

Selection = Literal["random", "herding", "greedy"]
# A selection of one's own: from the features [n, D] of a class's images and the number of exemplars
# to the positions of the selected images, the most wanted first.
SelectionPolicy = Callable[[Tensor, int], Tensor | Sequence[int]]
# iCaRL's code stops after this many picks, repeated ones included.
_MOST_PICKS = 1000
# Numbers of features that are selected from at once: 256 MB.
_MOST_NUMBERS = 1 << 25

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Quota:
    """How many exemplars a class may keep: a fixed number, or its share of a fixed total.

    Example:
        >>> from densekd import Quota
        >>> Quota(per_class=20).of(classes=10), Quota(None, total=500).of(classes=10)
        (20, 50)
    """

    per_class: int | None = 20
    total: int | None = None

    def __post_init__(self) -> None:
        if (self.per_class is None) == (self.total is None):
            raise ValueError("Give either per_class or total exemplars, and not both.")
        if not 0 <= (self.per_class or self.total or 0) <= sys.maxsize:
            raise ValueError(f"Can't keep {self.per_class or self.total} exemplars.")

    def of(self, classes: int) -> int:
        """Return the exemplars of each class once ``classes`` are learned."""
        if self.per_class is not None:
            return self.per_class
        assert self.total is not None
        return self.total // classes


EVERYTHING = Quota(per_class=sys.maxsize)


class ExemplarMemory:
    """Keeps exemplars of all learned classes, in the order of their selection.

    A smaller memory is a prefix of a larger one: each class keeps its first images. The selection
    is ``random`` without replacement, `herding` (iCaRL, UCIR, PODNet, AFC) or `greedy`, or a
    function of one's own: see `SelectionPolicy`.

    Example:
        >>> import torch
        >>> from densekd import ExemplarMemory, Quota, Scenario, load
        >>> first, *others = Scenario.of(load("digits"), steps=4, equal=True)
        >>> memory = ExemplarMemory(Quota(per_class=3))
        >>> memory.learn(first.train, len(first.classes), torch.Generator())
        >>> len(memory)
        6
    """

    def __init__(self, quota: Quota, selection: Selection | SelectionPolicy = "random") -> None:
        if not callable(selection):
            check_choice("selection", selection, get_args(Selection))
        self.quota = quota
        self.selection: Selection | SelectionPolicy = selection
        self._kept: list[Images] = []
        self._added: dict[int, Images] = {}

    @property
    def classes(self) -> int:
        """The number of classes learned so far."""
        return len(self._kept)

    def __len__(self) -> int:
        return sum(len(images) for images in self._kept)

    def learn(
        self,
        train: Split,
        classes: int,
        generator: torch.Generator,
        features: Tensor | None = None,
        first: Split | None = None,
    ) -> None:
        """Keep exemplars of new classes, and fewer of the old ones if the quota demands it.

        Args:
            train: images whose labels are the next ranks, ``self.classes`` and up.
            classes: the number of new classes.
            generator: draws the images of a random selection.
            features: ``[len(train), D]``, needed for other selections.
            first: more images of these classes, which are kept before the selected ones.
        """
        if self.selection != "random" and features is None:
            raise ValueError(f"selection={self.selection!r} needs the images' features.")
        ranks = train.labels - self.classes
        if bool(((ranks < 0) | (ranks >= classes)).any()):
            last = self.classes + classes - 1
            raise ValueError(f"The labels of new classes must be {self.classes} to {last}.")
        # Raise, before anything changes, if these images can't be joined with the others.
        join_images([*self._kept[:1], train.images.take(torch.arange(0))])
        quota = self.quota.of(self.classes + classes)
        chosen = [train.images.take(i) for i in self.choose(train, classes, generator, features)]
        if first is not None:
            chosen = [
                join_images([first.take(first.labels == rank).images, own])
                for rank, own in enumerate(chosen, self.classes)
            ]
        self._warn_of_few([len(images) for images in chosen], quota)
        for rank, more in self._added.items():
            both = join_images([self._kept[rank], more])
            self._kept[rank] = both.take(torch.randperm(len(both), generator=generator))
        self._added = {}
        self._kept = [_at_most(quota, images) for images in [*self._kept, *chosen]]

    def shrink(self) -> None:
        """Keep no more of each class than the quota, which may be that of another memory."""
        quota = self.quota.of(self.classes) if self._kept else 0
        self._kept = [_at_most(quota, images) for images in self._kept]

    def add(self, more: Split) -> None:
        """Add images of learned classes as exemplars beyond the quota, until `learn` is called.

        Then the exemplars of their classes are drawn anew from the old ones and these.
        """
        if bool(((more.labels < 0) | (more.labels >= self.classes)).any()):
            raise ValueError(f"Only images of the {self.classes} learned classes can be added.")
        join_images([*self._kept[:1], more.images.take(torch.arange(0))])  # or raise
        for rank in more.labels.unique().tolist():
            self._added[rank] = more.images.take(more.labels == rank)

    def choose(
        self, train: Split, classes: int, generator: torch.Generator, features: Tensor | None = None
    ) -> list[Tensor]:
        """Select the images of new classes that `learn` would keep.

        Returns, for each class, indices into ``train`` in the order of their selection. Without
        features the selection is random.
        """
        counts = torch.bincount(train.labels - self.classes, minlength=classes)
        members = train.labels.argsort(stable=True).split(counts.tolist())
        quota = self.quota.of(self.classes + classes)
        if features is None or self.selection == "random":
            orders = [torch.randperm(len(index), generator=generator) for index in members]
        else:
            if len(features) != len(train):
                raise ValueError(f"{len(train)} images have {len(features)} rows of features.")
            rows = [features[index] for index in members]
            if callable(self.selection):
                orders = _own_order(self.selection, rows, quota, generator)
            else:
                select = herding if self.selection == "herding" else greedy
                orders = [order for some in _in_parts(rows) for order in select(some, quota)]
        return [index[order[:quota]] for index, order in zip(members, orders, strict=True)]

    def rehearsed(self, train: Split, classes: int, chosen: Tensor) -> Split:
        """Return the exemplars of all classes as `learn` would leave them.

        ``chosen`` are indices into ``train``, images of new classes, class by class; see `choose`.
        """
        quota = self.quota.of(self.classes + classes)
        kept = self._with_added([_at_most(quota, images) for images in self._kept])
        return join_splits([_labelled(kept), train.take(chosen)])

    def exemplars(self) -> Split:
        """Return all exemplars, class by class."""
        if not self._kept:
            raise ValueError("No class has been learned yet, so there are no exemplars.")
        return _labelled(self._with_added(self._kept))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the exemplars by content, not by path, since the old data may be gone."""
        if not self._kept:
            return {}
        state = join_images(self._kept).state()
        return {**state, "counts": torch.tensor([len(images) for images in self._kept])}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace the exemplars by those of `state_dict`."""
        kept: list[Images] = []
        if state:
            images = images_from_state(state)
            counts = state["counts"].tolist()
            if sum(counts) != len(images):
                raise ValueError(f"There are {len(images)} exemplars, but counts of {sum(counts)}.")
            kept = [images.take(part) for part in torch.arange(len(images)).split(counts)]
        self._kept = kept

    def _with_added(self, kept: list[Images]) -> list[Images]:
        return [
            join_images([images, self._added[rank]]) if rank in self._added else images
            for rank, images in enumerate(kept)
        ]

    def _warn_of_few(self, counts: list[int], quota: int) -> None:
        if quota == 0 and self.quota.total:
            logger.warning("No class keeps an exemplar: there are more classes than exemplars.")
        few = sum(count < quota for count in counts)
        if few and self.quota != EVERYTHING:
            logger.warning(
                "%d of the %d new classes have fewer images than the %d exemplars that a class may "
                "keep, the least %d: all of them are kept.",
                *(few, len(counts), quota, min(counts)),
            )


def _at_most(quota: int, images: Images) -> Images:
    return images.take(torch.arange(min(quota, len(images))))


def _labelled(kept: list[Images]) -> Split:
    labels = [torch.full((len(images),), rank) for rank, images in enumerate(kept)]
    return Split(join_images(kept), torch.cat(labels))


def selection_of(name: str) -> Selection | SelectionPolicy:
    """The selection that a setting names: a word, or a function such as ``mine.py:policy``."""
    if not is_reference(name):
        return cast(Selection, name)
    policy = find(name)
    if not callable(policy):
        part = spoken(name, "selection")
        raise OwnPartError(f"{part} must be a function that selects images, not {policy!r}.")
    return cast(SelectionPolicy, policy)


def _own_order(
    policy: SelectionPolicy, rows: list[Tensor], count: int, generator: torch.Generator
) -> list[Tensor]:
    """The positions that a function of one's own selects of each class, checked."""
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
            given = f"{len(order)} positions" if whole else f"{type(chosen).__name__}"
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

    With L2-normalised features and their mean mu, pick the largest product with w, which starts as
    mu, and add mu minus the picked feature to w, even if it was picked before. The order is that of
    first picks; images that were never picked follow by their product with mu.

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
            # Drop finished classes, since a class of many equal images may take long.
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
    """Normalise and pad features to ``[classes, most images, D]``; mark real rows; average them."""
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
