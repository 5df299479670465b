"""CCIL: GKD on two streams, with optional additions to the base task."""

import dataclasses
import math
from dataclasses import dataclass

from torch import Tensor

from densekd.data.augment import Strength
from densekd.losses.distill import DenseDistillation
from densekd.methods.method import Method, MethodSpec, Phase, Published
from densekd.methods.paper import DenseOptions, dense
from densekd.methods.schedule import DIGITS_SCHEDULE, Schedule, Schedules, same_for_all, stepped
from densekd.methods.terms import CrossEntropy, Step, Term


@dataclass(frozen=True)
class CcilOptions:
    """The options of main_cifar.py in CCIL's code, essentials_for_CIL.

    The additions to the base task are off, as in its scripts.
    """

    lambda_base: float = 5.0  # --lamda, times (seen / new)^lambda_exponent; 100, 600 on ImageNet
    lambda_exponent: float = 0.66  # --pow; 0 for a constant
    temperature: float = 2.0  # --T and --T-sd: tau of both distillations
    base_smoothing: float = 0.0  # --smoothing-alpha: of the base task's labels; CCIL's is 0.1
    # --num-sd: how often the base task is trained again with its own result as the teacher; CCIL's
    # is 1 on CIFAR, 4 on ImageNet-100 and 2 on ImageNet.
    generations: int = 0
    self_weight: float = 10.0  # --lamda-sd: of the distillation from that teacher
    # --mixup-alpha: blends the base task's images by shares from Beta(mixup, mixup); CCIL's is 0.1.
    mixup: float = 0.0
    heavy_augmentation: bool = False  # --aug: also Cutout and AutoAugment in the base task

    def __post_init__(self) -> None:
        if not 0 <= self.generations <= 100:
            raise ValueError(f"generations must be from 0 to 100, not {self.generations}.")
        if not 0 <= self.mixup < math.inf:
            raise ValueError(f"mixup must be a number of at least 0, not {self.mixup}.")


# main_cifar.py: --epochs-sd, --lr-sd, and the end of its cosine.
GENERATION = Schedule(70, 0.1, "cosine", lr_end=1e-3, batch_size=100, weight_decay=5e-4)


class SelfDistil(Term):
    """Distillation from the network as it was when the phase began, over all of its classes."""

    needs_teacher = takes_mixup = True

    def __init__(self, weight: float, temperature: float) -> None:
        super().__init__(["new"])
        self.weight = weight
        self.loss = DenseDistillation("whole", temperature)
        self.formula = f"{weight:g} KL(z(x_new)), the teacher being the network before the phase"

    def __call__(self, step: Step) -> Tensor:
        """``weight tau^2 KL``, the mean over images and classes."""
        view = step.views["new"]
        assert view.teacher is not None
        teacher = view.teacher.logits
        loss: Tensor = self.loss(view.student.logits, teacher, teacher.shape[1:])
        return self.weight * loss


def ccil(options: CcilOptions, schedules: Schedules) -> Method:
    r"""CCIL: `dense`'s ``gkd`` with CCIL's constants.

    .. math:: L = CE(z_{new}(x_n)) + CE(z_{all}(x_e)) + \lambda (KL(x_n) + KL(x_e)), \quad
        \lambda = \lambda_{base} (seen / new)^{0.66}

    With ``generations``, more phases of the base task follow, by ``schedules.finish`` or
    `GENERATION`, with a copy of the network as the teacher: :math:`L = CE(z(x_n)) + w \, KL(x_n)`.
    ``mixup`` and ``heavy_augmentation`` apply to all phases of the base task, and to no other.
    """
    of_gkd = DenseOptions(
        lambda_base=options.lambda_base,
        lambda_exponent=options.lambda_exponent,
        temperature=options.temperature,
    )
    gkd = dense("gkd", of_gkd, schedules)
    terms = {**gkd.terms, "new": CrossEntropy(["new"], "new", options.base_smoothing)}
    base, increment = gkd.base, gkd.increment
    if options.generations:
        increment = tuple(dataclasses.replace(p, slots=tuple(terms)) for p in increment)
        again = Phase("", schedules.finish or GENERATION, slots=("new", "self"), teacher="self")
        numbers = range(1, options.generations + 1)
        base += tuple(dataclasses.replace(again, name=f"generation {n}") for n in numbers)
        terms["self"] = SelfDistil(options.self_weight, options.temperature)
    strength: Strength = "heavy" if options.heavy_augmentation else "usual"
    base = tuple(dataclasses.replace(p, augment=strength, mixup=options.mixup) for p in base)
    return dataclasses.replace(gkd, name="ccil", terms=terms, base=base, increment=increment)


def _published(lambda_base: float, schedules: Schedules) -> Published[CcilOptions]:
    return Published(CcilOptions(lambda_base), schedules, selection="random")


def _on_imagenet(weight_decay: float) -> Schedules:
    return Schedules(
        stepped(70, 0.1, milestones=(30, 60), weight_decay=weight_decay),
        stepped(70, 0.01, milestones=(20, 35), weight_decay=weight_decay),
    )


CCIL = MethodSpec(
    "ccil",
    "separate softmax and batches, gkd",
    CcilOptions,
    ccil,
    {
        "small": _published(
            5.0,
            Schedules(
                Schedule(120, 0.1, batch_size=100, weight_decay=5e-4),
                Schedule(120, 0.01, batch_size=100, weight_decay=5e-4),
            ),
        ),
        "imagenet100": _published(100.0, _on_imagenet(5e-4)),
        "imagenet": _published(600.0, _on_imagenet(1e-4)),
        "digits": _published(0.5, same_for_all(DIGITS_SCHEDULE)),
    },
)
