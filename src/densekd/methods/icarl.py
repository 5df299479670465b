"""iCaRL: a sigmoid for each class, and prediction by the nearest mean of exemplars."""

import functools
from dataclasses import dataclass

from torch import Tensor

from densekd.losses.classify import new_class_bce, old_class_bce
from densekd.losses.distill import DenseDistillation
from densekd.methods.method import Method, MethodSpec, Phase, Predictor, Published
from densekd.methods.schedule import DIGITS_SCHEDULE, Schedule, Schedules, same_for_all, stepped
from densekd.methods.terms import CrossEntropy, Distil, RatioWeight, Step, Term
from densekd.methods.ucir import LARGE_SCHEDULE, SMALL_SCHEDULE


@dataclass(frozen=True)
class IcarlOptions:
    """The options of iCaRL; its loss has no constants."""

    predicts: Predictor = "nearest-mean"  # of exemplars, or by the ``head``: the paper's hybrid1


@dataclass(frozen=True)
class IcarlSoftmaxOptions:
    """The options of the iCaRL that UCIR compares itself with: class_incremental_cifar100.py."""

    lambda_base: float = 0.25  # --beta: of the distillation, for any numbers of classes
    temperature: float = 2.0  # --T
    predicts: Predictor = "nearest-mean"  # of exemplars, or by the ``head``; UCIR reports both


class NewOutputs(Term):
    """iCaRL's loss on the outputs of new classes; see `new_class_bce`."""

    formula = "BCE(sigmoid(z_new), [y = c]) / seen"

    def __call__(self, step: Step) -> Tensor:
        """Binary cross-entropy with the labels, divided by the number of all outputs."""
        view = step.views["merged"]
        return new_class_bce(view.student.logits, view.labels, sum(step.old))


class OldOutputs(Term):
    """iCaRL's distillation, on the outputs of old classes; see `old_class_bce`."""

    needs_teacher = needs_old_tasks = takes_mixup = True
    no_gradient_for = ("bias",)
    formula = "BCE(sigmoid(z_old), sigmoid(t_old)) / seen, t the teacher's logits"

    def __call__(self, step: Step) -> Tensor:
        """Binary cross-entropy with the teacher, divided by the number of all outputs."""
        view = step.views["merged"]
        assert view.teacher is not None
        return old_class_bce(view.student.logits, view.teacher.logits)


def icarl(options: IcarlOptions, schedules: Schedules) -> Method:
    r"""ICaRL as published: binary cross-entropy of every output, averaged over images and outputs.

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


def _published(schedule: Schedule) -> Published[IcarlOptions]:
    # The loss is a mean over all outputs, hence the high rate. A distillation that replaces part
    # of it is divided by the factor by which the rate is higher than the usual 0.1.
    factor = 0.1 / schedule.lr
    return Published(IcarlOptions(), same_for_all(schedule), lambda_factor=factor)


# The rate falls to a fifth each time. iCaRL's weight decay of 1e-5 is on the squared norm itself,
# torch's is on half of it.
_fifths = functools.partial(stepped, weight_decay=2e-5, factor=0.2)
ICARL = MethodSpec(
    "icarl",
    "sigmoid outputs, nearest mean of exemplars",
    IcarlOptions,
    icarl,
    {
        "small": _published(_fifths(70, 2.0, milestones=(49, 63))),
        "imagenet": _published(_fifths(60, 2.0, milestones=(20, 30, 40, 50))),
        "digits": _published(Schedule(20, 1.0, batch_size=32)),
    },
)
ICARL_SOFTMAX = MethodSpec(
    "icarl-softmax",
    "iCaRL with softmax, as UCIR compares with",
    IcarlSoftmaxOptions,
    icarl_softmax,
    {
        "small": Published(IcarlSoftmaxOptions(), same_for_all(SMALL_SCHEDULE)),
        "imagenet": Published(IcarlSoftmaxOptions(), same_for_all(LARGE_SCHEDULE)),
        "digits": Published(IcarlSoftmaxOptions(), same_for_all(DIGITS_SCHEDULE)),
    },
)
