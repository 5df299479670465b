"""A method as a value (losses, phases, how it predicts), its published settings and its spec."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Generic, Literal, TypeVar, get_args

from densekd.checks import check_choice
from densekd.data.augment import Strength
from densekd.data.selection import Selection
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.terms import Stream, Term, Trains
from densekd.nn.classifier import Head

PhaseData = Literal["streams", "balanced", "held-out"]
Predictor = Literal["head", "nearest-mean"]
Streams = Literal["split", "merged"]
Keeps = Literal["exemplars", "everything"]
TeacherSource = Literal["before", "self"]
DataKind = Literal["digits", "small", "imagenet100", "imagenet"]

# The end of a sentence about a phase and some of its terms.
_NO_OLD = "has images of old classes, which {} can't take; set over='all', or change its streams."
_IMPRINTED: tuple[Head, ...] = ("cosine", "proxies")  # the heads whose weights are directions

_Options = TypeVar("_Options")


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one schedule.

    Example:
        >>> from densekd import Phase, Schedule
        >>> Phase("balance", Schedule(epochs=10, lr=0.01), data="balanced").trains
        'all'
    """

    name: str  # unique within a task; it seeds the phase's batches
    schedule: Schedule
    # The method's ``streams``; or, as the stream ``merged``, equal numbers of exemplars of all
    # classes (``balanced``), or the images ``held-out`` from training.
    data: PhaseData = "streams"
    # ``all`` parameters but a bias correction, the same without the weights of old classes
    # (``new``), only the classes' ``weights``, or only the ``bias`` correction.
    trains: Trains = "all"
    slots: tuple[str, ...] | None = None  # the terms that count; None for all
    fixed_statistics: bool = False  # batch norm uses its running statistics, without updates
    # The network ``before`` the task; or ``self``, a frozen copy of the network being trained,
    # taken when the phase starts, also in the base task. ``self`` needs ``slots``.
    teacher: TeacherSource = "before"
    augment: Strength = "usual"  # see `densekd.data.augment.Augment.of`
    # Blends images by shares from Beta(mixup, mixup); 0 for none. Only for terms that take blended
    # images: see `densekd.methods.terms.Term`.
    mixup: float = 0.0
    # The factor of the learning rate for each parameter that is trained, by its name in the
    # network, such as ``backbone.conv1.weight``; None trains what ``trains`` says at one rate.
    rates: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, Schedule):
            raise ValueError(
                f"The phase {self.name!r}: schedule must be a Schedule, not "
                f"{type(self.schedule).__name__}."
            )
        check_choice("data", self.data, get_args(PhaseData))
        check_choice("trains", self.trains, get_args(Trains))
        check_choice("teacher", self.teacher, get_args(TeacherSource))
        check_choice("augment", self.augment, get_args(Strength))
        if self.teacher == "self" and self.slots is None:
            raise ValueError(
                f"The phase {self.name!r} has itself for a teacher: give the slots that learn "
                "from it, since others learn from the network before the task."
            )
        if not 0 <= self.mixup < math.inf:
            raise ValueError(
                f"The phase {self.name!r}: mixup must be a number of at least 0, not {self.mixup}."
            )
        rates = self.rates
        if rates is not None and not (rates and all(0 <= x < math.inf for x in rates.values())):
            raise ValueError(
                f"The phase {self.name!r}: rates must be numbers of at least 0 for one or more "
                f"parameters, not {dict(rates)}; leave them out to train all."
            )

    def counts(self, slot: str) -> bool:
        """Whether the term of a slot counts in this phase."""
        return self.slots is None or slot in self.slots


