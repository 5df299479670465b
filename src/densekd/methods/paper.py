"""The paper's methods: GKD, TKD, FDKD and RDKD, with or without adaptive weights."""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Literal, get_args

from densekd.checks import check_choice
from densekd.losses.distill import DenseDistillation, Direction, Groups, Reduction, Single
from densekd.methods.adaptive_weights import AdaptiveWeights, Similarity, SizeRatio
from densekd.methods.method import Method, MethodSpec, Phase, Streams
from densekd.methods.schedule import Schedules, same_for_all
from densekd.methods.terms import CrossEntropy, Distil, RatioWeight, Stream, Term, Vectors
from densekd.nn.classifier import Head

DistilOn = Literal["both", "new"]

_GROUPS: dict[str, Groups] = {"gkd": "whole", "tkd": "each", "fdkd": "every", "rdkd": "random"}
# All distillations, by name, with what `densekd methods` says of them.
DISTILLATIONS = {
    "gkd": "distils on all old classes together (Eq. 1)",
    "tkd": "distils on each old task by itself (Eq. 2)",
    "fdkd": "distils on every group of old tasks, exactly (Eq. 3)",
    "rdkd": "distils on a random group of old tasks at each step (Eq. 4)",
    "gkd-adaptive": "gkd with the adaptive weight (Eq. 5)",
    "tkd-adaptive": "tkd with the adaptive weight",
    "fdkd-adaptive": "fdkd with the adaptive weight",
    "rdkd-adaptive": "rdkd with the adaptive weight: the paper's full method",
}


@dataclass(frozen=True)
class DenseOptions:
    """What the paper leaves open, with our defaults; docs/decisions/012 says why.

    `densekd.DenseDistillation` explains ``temperature`` to ``per_image``, `densekd.AdaptiveWeights`
    explains ``similarity`` and ``size_ratio``, which is its ``ratio``.

    Example:
        >>> from densekd import DenseOptions
        >>> DenseOptions(temperature=4).lambda_base
        5.0
    """

    lambda_base: float = 5.0  # the weight of the distillation, before it is scaled
    lambda_exponent: float = 0.66  # lambda = lambda_base (seen / new)^exponent, if not adaptive
    temperature: float = 2.0
    reduction: Reduction = "pool"
    tau_squared: bool = True
    direction: Direction = "teacher"
    total: bool | None = None
    skip_base: bool = False
    single: Single = "keep"
    draws: int | None = None
    per_image: bool = False
    distil_on: DistilOn = "both"  # both batches, or only that of ``new`` images
    # Split: one cross-entropy over the new logits for new images, and one over all logits for
    # exemplars. Merged: one over all logits for both in one batch.
    streams: Streams = "split"
    similarity: Similarity = "literal"
    size_ratio: SizeRatio = "group"
    vectors: Vectors = "stored"  # class vectors of old tasks; or ``recomputed`` from exemplars
    head: Head = "cosine"

    def __post_init__(self) -> None:
        check_choice("distil_on", self.distil_on, get_args(DistilOn))
        if not 0 <= self.lambda_base < math.inf:
            raise ValueError(f"lambda_base must be at least 0, not {self.lambda_base}.")
        if self.distil_on == "new" and self.streams == "merged":
            raise ValueError("distil_on='new' goes with streams='split', which has such batches.")


def dense(name: str, options: DenseOptions, schedules: Schedules) -> Method:
    r"""One of the paper's methods: ``gkd``, ``tkd``, ``fdkd``, ``rdkd``, or one with ``-adaptive``.

    .. math:: L = CE(z_{new}(x_n)) + CE(z_{all}(x_e)) + \lambda (KL(x_n) + KL(x_e))

    with a batch of new images :math:`x_n` and one of exemplars :math:`x_e`.
    """
    method = dataclasses.replace(finetune(options, schedules), name=name)
    return method.with_term("kd", distillation(name, options))


def distillation(name: str, options: DenseOptions) -> Distil:
    """The term of slot ``kd``, for one of `DISTILLATIONS`."""
    if name not in DISTILLATIONS:
        raise ValueError(f"There is no distillation {name!r}; there are {', '.join(_GROUPS)}.")
    kind, _, adaptive = name.partition("-")
    loss = DenseDistillation(
        _GROUPS[kind],
        options.temperature,
        options.reduction,
        options.tau_squared,
        direction=options.direction,
        total=options.total,
        skip_base=options.skip_base,
        single=options.single,
        draws=options.draws,
        per_image=options.per_image,
    )
    weight: RatioWeight | AdaptiveWeights
    if adaptive:
        weight = AdaptiveWeights(options.lambda_base, options.similarity, options.size_ratio)
    else:
        weight = RatioWeight(options.lambda_base, options.lambda_exponent)
    streams: tuple[Stream, ...] = ("merged",)
    if options.streams == "split":
        streams = ("new",) if options.distil_on == "new" else ("new", "exemplars")
    return Distil(streams, loss, weight, options.vectors)


def finetune(options: DenseOptions, schedules: Schedules) -> Method:
    """Replay without distillation: only the exemplars keep the old classes."""
    terms: dict[str, Term] = {"merged": CrossEntropy(["merged"], "all")}
    if options.streams == "split":
        terms = {
            "new": CrossEntropy(["new"], "new"),
            "exemplars": CrossEntropy(["exemplars"], "all"),
        }
    return Method(
        "finetune",
        options.head,
        terms,
        base=(Phase("train", schedules.base),),
        increment=(Phase("train", schedules.increment),),
        streams=options.streams,
    )


def joint(options: DenseOptions, schedules: Schedules) -> Method:
    """An upper bound: trains each task on all images so far, by the base task's schedule."""
    merged = DenseOptions(streams="merged", head=options.head)
    plain = finetune(merged, same_for_all(schedules.base))
    return dataclasses.replace(plain, name="joint", keeps="everything")


PAPER_METHODS = (
    MethodSpec("finetune", "replay of exemplars, no distillation", DenseOptions, finetune),
    MethodSpec("joint", "upper bound: all images of all tasks so far", DenseOptions, joint),
    *(
        MethodSpec(name, summary, DenseOptions, functools.partial(dense, name))
        for name, summary in DISTILLATIONS.items()
    ),
)
