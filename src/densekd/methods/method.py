"""A method as a value: what it adds up, on which batches, for how long, and how it predicts."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from densekd.checks import check_choice
from densekd.data.augment import Strength
from densekd.methods.schedule import Schedule
from densekd.methods.terms import Term
from densekd.nn.classifier import Head

PhaseData = Literal["streams", "balanced", "held-out"]
Trains = Literal["all", "new", "weights", "bias"]
Predictor = Literal["head", "nearest-mean"]
Streams = Literal["split", "merged"]
Keeps = Literal["exemplars", "everything"]
TeacherSource = Literal["before", "self"]


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
