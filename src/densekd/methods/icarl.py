"""iCaRL: a sigmoid for each class, and prediction by the nearest mean of exemplars."""

from dataclasses import dataclass

from torch import Tensor

from densekd.losses.classify import new_class_bce, old_class_bce
from densekd.losses.distill import DenseDistillation
from densekd.methods.method import Method, Phase, Predictor
from densekd.methods.schedule import Schedules
from densekd.methods.terms import CrossEntropy, Distil, RatioWeight, Step, Term


@dataclass(frozen=True)
class IcarlOptions:
    """What iCaRL lets one choose, which is how it predicts: its loss has no constants.

    Args:
        predicts: by the nearest mean of exemplars, or by the classifier (``head``), which the
            paper calls hybrid1.
    """

    predicts: Predictor = "nearest-mean"


@dataclass(frozen=True)
class IcarlSoftmaxOptions:
    """The constants of the iCaRL that UCIR compares itself with.

    Args:
        lambda_base: the weight of the distillation, whatever the numbers of classes.
        temperature: tau.
        predicts: by the nearest mean of exemplars, or by the classifier (``head``); UCIR
            reports both.
    """

    lambda_base: float = 0.25  # UCIR's class_incremental_cifar100.py, --beta
    temperature: float = 2.0  # the same, --T
    predicts: Predictor = "nearest-mean"


class NewOutputs(Term):
    """iCaRL's loss on the outputs of new classes; see `new_class_bce`."""

    def __init__(self) -> None:
        super().__init__(["merged"])

    @property
    def formula(self) -> str:
        """The term in plain text."""
        return "BCE(sigmoid(z_new), [y = c]) / seen"

    def __call__(self, step: Step) -> Tensor:
        """The labels' binary cross-entropy, over the number of all outputs."""
        view = step.views["merged"]
        return new_class_bce(view.student.logits, view.labels, sum(step.old))


class OldOutputs(Term):
    """iCaRL's loss on the outputs of old classes, its distillation; see `old_class_bce`."""

    needs_teacher = True

    def __init__(self) -> None:
        super().__init__(["merged"])

    @property
    def formula(self) -> str:
        """The term in plain text."""
        return "BCE(sigmoid(z_old), sigmoid(t_old)) / seen, t the teacher's logits"

    def __call__(self, step: Step) -> Tensor:
        """The teacher's binary cross-entropy, over the number of all outputs."""
        view = step.views["merged"]
        assert view.teacher is not None
        return old_class_bce(view.student.logits, view.teacher.logits)


def icarl(options: IcarlOptions, schedules: Schedules) -> Method:
    r"""ICaRL as released: binary cross-entropy of every output, averaged over images and outputs.

    .. math:: L = -\frac{1}{B\,seen} \sum_x \Big( \sum_{c < old} q_c \log g_c
        + (1 - q_c) \log(1 - g_c) + \sum_{c \ge old} [y = c] \log g_c
        + [y \ne c] \log(1 - g_c) \Big)

    with g the student's and q the teacher's sigmoids. Slot ``kd`` is the sum over old outputs.
    """
    terms: dict[str, Term] = {"merged": NewOutputs(), "kd": OldOutputs()}
    return _icarl("icarl", terms, options.predicts, schedules)


def icarl_softmax(options: IcarlSoftmaxOptions, schedules: Schedules) -> Method:
    r"""UCIR's iCaRL, which most papers that start from half of the classes compare with.

    .. math:: L = CE(z_{all}) + \lambda \tau^2 KL(z_{old})

    with KL from teacher to student, summed over the old classes and averaged over images.
    """
    loss = DenseDistillation("whole", options.temperature, "batch")
    terms: dict[str, Term] = {
        "merged": CrossEntropy(["merged"], "all"),
        "kd": Distil(["merged"], loss, RatioWeight(options.lambda_base, exponent=0.0)),
    }
    return _icarl("icarl-softmax", terms, options.predicts, schedules)


def _icarl(name: str, terms: dict[str, Term], predicts: Predictor, schedules: Schedules) -> Method:
    return Method(
        name,
        "linear",
        terms,
        base=(Phase("train", schedules.base),),
        increment=(Phase("train", schedules.increment),),
        streams="merged",
        predicts=predicts,
    )
