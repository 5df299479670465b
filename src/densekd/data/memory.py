"""Exemplar memory: the few images of each old class that are kept for replay."""

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from densekd.checks import check_choice
from densekd.data.dataset import Images, Split, images_from_state, join_images, join_splits
from densekd.data.selection import Selection, SelectionPolicy, select
from densekd.data.stratify import first_of_each

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
        """Return the number of exemplars of each class once ``classes`` are learned."""
        if self.per_class is not None:
            return self.per_class
        assert self.total is not None
        return self.total // classes


EVERYTHING = Quota(per_class=sys.maxsize)


class ExemplarMemory:
    """Keeps exemplars of all learned classes, in the order of their selection.

    A smaller memory is a prefix of a larger one: each class keeps its first images. The selection
    is ``random`` without replacement, ``herding`` (iCaRL, UCIR, PODNet, AFC), ``greedy``, or a
    custom function; see `densekd.data.selection`.

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
        """Keep exemplars of new classes, and fewer of the old ones if the quota has shrunk.

        Args:
            train: images whose labels are the next ranks, ``self.classes`` and up.
            classes: the number of new classes.
            generator: draws the images of a random selection.
            features: ``[len(train), D]``, needed for other selections.
            first: more images of these classes, to keep in front of the selected ones.
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
        """Drop exemplars beyond the quota, such as those of a loaded memory with a larger quota."""
        quota = self.quota.of(self.classes) if self._kept else 0
        self._kept = [_at_most(quota, images) for images in self._kept]

    def add(self, more: Split) -> None:
        """Add images of learned classes as exemplars beyond the quota, until `learn` is called.

        `learn` then draws the exemplars of their classes anew, from the old ones and these.
        """
        if bool(((more.labels < 0) | (more.labels >= self.classes)).any()):
            raise ValueError(f"Only images of the {self.classes} learned classes can be added.")
        join_images([*self._kept[:1], more.images.take(torch.arange(0))])  # or raise
        for rank in more.labels.unique().tolist():
            earlier = [self._added[rank]] if rank in self._added else []
            self._added[rank] = join_images([*earlier, more.images.take(more.labels == rank)])

    def choose(
        self, train: Split, classes: int, generator: torch.Generator, features: Tensor | None = None
    ) -> list[Tensor]:
        """Select the images of new classes that `learn` would keep.

        Returns, for each class, indices into ``train`` in the order of their selection. Without
        features, the selection is random.
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
            orders = select(self.selection, rows, quota, generator)
        return [index[order[:quota]] for index, order in zip(members, orders, strict=True)]

    def rehearsed(
        self, train: Split, classes: int, chosen: Tensor, first: Split | None = None
    ) -> Split:
        """Return, class by class, the old exemplars within the quota, added images, and new ones.

        ``chosen`` are indices into ``train``, images of new classes, class by class; see `choose`.
        For ``first``, see `learn`.
        """
        quota = self.quota.of(self.classes + classes)
        kept = self._with_added([_at_most(quota, images) for images in self._kept])
        new = train.take(chosen)
        if first is not None:
            both = join_splits([first, new])
            new = first_of_each(both.take(both.labels.argsort(stable=True)), quota)
        return join_splits([_labelled(kept), new])

    def exemplars(self) -> Split:
        """Return all exemplars, class by class."""
        if not self._kept:
            raise ValueError("No class has been learned yet, so there are no exemplars.")
        return _labelled(self._with_added(self._kept))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the exemplars by content, not by path, since the old files may be gone."""
        if not self._kept:
            return {}
        state = join_images([*self._kept, *self._added.values()]).state()
        state["counts"] = torch.tensor([len(images) for images in self._kept])
        if self._added:
            ranks = [torch.full((len(images),), rank) for rank, images in self._added.items()]
            state["added"] = torch.cat(ranks)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace the exemplars by those of `state_dict`."""
        kept: list[Images] = []
        added: dict[int, Images] = {}
        if state:
            images, counts = images_from_state(state), state["counts"].tolist()
            ranks = state.get("added", torch.empty(0)).long()
            total = sum(counts) + len(ranks)
            if total != len(images):
                raise ValueError(f"There are {len(images)} exemplars, but counts of {total}.")
            if not {*ranks.tolist()} <= {*range(len(counts))}:
                raise ValueError(f"Images were added of others than the {len(counts)} classes.")
            first, last = torch.arange(total).split([sum(counts), len(ranks)])
            kept = [images.take(part) for part in first.split(counts)]
            # Keep the order of addition: `learn` draws random numbers in this order.
            added = {r: images.take(last[ranks == r]) for r in dict.fromkeys(ranks.tolist())}
        self._kept, self._added = kept, added

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