@dataclass(frozen=True)
class Method:
    """A way of learning, as a value; one value serves any number of learners.

    A combination that can't be trained, such as a slot without a term or a phase without a loss,
    raises a ValueError that says what to change.

    Example:
        >>> from densekd import CrossEntropy, Method, Phase, Schedule
        >>> terms = {"classify": CrossEntropy(["new", "exemplars"], over="all")}
        >>> train = (Phase("train", Schedule(epochs=2)),)
        >>> method = Method("replay", "linear", terms, base=train, increment=train)
        >>> print(method.terms["classify"].formula)
        CE(z_all(x_new), y) + CE(z_all(x_exemplars), y)
    """

    name: str
    head: Head  # the classifier
    terms: Mapping[str, Term]  # the losses to add up, by slot; the distillation's slot is ``kd``
    base: tuple[Phase, ...]  # of the base task
    increment: tuple[Phase, ...]  # of each later task
    # ``split`` draws separate batches of ``new`` images and of ``exemplars``, which are of old and
    # new classes; ``merged`` draws one batch from new images and old exemplars.
    streams: Streams = "split"
    _: KW_ONLY
    keeps: Keeps = "exemplars"  # ``everything`` replays all images, for an upper bound
    predicts: Predictor = "head"  # by the classifier, or by the nearest mean of exemplars
    imprints: bool = False  # new weights start from the old network's features of the new images
    # The share of each class's exemplars kept out of the streams, for phases on ``held-out`` data.
    held_out: float = 0.0

    def __post_init__(self) -> None:
        check_choice("head", self.head, get_args(Head))
        check_choice("streams", self.streams, get_args(Streams))
        check_choice("keeps", self.keeps, get_args(Keeps))
        check_choice("predicts", self.predicts, get_args(Predictor))
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out must be a share from 0 to below 1, not {self.held_out}.")
        self._check_kinds()
        object.__setattr__(self, "terms", MappingProxyType(dict(self.terms)))
        for phases in (self.base, self.increment):
            names = [phase.name for phase in phases]
            if len(set(names)) < len(names):
                raise ValueError(f"{self.name}: two phases of a task have the same name: {names}.")
        if not any(phase.data == "streams" for phase in self.base) or not self.increment:
            raise ValueError(
                f"{self.name}: the base task needs a phase with data='streams', since it has no "
                "exemplars, and later tasks need a phase; add them to base and increment."
            )
        self._check_head()
        for slot, term in self.terms.items():
            self._check_streams(slot, term)
        for phase, base in self._phases():
            self._check_phase(phase, base)

    def _check_kinds(self) -> None:
        """Refuse values of wrong types, which would fail later with an unclear error."""

        def refuse(what: str, wanted: str, given: object) -> None:
            raise ValueError(f"{self.name}: {what} must be {wanted}, not {type(given).__name__}.")

        if not isinstance(self.terms, Mapping):
            refuse("terms", "a mapping from slots to terms", self.terms)
        for slot, term in self.terms.items():
            if not isinstance(term, Term):
                refuse(f"the term {slot!r}", "a Term", term)
            if not hasattr(term, "streams"):
                raise ValueError(
                    f"{self.name}: the term {slot!r} has no streams; call super().__init__ in its "
                    "__init__."
                )
        for what, phases in (("base", self.base), ("increment", self.increment)):
            each = phases if isinstance(phases, tuple | list) else (phases,)
            wrong = [phase for phase in each if not isinstance(phase, Phase)]
            if wrong or each is not phases:
                refuse(what, "a tuple of phases", wrong[0] if wrong else phases)

    def _check_head(self) -> None:
        """Refuse what the head can't do."""
        if self.imprints and self.head not in _IMPRINTED:
            raise ValueError(
                f"{self.name}: imprints goes with the heads {', '.join(_IMPRINTED)}, not with "
                f"{self.head!r}; take one of them, or set imprints=False."
            )
        for slot, term in self.terms.items():
            if term.needs_head not in (None, self.head):
                raise ValueError(
                    f"{self.name}: the term {slot!r} needs head={term.needs_head!r}, not "
                    f"{self.head!r}; change the head, or leave the term out."
                )

    def with_term(self, slot: str, term: Term) -> "Method":
        """The same method with one slot set: added if it was free, else replaced."""
        return dataclasses.replace(self, terms={**self.terms, slot: term})

    def _phases(self) -> Iterator[tuple[Phase, bool]]:
        """All phases, and whether each is of the base task."""
        yield from ((phase, True) for phase in self.base)
        yield from ((phase, False) for phase in self.increment)

    def check_replay(self) -> None:
        """Refuse terms that can't take the exemplars in merged batches.

        Without exemplars such a method can be trained, so check this once the memory is known.
        """
        for phase in self.increment:
            terms = {slot: term for slot, term in self.terms.items() if phase.counts(slot)}
            _refuse(f"{self.name}: the phase {phase.name!r} of a task", _only_new(terms), _NO_OLD)

    def streams_of(self, phase: Phase, exemplars: bool) -> set[Stream]:
        """The streams that a phase has batches of, with or without exemplars."""
        if phase.data != "streams" or self.streams == "merged":
            return {"merged"}
        return {"new", "exemplars"} if exemplars else {"new"}

    def _check_streams(self, slot: str, term: Term) -> None:
        """Refuse a term on batches that it never gets."""
        phases = [(phase, base) for phase, base in self._phases() if phase.counts(slot)]
        fed = set[Stream]().union(*(self.streams_of(phase, not base) for phase, base in phases))
        if not fed:
            raise ValueError(
                f"{self.name}: no phase counts the term {slot!r}; add it to a phase's slots, or "
                "leave it out."
            )
        missing = [stream for stream in term.streams if stream not in fed]
        if missing or not term.streams:
            raise ValueError(
                f"{self.name}: the term {slot!r} is taken on {', '.join(missing) or 'no'} batches, "
                f"but its phases have only {', '.join(sorted(fed))}; change its streams."
            )

    def _check_phase(self, phase: Phase, base: bool) -> None:
        """Refuse a phase whose terms are missing, or can't be computed in it."""
        place = f"{self.name}: the phase {phase.name!r} of {'the base task' if base else 'a task'}"
        fed, taught = self.streams_of(phase, not base), phase.teacher == "self" or not base
        terms = {
            slot: term
            for slot, term in self.terms.items()
            if phase.counts(slot)
            and (fed & set(term.streams) or not base)
            and (taught or not term.needs_teacher)
            and not (base and term.zero_in_base)
        }

        refuse = functools.partial(_refuse, place)
        refuse(
            [slot for slot in phase.slots or () if slot not in self.terms],
            f"counts {{}}, but the slots are {', '.join(self.terms)}; correct or add them.",
        )
        if not terms:
            raise ValueError(
                f"{place} has no loss; give it a term that needs no teacher and has its batches."
            )
        refuse(
            [slot for slot, term in terms.items() if not fed & set(term.streams)],
            f"counts {{}}, but has only {', '.join(sorted(fed))} batches; leave it out of slots.",
        )
        self._check_trained(place, phase, terms)
        if not base and (phase.data != "streams" or self.streams == "split"):
            refuse(_only_new(terms), _NO_OLD)
        if phase.mixup:
            refuse(
                [slot for slot, term in terms.items() if not term.takes_mixup],
                "blends images, which {} can't take; set mixup=0, or take a CrossEntropy.",
            )
        if phase.teacher == "self":
            refuse(
                [slot for slot, term in terms.items() if term.needs_old_tasks],
                "has itself for a teacher, but {} needs one of the old tasks; leave it out of its "
                "slots, or set teacher='before'.",
            )

    def _check_trained(self, place: str, phase: Phase, terms: Mapping[str, Term]) -> None:
        """Refuse a phase that would be skipped, or whose terms can't train what it trains."""
        if phase.data == "held-out" and not self.held_out:
            raise ValueError(
                f"{place} is on held-out images, but held_out is 0; set it, or leave the phase out."
            )
        if phase.rates is not None:
            return
        if phase.trains == "bias" and self.head != "bias":
            raise ValueError(
                f"{place} trains a bias correction, which the head {self.head!r} doesn't have; "
                "take head='bias', or change trains."
            )
        if all(phase.trains in term.no_gradient_for for term in terms.values()):
            raise ValueError(
                f"{place} trains only the {phase.trains}, which {', '.join(map(repr, terms))} "
                "can't train; count another term in it, or change trains."
            )


