"""A method as a value: what it adds up, on which batches, for how long, and how it predicts."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from densekd.checks import check_choice
from densekd.data.augment import Strength
from densekd.methods.terms import Term
from densekd.nn.heads import Head

Decay = Literal["cosine", "milestones", "constant"]
PhaseData = Literal["streams", "balanced", "held-out"]
Trains = Literal["all", "new", "weights", "bias"]
Predictor = Literal["head", "nearest-mean"]
Streams = Literal["split", "merged"]
Keeps = Literal["exemplars", "everything"]
TeacherSource = Literal["before", "self"]


@dataclass(frozen=True)
class Schedule:
    """How a phase is trained: SGD with momentum, its learning rate set anew for each epoch.

    Args:
        epochs: how often all new images are seen.
        lr: the learning rate of the first epoch.
        decay: ``cosine`` from ``lr`` to ``lr_end``, ``milestones``, or ``constant``.
        lr_end: where the cosine ends.
        milestones: the epochs from which the rate is ``factor`` times what it was.
        batch_size: of each stream, over all ranks.
        momentum: of SGD.
        weight_decay: on all parameters.
        clamp: each number of a gradient is kept between plus and minus this.
        factor: what the rate is multiplied by at each milestone.
    """

    epochs: int = 70
    lr: float = 0.1
    decay: Decay = "cosine"
    lr_end: float = 1e-4
    milestones: tuple[int, ...] = ()
    batch_size: int = 128
    momentum: float = 0.9
    weight_decay: float = 1e-4
    clamp: float | None = None
    factor: float = 0.1

    def __post_init__(self) -> None:
        check_choice("decay", self.decay, get_args(Decay))
        if self.epochs < 1 or self.batch_size < 1 or not 0 < self.lr < math.inf:
            raise ValueError(
                f"Can't train for {self.epochs} epochs at rate {self.lr} "
                f"in batches of {self.batch_size}."
            )
        if not all(0 <= x < math.inf for x in (self.lr_end, self.momentum, self.weight_decay)):
            raise ValueError("lr_end, momentum and weight_decay must be numbers of at least 0.")
        if self.milestones and self.decay != "milestones":
            raise ValueError(f"milestones go with decay='milestones', not {self.decay!r}.")

    def lr_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        if self.decay == "cosine":
            share = (1 + math.cos(math.pi * epoch / self.epochs)) / 2
            return self.lr_end + (self.lr - self.lr_end) * share
        return self.lr * self.factor ** sum(epoch >= milestone for milestone in self.milestones)

    def scaled(self, share: float) -> "Schedule":
        """The same schedules in ``share`` of the epochs, at least one."""
        epochs = max(1, round(self.epochs * share))
        # Never 0: the first epoch is at the full rate, however few there are.
        milestones = tuple(max(1, round(m * epochs / self.epochs)) for m in self.milestones)
        return dataclasses.replace(self, epochs=epochs, milestones=milestones)


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one schedule.

    Args:
        name: what it is called; no two phases of a task have the same.
        schedule: for how long and how fast.
        data: the method's ``streams``; or, as the stream ``merged``, exemplars of all classes in
            equal numbers (``balanced``), or what was ``held-out`` from both.
        trains: ``all`` parameters but a bias correction, the same without the weights of old
            classes (``new``), only the classes' ``weights``, or only the ``bias`` correction.
        slots: the terms that count; all unless given.
        fixed_statistics: batch norm uses its running statistics, and leaves them as they are.
        teacher: the network ``before`` the task; or, also in the base task, what is trained
            it``self``, as it was when the phase began. Then the slots have to be given.
        augment: as ``usual``, or ``heavy``; see `densekd.data.augment.Augment.of`.
        mixup: alpha of the share by which images are blended, 0 for none; for phases whose
            labels only a `densekd.methods.terms.CrossEntropy` looks at.
    """

    name: str
    schedule: Schedule
    data: PhaseData = "streams"
    trains: Trains = "all"
    slots: tuple[str, ...] | None = None
    fixed_statistics: bool = False
    teacher: TeacherSource = "before"
    augment: Strength = "usual"
    mixup: float = 0.0

    def __post_init__(self) -> None:
        check_choice("data", self.data, get_args(PhaseData))
        check_choice("trains", self.trains, get_args(Trains))
        check_choice("teacher", self.teacher, get_args(TeacherSource))
        check_choice("augment", self.augment, get_args(Strength))
        if self.teacher == "self" and self.slots is None:
            raise ValueError(
                f"The phase {self.name!r} has itself for a teacher: give the slots that learn "
                "from it, since others learn from the network before the task."
            )


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
        predicts: by the classifier (``head``), or by the nearest mean of exemplars.
        imprints: new weights start from the old network's features of the new images.
        held_out: the share of a class's exemplars that are kept from the streams, from the task
            on that brought the class, for a phase on ``held-out`` data.
    """

    name: str
    head: Head
    terms: Mapping[str, Term]
    base: tuple[Phase, ...]
    increment: tuple[Phase, ...]
    streams: Streams = "split"
    keeps: Keeps = field(default="exemplars", kw_only=True)
    predicts: Predictor = field(default="head", kw_only=True)
    imprints: bool = field(default=False, kw_only=True)
    held_out: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        check_choice("head", self.head, get_args(Head))
        check_choice("streams", self.streams, get_args(Streams))
        check_choice("keeps", self.keeps, get_args(Keeps))
        check_choice("predicts", self.predicts, get_args(Predictor))
        object.__setattr__(self, "terms", MappingProxyType(dict(self.terms)))

    def with_term(self, slot: str, term: Term) -> "Method":
        """The same method with one slot set: added if it was free, else replaced."""
        return dataclasses.replace(self, terms={**self.terms, slot: term})
