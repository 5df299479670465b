"""BiC: distillation weighted by the share of old classes, then a correction of new logits."""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from densekd.losses.checks import check_temperature
from densekd.losses.classify import soft_cross_entropy
from densekd.methods.method import Method, MethodSpec, Phase, Published
from densekd.methods.schedule import DIGITS_SCHEDULE, Schedule, Schedules, same_for_all, stepped
from densekd.methods.terms import CrossEntropy, Step, Term
from densekd.nn.classifier import BiasClassifier


@dataclass(frozen=True)
class BicOptions:
    """BiC's constants, of LargeScaleIncrementalLearning."""

    temperature: float = 2.0  # resnet.py: tau of the distillation
    gamma_decay: float = 0.1  # resnet.py: the bias stage adds ``gamma_decay gamma^2 / 2``
    # imagenet_main.py, nb_val: the share of a class's exemplars that only bias stages train on.
    held_out: float = 0.1


# LargeScaleIncrementalLearning, imagenet_main.py. Only gamma decays, by the term `Unbiased`.
BIAS_STAGE = stepped(200, 0.1, milestones=(60, 120, 160, 180), weight_decay=0.0, batch_size=256)


class NewShare(CrossEntropy):
    """Cross-entropy over all classes, times the share of new classes: ``1 - old / seen``."""

    def __init__(self) -> None:
        super().__init__(["merged"], "all")
        self.formula = f"(1 - old/seen) {self.formula}"

    def __call__(self, step: Step) -> Tensor:
        """``(1 - lambda) CE``; in the base task plain CE."""
        return (1 - _old_share(step)) * super().__call__(step)


class OldShare(Term):
    """Soft cross-entropy over the old classes, times their share: ``old / seen``.

    In stage 1 the teacher's logits are corrected. The student's old logits are not, since growing
    resets the correction.
    """

    needs_teacher = needs_old_tasks = takes_mixup = True
    no_gradient_for = ("bias",)

    def __init__(self, temperature: float) -> None:
        super().__init__()
        check_temperature(temperature)  # fail now, not after the base task, which doesn't use it
        self.temperature = temperature
        soft = f"softmax(t_old/{temperature:g}), softmax(z_old/{temperature:g})"
        self.formula = f"(old/seen) CE({soft}), t the teacher's logits"

    def __call__(self, step: Step) -> Tensor:
        """``lambda softCE``, not multiplied by tau^2."""
        view = step.views["merged"]
        assert view.teacher is not None
        student = view.student.logits[:, : sum(step.old)]
        loss = soft_cross_entropy(student, view.teacher.logits, self.temperature)
        return _old_share(step) * loss


class Unbiased(Term):
    """Cross-entropy of the corrected logits, and a decay of gamma."""

    needs_head = "bias"

    def __init__(self, gamma_decay: float) -> None:
        super().__init__()
        self.gamma_decay = gamma_decay
        self.formula = f"CE(corrected z_all(x_held-out), y) + {gamma_decay:g} gamma^2 / 2"

    def __call__(self, step: Step) -> Tensor:
        """``CE + gamma_decay gamma^2 / 2``."""
        classifier = step.network.classifier
        if not isinstance(classifier, BiasClassifier):
            raise ValueError("BiC's second stage corrects a BiasClassifier: take head='bias'.")
        view = step.views["merged"]
        decay = self.gamma_decay * classifier.gamma.square() / 2
        return torch.add(cross_entropy(view.student.logits, view.labels), decay)


def _old_share(step: Step) -> float:
    """BiC's lambda, the share of old classes among those seen; 0 in the base task."""
    old = sum(step.old)
    return old / (old + step.added)


def bic(options: BicOptions, schedules: Schedules) -> Method:
    r"""BiC: a first stage that trains the network, a second that corrects the new logits.

    .. math:: L_1 = (1 - \lambda) CE(z_{all}) + \lambda \, softCE(z_{old}), \quad
        \lambda = old / seen

    .. math:: L_2 = CE(z_{old}, \beta z_{new} + \gamma) + 0.1 \gamma^2 / 2

    Stage 2 trains only beta and gamma, by ``schedules.finish`` or as published, on the images held
    out from stage 1 in this task and those before. Without exemplars there are none, and stage 2
    is skipped. With ``held_out=0`` the method has no stage 2.
    """
    bias = Phase(
        "bias",
        schedules.finish or BIAS_STAGE,
        data="held-out",
        trains="bias",
        slots=("bias",),
        fixed_statistics=True,
    )
    stage1 = ("merged", "kd")
    terms: dict[str, Term] = {"merged": NewShare(), "kd": OldShare(options.temperature)}
    increment: tuple[Phase, ...] = (Phase("train", schedules.increment, slots=stage1),)
    if options.held_out:
        terms["bias"] = Unbiased(options.gamma_decay)
        increment += (bias,)
    return Method(
        "bic",
        "bias",
        terms,
        base=(Phase("train", schedules.base, slots=stage1),),
        increment=increment,
        streams="merged",
        held_out=options.held_out,
    )


def _published(schedule: Schedule, finish: Schedule) -> Published[BicOptions]:
    return Published(BicOptions(), same_for_all(schedule, finish), selection="greedy")


BIC = MethodSpec(
    "bic",
    "distils, then corrects the bias towards new classes",
    BicOptions,
    bic,
    {
        "small": _published(
            stepped(250, 0.1, milestones=(100, 150, 200), weight_decay=2e-4),
            dataclasses.replace(BIAS_STAGE, batch_size=128),
        ),
        "imagenet": _published(
            stepped(100, 0.1, milestones=(30, 60, 80, 90), batch_size=256), BIAS_STAGE
        ),
        "digits": _published(
            DIGITS_SCHEDULE, Schedule(20, 0.1, "constant", batch_size=32, weight_decay=0.0)
        ),
    },
)
