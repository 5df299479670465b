"""The loss of model compression: cross-entropy and dense distillation on all classes."""

import math
from dataclasses import dataclass
from typing import Literal

from densekd.losses.checks import check_temperature
from densekd.losses.distill import DenseDistillation, Groups
from densekd.methods.method import Method, Phase
from densekd.methods.schedule import Schedule
from densekd.methods.terms import CrossEntropy, Distil, RatioWeight, Term

CompressionMethod = Literal["alone", "kd", "rdkd", "fdkd"]

_GROUPS: dict[str, Groups] = {"kd": "whole", "rdkd": "random", "fdkd": "every"}


@dataclass(frozen=True)
class CompressionOptions:
    """The weights of a student's loss."""

    temperature: float = 4.0  # τ of the distillation
    labels: float = 0.1  # the weight of the cross-entropy
    teacher: float = 0.9  # the weight of the distillation
    whole: bool = False  # also distil on all classes together, besides the groups

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if not all(0 <= weight < math.inf for weight in (self.labels, self.teacher)):
            raise ValueError("The weights of labels and teacher must be numbers of at least 0.")


def compression(name: CompressionMethod, options: CompressionOptions, schedule: Schedule) -> Method:
    r"""Make the method that trains a student: ``alone``, or by ``kd``, ``rdkd`` or ``fdkd``.

    .. math:: L = 0.1\,CE + 0.9\,\tau^2 KL_p

    The divergence is summed over classes and averaged over the batch. p is all classes (``kd``),
    one random group of class blocks (``rdkd``), or all groups, averaged exactly (``fdkd``). The
    `densekd.training.phases.ExternalTeacher` defines the blocks. ``alone`` minimises CE.
    """
    if options.whole and name in ("alone", "kd"):
        raise ValueError(f"whole=True goes with rdkd and fdkd; leave it out with {name}.")
    weight = 1.0 if name == "alone" else options.labels
    terms: dict[str, Term] = {"labels": CrossEntropy(["merged"], "all", weight=weight)}
    if name != "alone":
        terms["kd"] = _distil(_GROUPS[name], options)
    if options.whole:
        terms["whole"] = _distil("whole", options)
    phases = (Phase("train", schedule),)
    return Method(name, "linear", terms, base=phases, increment=phases, streams="merged")


def _distil(groups: Groups, options: CompressionOptions) -> Distil:
    loss = DenseDistillation(groups, options.temperature, reduction="batch")
    return Distil(["merged"], loss, RatioWeight(options.teacher, exponent=0.0))
