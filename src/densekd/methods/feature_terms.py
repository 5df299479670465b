"""Terms that penalise the distance between the features of student and teacher."""

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from densekd.losses.feature import less_forget, pod_spatial
from densekd.methods.terms import RatioWeight, Step, Stream, TaskContext, Term
from densekd.nn.network import Outputs


@dataclass(frozen=True)
class OldRatioWeight:
    """UCIR's weight: ``lambda = base sqrt(old / new)``, where others have seen / new."""

    base: float

    @property
    def formula(self) -> str:
        """The weight in plain text."""
        return f"{self.base:g} sqrt(old/new)"

    def of(self, old: int, new: int) -> float:
        """The weight for these numbers of old and new classes."""
        return self.base * math.sqrt(old / new)


Weight = RatioWeight | OldRatioWeight


class FeatureTerm(Term):
    """``lambda`` times a distance between student and teacher, summed over streams.

    Args:
        streams: the batches it is taken on.
        weight: lambda.
    """

    needs_teacher = takes_mixup = True
    reads = "distance"  # the distance, in a formula

    def __init__(self, streams: Iterable[Stream], weight: Weight) -> None:
        super().__init__(streams)
        self.weight = weight

    @property
    def formula(self) -> str:
        """The term in plain text."""
        return f"lambda [{self.reads}], lambda = {self.weight.formula}"

    def begin(self, context: TaskContext) -> dict[str, float]:
        """Records lambda."""
        return {"lambda": self.weight.of(sum(context.old), len(context.task.classes))}

    def __call__(self, step: Step) -> Tensor:
        """``sum over streams of lambda distance``, a scalar."""
        distances = []
        for view in self.views(step):
            assert view.teacher is not None
            distances.append(self.distance(view.student, view.teacher))
        return self.weight.of(sum(step.old), step.added) * torch.stack(distances).sum()

    @abstractmethod
    def distance(self, student: Outputs, teacher: Outputs) -> Tensor:
        """The distance on one batch, a scalar."""


class LessForget(FeatureTerm):
    """UCIR's less-forget constraint and PODNet's POD-flat: ``1 - cos`` of pooled features."""

    reads = "1 - cos(f(x), teacher's f(x))"

    def distance(self, student: Outputs, teacher: Outputs) -> Tensor:
        """See `densekd.losses.feature.less_forget`."""
        return less_forget(student.features, teacher.features)


class PodSpatial(FeatureTerm):
    """PODNet's POD-spatial, on the last map of each stage."""

    reads = "|pooled maps - teacher's pooled maps|"

    def distance(self, student: Outputs, teacher: Outputs) -> Tensor:
        """See `densekd.losses.feature.pod_spatial`."""
        return pod_spatial(student.maps, teacher.maps)
