"""PODNet: several proxies per class, and pooled maps of all stages that stay near the old ones."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from densekd.checks import check_choice
from densekd.losses.classify import NcaMode, nca_loss
from densekd.methods.feature_terms import LessForget, PodSpatial
from densekd.methods.method import Method, Phase
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.terms import RatioWeight, Step, Stream, Term
from densekd.nn.classifier import Classifier
from densekd.nn.proxies import ProxyClassifier


@dataclass(frozen=True)
class PodnetOptions:
    """What PODNet's option files set, with the values of podnet_cnn_cifar100.yaml.

    Args:
        spatial: the weight of POD-spatial is ``spatial sqrt(seen / new)``.
        flat: the weight of POD-flat is ``flat sqrt(seen / new)``.
        nca: the classification loss as ``released``, or as in the ``paper``.
        margin: of the NCA loss, on scores before they are scaled; only ``paper`` has one.
        clamp: of gradients, in schedules that have none of their own.
    """

    spatial: float = 3.0  # pod_spatial.scheduled_factor; 8 for ImageNet
    flat: float = 1.0  # pod_flat.scheduled_factor; 10 for ImageNet
    nca: NcaMode = "released"
    margin: float = 0.6  # nca.margin
    clamp: float = 5.0  # PODNet._train_task


class Nca(Term):
    """PODNet's classification loss over all classes, summed over streams.

    Args:
        streams: the batches it is taken on.
        mode: as ``released``, or as in the ``paper``.
        margin: for ``paper``, on scores before the classifier scales them by eta.
    """

    def __init__(
        self, streams: Iterable[Stream], mode: NcaMode = "released", margin: float = 0.6
    ) -> None:
        super().__init__(streams)
        check_choice("nca", mode, get_args(NcaMode))
        self.mode: NcaMode = mode
        self.margin = margin

    @property
    def formula(self) -> str:
        """The term in plain text."""
        return f"NCA(z_all(x_merged), y), as {self.mode}"

    def __call__(self, step: Step) -> Tensor:
        """See `densekd.losses.classify.nca_loss`."""
        classifier = step.network.classifier
        losses = [
            self.loss(view.student.logits, view.labels, classifier) for view in self.views(step)
        ]
        return torch.stack(losses).sum()

    def loss(self, logits: Tensor, labels: Tensor, classifier: Classifier) -> Tensor:
        """The loss of one batch, by logits of this classifier."""
        if not isinstance(classifier, ProxyClassifier):
            raise ValueError(
                "The NCA loss has a margin in scores, which a "
                f"{type(classifier).__name__} doesn't have: take head='proxies'."
            )
        return nca_loss(logits, labels, self.mode, classifier.eta * self.margin)


def podnet(options: PodnetOptions, schedules: Schedules) -> Method:
    r"""PODNet, on one batch x of new images and old exemplars.

    .. math:: L = NCA(x) + \sqrt{seen / new} \, (3 L_{spatial}(x) + L_{flat}(x))

    See `with_proxies` for what AFC shares.
    """
    return with_proxies(
        "podnet",
        {
            "nca": Nca(["merged"], options.nca, options.margin),
            "pod_spatial": PodSpatial(["merged"], RatioWeight(options.spatial, 0.5)),
            "pod_flat": LessForget(["merged"], RatioWeight(options.flat, 0.5)),
        },
        schedules,
        options.clamp,
    )


def with_proxies(
    name: str, terms: Mapping[str, Term], schedules: Schedules, clamp: float
) -> Method:
    """A method with PODNet's classifier and phases, and losses of its own.

    New proxies are imprinted; those of old classes don't change. Then the proxies of all classes,
    and nothing else, are trained by the same losses on as many images of each class; the network
    stays in training mode, so that batch norm's running statistics move.

    Args:
        name: what it is called.
        terms: its losses.
        schedules: with a ``finish``, the schedule of the second phase.
        clamp: of gradients, in schedules that have none of their own.
    """
    if schedules.finish is None:
        raise ValueError(
            f"{name} ends each later task by fine-tuning: give the schedules a finish."
        )
    base, increment, finish = (
        _clamped(schedule, clamp)
        for schedule in (schedules.base, schedules.increment, schedules.finish)
    )
    return Method(
        name,
        "proxies",
        terms,
        base=(Phase("train", base),),
        increment=(
            Phase("train", increment, trains="new"),
            Phase("finetune", finish, "balanced", "weights", tuple(terms)),
        ),
        streams="merged",
        imprints=True,
    )


def _clamped(schedule: Schedule, clamp: float) -> Schedule:
    return dataclasses.replace(schedule, clamp=clamp) if schedule.clamp is None else schedule
