"""Terms: weighted losses, each on some of the batches."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from densekd.checks import check_choice
from densekd.data.batches import Batch, Blend
from densekd.data.dataset import Split
from densekd.data.scenario import Task
from densekd.losses.distill import DenseDistillation
from densekd.methods.adaptive_weights import AdaptiveWeights
from densekd.nn.classifier import Head
from densekd.nn.network import Network, Outputs

Stream = Literal["new", "exemplars", "merged"]
Trains = Literal["all", "new", "weights", "bias"]
Over = Literal["new", "all"]
Vectors = Literal["stored", "recomputed"]


class View(NamedTuple):
    """One batch: its labels, and the outputs of student and teacher."""

    labels: Tensor  # int64 [B], ranks in learning order
    student: Outputs
    teacher: Outputs | None  # None in the base task, or where no term needs it
    blend: Blend | None = None  # the images and labels that mixup blended in


@dataclass(frozen=True)
class Step:
    """What terms see of a training step.

    Example:
        >>> from densekd import Step, Term
        >>> class Drift(Term):
        ...     needs_teacher = True
        ...     formula = "|f - f_old|^2"
        ...     def __call__(self, step: Step):
        ...         view = step.views["merged"]
        ...         drift = view.student.features - view.teacher.features
        ...         return drift.square().sum(1).mean()
        >>> Drift().streams
        ('merged',)
    """

    views: Mapping[Stream, View]  # the batch of each stream; the base task has no ``exemplars``
    # The sizes of the tasks learned before, in order; with an external teacher, of the blocks that
    # its classes are divided into.
    old: tuple[int, ...]
    added: int  # the number of new classes
    generator: torch.Generator  # draws groups; the same on all ranks
    network: Network  # the one being trained, for terms that use its parameters


@dataclass(frozen=True)
class TaskContext:
    """What terms see before and after a task is trained."""

    task: Task
    old: tuple[int, ...]  # the sizes of the tasks learned before
    exemplars: Split | None  # of the old classes; None if there are none
    features: Callable[[Split], Tensor]  # maps images to pooled features [n, D] by ``network``
    network: Network  # before the task, or after it
    # One epoch of new images and exemplars in one shuffle, augmented; the same on all ranks.
    batches: Callable[[], Iterator[Batch]]


class Term(ABC):
    """A weighted loss on some of the batches; most terms keep nothing from task to task.

    A subclass says what it needs: ``needs_teacher``, the teacher's outputs; ``needs_old_tasks``, a
    teacher of the old tasks, not a copy of the network itself. ``takes_mixup`` says that it can
    take blended images: it ignores labels, or counts both. ``formula`` is the term in plain text,
    where x are images of a stream, z logits, f features.

    A few say more: ``needs_head``, the only head that the term can be computed with;
    ``needs_maps``, that it compares feature maps; ``no_gradient_for``, the values of a phase's
    ``trains`` that it can't train; ``zero_in_base``, that it is 0 in the base task.

    Args:
        streams: the batches it is taken on, as far as there are such batches.

    Example:
        >>> import torch
        >>> from densekd import Term
        >>> class Decay(Term):
        ...     formula = "|z|^2"
        ...
        ...     def __call__(self, step):
        ...         return sum(view.student.logits.square().mean() for view in self.views(step))
    """

    needs_teacher = False
    needs_old_tasks = False
    takes_mixup = False
    needs_head: Head | None = None
    needs_maps = False
    no_gradient_for: tuple[Trains, ...] = ()
    zero_in_base = False
    formula = ""

    def __init__(self, streams: Iterable[Stream] = ("merged",)) -> None:
        self.streams = tuple(streams)
        for stream in self.streams:
            check_choice("stream", stream, get_args(Stream))

    @property
    def state_kind(self) -> str:
        """Names what `state_dict` gives: a term takes over only state of its own kind."""
        return type(self).__qualname__

    @property
    def takes_old(self) -> bool:
        """Whether it can take images of old classes."""
        return True

    def begin(self, context: TaskContext) -> dict[str, float]:
        """Prepare for a task before it is trained; returns numbers to record, by name."""
        return {}

    @abstractmethod
    def __call__(self, step: Step) -> Tensor:
        """The weighted loss of one step, a scalar."""

    def end(self, context: TaskContext) -> None:  # noqa: B027 - most have nothing to do
        """Update what is kept, after a task was trained."""

    def state_dict(self) -> dict[str, Tensor]:
        """What is kept from task to task, as tensors by name."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Restore what `state_dict` gave."""

    def views(self, step: Step) -> list[View]:
        """The batches of this step that the term is taken on."""
        return [step.views[stream] for stream in self.streams if stream in step.views]


