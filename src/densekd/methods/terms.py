"""Terms: a loss, the batches it is taken on, and its weight."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from densekd.checks import check_choice
from densekd.data.dataset import Split
from densekd.data.scenario import Task
from densekd.losses.distill import DenseDistillation
from densekd.methods.weights import AdaptiveWeights
from densekd.nn.network import Outputs

Stream = Literal["new", "exemplars", "merged"]
Over = Literal["new", "all"]
Vectors = Literal["stored", "recomputed"]


class View(NamedTuple):
    """What the networks make of one batch."""

    labels: Tensor  # int64 [B], ranks in learning order
    student: Outputs
    teacher: Outputs | None  # there is none in the base task, or where no term asks for it


@dataclass(frozen=True)
class Step:
    """What terms see of a training step.

    Args:
        views: the batch of each stream; the base task has no ``exemplars``.
        old: the sizes of the tasks learned before, in order.
        added: the number of new classes.
        generator: draws groups; the same on all ranks.
    """

    views: Mapping[Stream, View]
    old: tuple[int, ...]
    added: int
    generator: torch.Generator


@dataclass(frozen=True)
class Occasion:
    """What terms see before a task is trained, and after it.

    Args:
        task: what is being learned.
        old: the sizes of the tasks learned before.
        exemplars: of the old classes; None if there are none.
        features: images to pooled features ``[n, D]``, by the network before the task or, when
            it was trained, after it.
    """

    task: Task
    old: tuple[int, ...]
    exemplars: Split | None
    features: Callable[[Split], Tensor]


class Term:
    """What terms have in common; most keep nothing from task to task.

    Args:
        streams: the batches it is taken on, as far as there are such batches.
    """

    needs_teacher = False

    def __init__(self, streams: Iterable[Stream]) -> None:
        self.streams = tuple(streams)
        for stream in self.streams:
            check_choice("stream", stream, get_args(Stream))

    def begin(self, occasion: Occasion) -> dict[str, float]:
        """Look at a task before it is trained; returns numbers worth recording, by name."""
        return {}

    def __call__(self, step: Step) -> Tensor:
        """The weighted loss of one step, a scalar."""
        raise NotImplementedError

    def end(self, occasion: Occasion) -> None:
        """Look at a task after it was trained."""

    def state_dict(self) -> dict[str, Tensor]:
        """What is kept from task to task, as tensors by name."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace what is kept by what `state_dict` gave."""

    def views(self, step: Step) -> list[View]:
        """The batches of this step that the term is taken on."""
        return [step.views[stream] for stream in self.streams if stream in step.views]


class CrossEntropy(Term):
    """Cross-entropy, averaged over a batch and summed over streams.

    Args:
        streams: the batches it is taken on.
        over: the softmax is over the logits of the ``new`` classes or of ``all`` seen so far.
            In the base task they are the same.
    """

    def __init__(self, streams: Iterable[Stream], over: Over) -> None:
        super().__init__(streams)
        check_choice("over", over, get_args(Over))
        self.over: Over = over

    def __call__(self, step: Step) -> Tensor:
        """``-log softmax(z)_y``, the mean over images."""
        first = sum(step.old) if self.over == "new" else 0
        losses = [
            cross_entropy(view.student.logits[:, first:], view.labels - first)
            for view in self.views(step)
        ]
        return torch.stack(losses).sum()


@dataclass(frozen=True)
class Ratio:
    """CCIL's weight of the distillation: ``lambda = base (seen / new)^exponent``.

    With an exponent of 0 it is constant.
    """

    base: float
    exponent: float = 0.66

    def of(self, old: int, new: int) -> float:
        """The weight with so many old and new classes."""
        return float(self.base * ((old + new) / new) ** self.exponent)


class Distil(Term):
    """Dense distillation: ``lambda KL`` on each stream, summed.

    A group that is drawn is the same for all streams of a step.

    Args:
        streams: the batches it is taken on.
        loss: which groups, at which temperature.
        weight: one number by the numbers of classes, or a weight for each group.
        vectors: with adaptive weights, the class vectors of old tasks are those ``stored`` when
            they were learned, or are ``recomputed`` from the exemplars before each task.
    """

    needs_teacher = True

    def __init__(
        self,
        streams: Iterable[Stream],
        loss: DenseDistillation,
        weight: Ratio | AdaptiveWeights,
        vectors: Vectors = "stored",
    ) -> None:
        super().__init__(streams)
        check_choice("vectors", vectors, get_args(Vectors))
        self.loss = loss
        self.weight = weight
        self.vectors: Vectors = vectors

    def begin(self, occasion: Occasion) -> dict[str, float]:
        """Compare the new classes with the old; records lambda, or s of all old classes."""
        old, added = occasion.old, len(occasion.task.classes)
        if not old:
            return {}
        if isinstance(self.weight, Ratio):
            return {"lambda": self.weight.of(sum(old), added)}
        if self.vectors == "recomputed":
            if occasion.exemplars is None:
                raise ValueError("vectors='recomputed' needs exemplars of the old classes.")
            self.weight.revise(self._vectors(occasion, occasion.exemplars, 0, sum(old)))
        self.weight.face(self._task_vectors(occasion))
        return {"s": float(self.weight.distance(torch.ones(len(old), dtype=torch.bool)))}

    def __call__(self, step: Step) -> Tensor:
        """``sum over streams of lambda KL``, scaled as the loss says."""
        factor, weights = 1.0, None
        if isinstance(self.weight, Ratio):
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

    def end(self, occasion: Occasion) -> None:
        """Keep the class vectors of the task."""
        if isinstance(self.weight, AdaptiveWeights):
            self.weight.remember(self._task_vectors(occasion))

    def state_dict(self) -> dict[str, Tensor]:
        """The class vectors of all tasks."""
        return {} if isinstance(self.weight, Ratio) else self.weight.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace the class vectors by those that `state_dict` gave."""
        if isinstance(self.weight, AdaptiveWeights):
            self.weight.load_state_dict(state)

    def _task_vectors(self, occasion: Occasion) -> Tensor:
        task = occasion.task
        return self._vectors(occasion, task.train, task.first, len(task.classes))

    def _vectors(self, occasion: Occasion, images: Split, first: int, classes: int) -> Tensor:
        assert isinstance(self.weight, AdaptiveWeights)
        features = occasion.features(images)
        labels = images.labels.to(features.device) - first
        return self.weight.class_vectors(features, labels, classes)