def _refuse(place: str, slots: list[str], sentence: str) -> None:
    """Raise a ValueError about the terms of these slots, if there are any."""
    if slots:
        raise ValueError(f"{place} {sentence.format(', '.join(map(repr, slots)))}")


def _only_new(terms: Mapping[str, Term]) -> list[str]:
    """The slots of terms that get images of old classes but can't take them."""
    old: set[Stream] = {"exemplars", "merged"}
    return [slot for slot, term in terms.items() if old & set(term.streams) and not term.takes_old]


@dataclass(frozen=True)
class Published(Generic[_Options]):
    """The settings that a method was published with for one kind of data."""

    options: _Options  # the method's own
    schedules: Schedules
    network: str | None = None  # the backbone; None for the usual one for such data
    selection: Selection = "herding"  # of exemplars
    brightness: float = 0.0  # how much brighter or darker images are made at random
    lambda_factor: float = 1.0  # multiplies lambda of a distillation combined with the method


@dataclass(frozen=True)
class MethodSpec(Generic[_Options]):
    """What defines a named method; `densekd.methods.registry` lists all specs.

    Example:
        >>> from densekd import DenseOptions, MethodSpec, Schedules, make_method
        >>> def build(options: DenseOptions, schedules: Schedules):
        ...     return make_method("rdkd", options, schedules)
        >>> spec = MethodSpec("mine", "RDKD by another name", DenseOptions, build)
        >>> spec.make(None, Schedules()).name
        'rdkd'
    """

    name: str  # such as ``icarl-softmax``
    summary: str  # one line for ``densekd methods``
    options: type[_Options]  # a dataclass, each option with a default
    build: Callable[[_Options, Schedules], Method]
    # The settings of a baseline by kind of data, at least ``small``, which also serves the kinds
    # that are missing. The paper's own methods have none.
    published: Mapping[DataKind, Published[_Options]] = field(default_factory=dict)
    network_prefix: str = ""  # the names of backbones that the method is meant for begin with it
    network_reason: str = ""  # what is wrong with other backbones, for a warning

    @property
    def key(self) -> str:
        """The section of its options in a configuration, such as ``icarl_softmax`` in [method]."""
        return self.name.replace("-", "_")

    def published_for(self, kind: DataKind) -> Published[_Options]:
        """The published settings for a kind of data, or for the kind most like it."""
        if kind == "imagenet100" and kind not in self.published:
            kind = "imagenet"
        return self.published.get(kind, self.published["small"])

    def make(self, options: object | None, schedules: Schedules) -> Method:
        """Build the method; None stands for the default options."""
        if options is None:
            options = self.options()
        if not isinstance(options, self.options):
            raise ValueError(f"{type(options).__name__} are not the options of {self.name}.")
        return self.build(options, schedules)