class CrossEntropy(Term):
    """Cross-entropy, averaged over a batch and summed over streams.

    For a blended image, the mean over both labels, weighted by their shares. The softmax is
    ``over`` the logits of the ``new`` classes or of ``all`` seen so far, which are the same in the
    base task. Labels are smoothed in the base task only.

    Example:
        >>> from densekd import CrossEntropy
        >>> CrossEntropy(["merged"], "all", weight=0.5).formula
        '0.5 CE(z_all(x_merged), y)'
    """

    takes_mixup = True

    def __init__(
        self,
        streams: Iterable[Stream],
        over: Over,
        base_smoothing: float = 0.0,
        *,
        weight: float = 1.0,
    ) -> None:
        super().__init__(streams)
        check_choice("over", over, get_args(Over))
        if not 0 <= base_smoothing <= 1:
            raise ValueError(f"base_smoothing must be a share from 0 to 1, not {base_smoothing}.")
        self.over: Over = over
        self.base_smoothing = base_smoothing
        self.weight = weight
        factor = "" if weight == 1 else f"{weight:g} "
        self.formula = " + ".join(f"{factor}CE(z_{over}(x_{name}), y)" for name in self.streams)

    @property
    def takes_old(self) -> bool:
        """True for ``all``; the ``new`` classes' logits have none for the label of an old image."""
        return self.over == "all"

    def __call__(self, step: Step) -> Tensor:
        """``-weight log softmax(z)_y``, the mean over images."""
        losses = []
        for view in self.views(step):
            # Not the sum of `step.old`, which an external teacher divides in its own way.
            old = view.student.logits.shape[1] - step.added
            first = old if self.over == "new" else 0
            smoothing = 0.0 if old else self.base_smoothing
            logits = view.student.logits[:, first:]
            loss = cross_entropy(logits, view.labels - first, label_smoothing=smoothing)
            if view.blend is not None:
                other = view.blend.labels - first
                mixed_in = cross_entropy(logits, other, label_smoothing=smoothing)
                loss = view.blend.share * loss + (1 - view.blend.share) * mixed_in
            losses.append(loss)
        return self.weight * torch.stack(losses).sum()


@dataclass(frozen=True)
class RatioWeight:
    """CCIL's weight of the distillation: ``lambda = base (seen / new)^exponent``.

    With an exponent of 0 it is constant.
    """

    base: float
    exponent: float = 0.66

    def __post_init__(self) -> None:
        if not 0 <= self.base < math.inf or not math.isfinite(self.exponent):
            raise ValueError(
                "The weight of a distillation must be a number of at least 0, with a finite "
                f"exponent, not {self.formula}."
            )

    @property
    def formula(self) -> str:
        """The weight in plain text."""
        ratio = f" (seen/new)^{self.exponent:g}" if self.exponent else ""
        return f"{self.base:g}{ratio}"

    def of(self, old: int, new: int) -> float:
        """The weight for these numbers of old and new classes."""
        return float(self.base * ((old + new) / new) ** self.exponent)


