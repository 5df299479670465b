"""UCIR: a cosine classifier, a penalty on changed features, and a margin between classes."""

import math
from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from densekd.losses.classify import margin_ranking
from densekd.losses.feature import less_forget
from densekd.methods.method import Method, MethodSpec, Phase, Published
from densekd.methods.schedule import DIGITS_SCHEDULE, Schedules, same_for_all, stepped
from densekd.methods.terms import CrossEntropy, RatioWeight, Step, TaskContext, Term
from densekd.nn.classifier import CosineClassifier
from densekd.nn.network import Outputs


@dataclass(frozen=True)
class UcirOptions:
    """The options of UCIR's class_incremental_cosine_cifar100.py."""

    lambda_base: float = 5.0  # --lamda: less-forget has lambda_base sqrt(old / new); ImageNet: 10
    margin: float = 0.5  # --dist: how far an image's own old class has to be ahead, in cosines
    k: int = 2  # --K: how many of the nearest new classes it is compared with
    ranking_weight: float = 1.0  # --lw_mr: of the margin ranking


@dataclass(frozen=True)
class OldRatioWeight(RatioWeight):
    """UCIR's weight: ``lambda = base sqrt(old / new)``, where others have seen / new."""

    exponent: float = 0.5

    @property
    def formula(self) -> str:
        """The weight in plain text."""
        return f"{self.base:g} sqrt(old/new)"

    def of(self, old: int, new: int) -> float:
        """The weight for these numbers of old and new classes."""
        return self.base * math.sqrt(old / new)


class FeatureTerm(Term):
    """``lambda`` times a distance between the features or maps of student and teacher."""

    needs_teacher = takes_mixup = True
    no_gradient_for = ("weights", "bias")
    distance_formula = "distance"  # the distance, in a formula

    def __init__(self, weight: RatioWeight) -> None:
        super().__init__()
        self.weight = weight
        self.formula = f"lambda [{self.distance_formula}], lambda = {weight.formula}"

    def begin(self, context: TaskContext) -> dict[str, float]:
        """Return lambda, to be recorded."""
        return {"lambda": self.weight.of(sum(context.old), len(context.task.classes))}

    def __call__(self, step: Step) -> Tensor:
        """``lambda distance``, a scalar."""
        view = step.views["merged"]
        assert view.teacher is not None
        distance = self._distance(view.student, view.teacher)
        return self.weight.of(sum(step.old), step.added) * distance

    @abstractmethod
    def _distance(self, student: Outputs, teacher: Outputs) -> Tensor:
        """The distance on one batch, a scalar."""


class LessForget(FeatureTerm):
    """UCIR's less-forget constraint, also PODNet's POD-flat; see `less_forget`."""

    distance_formula = "1 - cos(f(x), teacher's f(x))"

    def _distance(self, student: Outputs, teacher: Outputs) -> Tensor:
        return less_forget(student.features, teacher.features)


class MarginRanking(Term):
    """UCIR's margin ranking: keeps exemplars of old classes away from new classes.

    It compares cosines: logits divided by the classifier's scale, so that the scale gets no
    gradient from it. In the base task no class is old, and the term is 0.
    """

    needs_head = "cosine"
    zero_in_base = True

    def __init__(self, margin: float = 0.5, k: int = 2, weight: float = 1.0) -> None:
        super().__init__()
        self.margin = margin
        self.k = k
        self.weight = weight
        self.formula = (
            f"{weight:g} mean max(0, {margin:g} - cos_y + cos_k), "
            f"k the {k} nearest new classes, x exemplars of old classes"
        )

    def __call__(self, step: Step) -> Tensor:
        """See `densekd.losses.classify.margin_ranking`."""
        classifier = step.network.classifier
        if not isinstance(classifier, CosineClassifier):
            raise ValueError(
                "The margin ranking compares cosines, which a "
                f"{type(classifier).__name__} doesn't have: take head='cosine'."
            )
        view = step.views["merged"]
        cosines = view.student.logits / classifier.scale
        loss = margin_ranking(cosines, view.labels, sum(step.old), self.margin, self.k)
        return self.weight * loss


def ucir(options: UcirOptions, schedules: Schedules) -> Method:
    r"""UCIR, on one batch x of new images and old exemplars.

    .. math:: L = CE(z_{all}(x)) + \lambda (1 - \cos(f(x), f_{old}(x))) + L_{mr}(x)

    New weights are imprinted; those of old classes don't change. With a ``finish``, the weights of
    all classes, and nothing else, are then trained on balanced exemplars.
    """
    terms: dict[str, Term] = {
        "ce": CrossEntropy(["merged"], "all"),
        "less_forget": LessForget(OldRatioWeight(options.lambda_base)),
        "ranking": MarginRanking(options.margin, options.k, options.ranking_weight),
    }
    increment = [Phase("train", schedules.increment, trains="new")]
    if schedules.finish is not None:
        finish = Phase("finetune", schedules.finish, "balanced", "weights", tuple(terms), True)
        increment.append(finish)
    return Method(
        "ucir",
        "cosine",
        terms,
        base=(Phase("train", schedules.base),),
        increment=tuple(increment),
        streams="merged",
        imprints=True,
    )


SMALL_SCHEDULE = stepped(160, 0.1, milestones=(80, 120), weight_decay=5e-4)
LARGE_SCHEDULE = stepped(90, 0.1, milestones=(30, 60))
_FINISH = stepped(20, 0.01, milestones=(10,))
_ON_IMAGENET = UcirOptions(lambda_base=10.0)

UCIR = MethodSpec(
    "ucir",
    "cosine classifier, less-forget and margin ranking",
    UcirOptions,
    ucir,
    {
        "small": Published(UcirOptions(), same_for_all(SMALL_SCHEDULE)),
        "imagenet100": Published(_ON_IMAGENET, same_for_all(LARGE_SCHEDULE), "ucir18"),
        # Only the script for ImageNet-1000 fine-tunes on balanced exemplars.
        "imagenet": Published(_ON_IMAGENET, same_for_all(LARGE_SCHEDULE, _FINISH), "ucir18"),
        "digits": Published(UcirOptions(), same_for_all(DIGITS_SCHEDULE)),
    },
)
