"""A method as a value: what it adds up, on which batches, for how long, and how it predicts."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from densekd.checks import check_choice
from densekd.methods.terms import Term

Decay = Literal["cosine", "milestones", "constant"]
Head = Literal["cosine", "linear"]
Streams = Literal["split", "merged"]
Keeps = Literal["exemplars", "everything"]


@dataclass(frozen=True)
class Schedule:
    """How a phase is trained: SGD with momentum, its learning rate set anew for each epoch.

    Args:
        epochs: how often all new images are seen.
        lr: the learning rate of the first epoch.
        decay: ``cosine`` from ``lr`` to ``lr_end``, ``milestones``, or ``constant``.
        lr_end: where the cosine ends.
        milestones: the epochs from which the rate is a tenth of what it was.
        batch_size: of each stream, over all ranks.
        momentum: of SGD.
        weight_decay: on all parameters.
    """

    epochs: int = 70
    lr: float = 0.1
    decay: Decay = "cosine"
    lr_end: float = 1e-4
    milestones: tuple[int, ...] = ()
    batch_size: int = 128
    momentum: float = 0.9
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        check_choice("decay", self.decay, get_args(Decay))
        if self.epochs < 1 or self.batch_size < 1 or not 0 < self.lr < math.inf:
            raise ValueError(
                f"Can't train for {self.epochs} epochs at rate {self.lr} "
                f"in batches of {self.batch_size}."
            )
        if self.lr_end < 0 or self.momentum < 0 or self.weight_decay < 0:
            raise ValueError("lr_end, momentum and weight_decay can't be less than 0.")
        if self.milestones and self.decay != "milestones":
            raise ValueError(f"milestones go with decay='milestones', not {self.decay!r}.")

    def lr_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        if self.decay == "cosine":
            share = (1 + math.cos(math.pi * epoch / self.epochs)) / 2
            return self.lr_end + (self.lr - self.lr_end) * share
        return self.lr * 0.1 ** sum(epoch >= milestone for milestone in self.milestones)

    def scaled(self, share: float) -> "Schedule":
        """The same course in ``share`` of the epochs, at least one."""
        epochs = max(1, round(self.epochs * share))
        # Never 0: the first epoch is at the full rate, however few there are.
        milestones = tuple(max(1, round(m * epochs / self.epochs)) for m in self.milestones)
        return dataclasses.replace(self, epochs=epochs, milestones=milestones)


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one schedule."""

    name: str
    schedule: Schedule


@dataclass(frozen=True)
class Method:
    """What distinguishes one way of learning from another.

    A learner works with a copy of the terms, so one value serves any number of learners.

    Args:
        name: what it is called.
        head: the classifier.
        terms: what is added up to the loss, by slot; the distillation's slot is ``kd``.
        base: the phases of the base task.
        increment: the phases of each later task.
        streams: ``split`` draws batches ``new`` and ``exemplars`` (old and new classes') side by
            side; ``merged`` draws one batch from new images and old exemplars, called ``merged``.
        keeps: ``everything`` replaces the exemplars by all images, for an upper bound.
    """

    name: str
    head: Head
    terms: Mapping[str, Term]
    base: tuple[Phase, ...]
    increment: tuple[Phase, ...]
    streams: Streams = "split"
    keeps: Keeps = field(default="exemplars", kw_only=True)

    def __post_init__(self) -> None:
        check_choice("head", self.head, get_args(Head))
        check_choice("streams", self.streams, get_args(Streams))
        check_choice("keeps", self.keeps, get_args(Keeps))
        object.__setattr__(self, "terms", MappingProxyType(dict(self.terms)))

    def with_term(self, slot: str, term: Term) -> "Method":
        """The same method with one slot set: added if it was free, else replaced."""
        return dataclasses.replace(self, terms={**self.terms, slot: term})