class Distil(Term):
    """Dense distillation: ``lambda KL`` on each stream, summed.

    All streams of a step use the same drawn group.

    Args:
        streams: see `Term`.
        loss: which groups, at which temperature.
        weight: one number that depends on the numbers of classes, or one for each group.
        vectors: with adaptive weights, the class vectors of old tasks are those ``stored`` when
            they were learned, or are ``recomputed`` from the exemplars before each task.

    Example:
        >>> from densekd import AdaptiveWeights, DenseDistillation, Distil
        >>> term = Distil(["exemplars"], DenseDistillation("random"), AdaptiveWeights(20.0))
        >>> term.needs_teacher
        True
    """

    needs_teacher = needs_old_tasks = takes_mixup = True
    no_gradient_for = ("bias",)  # which corrects only the logits of new classes

    def __init__(
        self,
        streams: Iterable[Stream],
        loss: DenseDistillation,
        weight: RatioWeight | AdaptiveWeights,
        vectors: Vectors = "stored",
    ) -> None:
        super().__init__(streams)
        check_choice("vectors", vectors, get_args(Vectors))
        self.loss = loss
        self.weight = weight
        self.vectors: Vectors = vectors
        self.formula = self._formula()

    def _formula(self) -> str:
        groups = {
            "whole": "p all old classes",
            "each": "p each old task, summed",
            "random": "p a random group of old tasks",
            "every": "p every group of old tasks, averaged",
        }[self.loss.groups]
        if isinstance(self.weight, RatioWeight):
            weight = f"lambda = {self.weight.formula}"
        else:
            size = "|p|" if self.weight.ratio == "group" else "old"
            weight = f"lambda = {self.weight.lambda_base:g} sqrt({size}/new) s(p, new)"
        streams = " + ".join(f"KL_p(x_{stream})" for stream in self.streams)
        scale = f"tau = {self.loss.temperature:g}, divided by {self.loss.reduction}"
        return f"lambda [{streams}], {groups}, {weight}, {scale}"

    def begin(self, context: TaskContext) -> dict[str, float]:
        """Measure the distance of the new classes; returns lambda, or s of all old classes.

        Class vectors of old tasks that another method learned come from their exemplars.
        """
        old, added = context.old, len(context.task.classes)
        if not old:
            return {}
        if isinstance(self.weight, RatioWeight):
            return {"lambda": self.weight.of(sum(old), added)}
        # A method without class vectors may have learned the old tasks.
        if self.vectors == "recomputed" or self.weight.tasks != len(old):
            if context.exemplars is None:
                raise ValueError(
                    "The class vectors of the old tasks are computed from exemplars, but there are "
                    "none; keep some, or take a method without adaptive weights."
                )
            self.weight.replace_old(self._vectors(context, context.exemplars, 0, sum(old)), old)
        self.weight.set_new(self._task_vectors(context))
        return {"s": float(self.weight.distance(torch.ones(len(old), dtype=torch.bool)))}

    def __call__(self, step: Step) -> Tensor:
        """``sum over streams of lambda KL``, scaled as the loss says."""
        factor, weights = 1.0, None
        if isinstance(self.weight, RatioWeight):
            factor = self.weight.of(sum(step.old), step.added)
        else:
            weights = self.weight
        drawn = step.generator.get_state()
        losses = []
        for view in self.views(step):
            assert view.teacher is not None
            step.generator.set_state(drawn)
            logits = view.student.logits, view.teacher.logits
            losses.append(self.loss(*logits, step.old, generator=step.generator, weights=weights))
        return factor * torch.stack(losses).sum()

    def end(self, context: TaskContext) -> None:
        """Keep the class vectors of the task."""
        if isinstance(self.weight, AdaptiveWeights):
            self.weight.add_task(self._task_vectors(context))

    @property
    def state_kind(self) -> str:
        """The class; with adaptive weights also the similarity, which class vectors depend on."""
        kept = [] if isinstance(self.weight, RatioWeight) else [self.weight.similarity]
        return " ".join([super().state_kind, *kept])

    def state_dict(self) -> dict[str, Tensor]:
        """The class vectors of all tasks."""
        return {} if isinstance(self.weight, RatioWeight) else self.weight.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the class vectors that `state_dict` gave."""
        if isinstance(self.weight, AdaptiveWeights):
            self.weight.load_state_dict(state)

    def _task_vectors(self, context: TaskContext) -> Tensor:
        task = context.task
        return self._vectors(context, task.train, task.first, len(task.classes))

    def _vectors(self, context: TaskContext, images: Split, first: int, classes: int) -> Tensor:
        assert isinstance(self.weight, AdaptiveWeights)
        features = context.features(images)
        labels = images.labels.to(features.device) - first
        return self.weight.class_vectors(features, labels, classes)
