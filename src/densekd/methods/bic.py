"""BiC: distillation that gives way to fewer new classes, then two numbers against their bias."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from densekd.losses.classify import soft_cross_entropy
from densekd.methods.method import Method, Phase
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.terms import CrossEntropy, Step, Term
from densekd.nn.classifier import BiasClassifier


@dataclass(frozen=True)
class BicOptions:
    """BiC's constants.

    Args:
        temperature: tau of the distillation.
        gamma_decay: the bias stage adds ``gamma_decay gamma^2 / 2``.
        held_out: the share of a class's exemplars that bias stages learn from, and first stages
            never do.
    """

    temperature: float = 2.0  # LargeScaleIncrementalLearning, resnet.py
    gamma_decay: float = 0.1  # the same
    held_out: float = 0.1  # the same, imagenet_main.py, nb_val


# LargeScaleIncrementalLearning, imagenet_main.py. What decays is gamma alone, which is a term.
BIAS_STAGE = Schedule(
    200, 0.1, "milestones", milestones=(60, 120, 160, 180), batch_size=256, weight_decay=0.0
)


class NewShare(CrossEntropy):
    """Cross-entropy over all classes, times the share of new classes: ``1 - old / seen``."""

    def __init__(self) -> None:
        super().__init__(["merged"], "all")

    @property
    def formula(self) -> str:
        """The term in plain text."""
        return "(1 - old/seen) CE(z_all(x_merged), y)"

    def __call__(self, step: Step) -> Tensor:
        """``(1 - lambda) CE``; in the base task plain CE."""
        return (1 - old_share(step)) * super().__call__(step)


class OldShare(Term):
    """Soft cross-entropy over the old classes, times their share: ``old / seen``.

    The student's old logits have no correction in stage 1: growing has reset it. The teacher's
    keep theirs.

    Args:
        temperature: tau.
    """

    needs_teacher = True

    def __init__(self, temperature: float) -> None:
        super().__init__(["merged"])
        self.temperature = temperature

    @property
    def formula(self) -> str:
        """The term in plain text."""
        tau = f"{self.temperature:g}"
        return f"(old/seen) CE(softmax(t_old/{tau}), softmax(z_old/{tau})), t the teacher's logits"

    def __call__(self, step: Step) -> Tensor:
        """``lambda softCE``, not multiplied by tau^2."""
        view = step.views["merged"]
        assert view.teacher is not None
        student = view.student.logits[:, : sum(step.old)]
        loss = soft_cross_entropy(student, view.teacher.logits, self.temperature)
        return old_share(step) * loss


class Unbiased(Term):
    """Cross-entropy of the corrected logits, and a decay of gamma.

    Args:
        gamma_decay: the factor of ``gamma^2 / 2``.
    """

    def __init__(self, gamma_decay: float) -> None:
        super().__init__(["merged"])
        self.gamma_decay = gamma_decay

    @property
    def formula(self) -> str:
        """The term in plain text."""
        return f"CE(corrected z_all(x_held-out), y) + {self.gamma_decay:g} gamma^2 / 2"

    def __call__(self, step: Step) -> Tensor:
        """``CE + gamma_decay gamma^2 / 2``."""
        classifier = step.network.classifier
        if not isinstance(classifier, BiasClassifier):
            raise ValueError("BiC's second stage corrects a BiasClassifier: take head='bias'.")
        view = step.views["merged"]
        decay = self.gamma_decay * classifier.gamma.square() / 2
        return torch.add(cross_entropy(view.student.logits, view.labels), decay)


def old_share(step: Step) -> float:
    """BiC's lambda, the share of old classes in those seen; 0 in the base task."""
    old = sum(step.old)
    return old / (old + step.added)


def bic(options: BicOptions, schedules: Schedules) -> Method:
    r"""BiC: a first stage that trains the network, a second that corrects the new logits.

    .. math:: L_1 = (1 - \lambda) CE(z_{all}) + \lambda \, softCE(z_{old}), \quad
        \lambda = old / seen

    .. math:: L_2 = CE(z_{old}, \beta z_{new} + \gamma) + 0.1 \gamma^2 / 2

    Stage 2, by ``schedules.finish`` or as released, is on what was held out from stage 1, of this
    task and of those before, and only beta and gamma learn there. Without exemplars there is
    nothing to hold out, so it is left out.
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
    return Method(
        "bic",
        "bias",
        {
            "merged": NewShare(),
            "kd": OldShare(options.temperature),
            "bias": Unbiased(options.gamma_decay),
        },
        base=(Phase("train", schedules.base, slots=stage1),),
        increment=(Phase("train", schedules.increment, slots=stage1), bias),
        streams="merged",
        held_out=options.held_out,
    )
