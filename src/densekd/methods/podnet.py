"""PODNet and AFC: several proxies per class, and a penalty on changes of the feature maps.

PODNet pools the maps. AFC, a fork of it, weights each channel by its importance.
"""

import copy
import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from densekd.checks import check_choice
from densekd.losses.classify import NcaMode, nca_loss
from densekd.losses.feature import channel_distance, channel_importance, normalised, pod_spatial
from densekd.methods.method import Method, MethodSpec, Phase, Published
from densekd.methods.schedule import Schedule, Schedules, same_for_all
from densekd.methods.terms import RatioWeight, Step, TaskContext, Term
from densekd.methods.ucir import FeatureTerm, LessForget
from densekd.nn.classifier import Classifier, ProxyClassifier
from densekd.nn.network import Outputs


@dataclass(frozen=True)
class PodnetOptions:
    """The options in PODNet's option files, with the values of podnet_cnn_cifar100.yaml."""

    spatial: float = 3.0  # pod_spatial.scheduled_factor, times sqrt(seen / new); 8 for ImageNet
    flat: float = 1.0  # pod_flat.scheduled_factor, times sqrt(seen / new); 10 for ImageNet
    nca: NcaMode = "released"  # the classification loss, or as in the ``paper``
    margin: float = 0.6  # nca.margin, on scores before they are scaled; only ``paper`` has one
    clamp: float = 5.0  # PODNet._train_task; clips gradients in schedules that have no clamp


@dataclass(frozen=True)
class AfcOptions:
    """The options in AFC's option files, with the values of AFC_cnn_cifar100.yaml.

    All but the first are as in `PodnetOptions`.
    """

    # feature_distil.scheduled_factor, times sqrt(seen / new); 10 for ImageNet.
    lambda_base: float = 4.0
    nca: NcaMode = "released"
    margin: float = 0.6
    clamp: float = 5.0


class Nca(Term):
    """PODNet's classification loss over all classes.

    The margin, for ``paper``, is on scores before the classifier scales them by eta.
    """

    needs_head = "proxies"

    def __init__(self, mode: NcaMode = "released", margin: float = 0.6) -> None:
        super().__init__()
        check_choice("nca", mode, get_args(NcaMode))
        self.mode: NcaMode = mode
        self.margin = margin
        self.formula = f"NCA(z_all(x_merged), y), as {mode}"

    def __call__(self, step: Step) -> Tensor:
        """See `densekd.losses.classify.nca_loss`."""
        view = step.views["merged"]
        return self.loss(view.student.logits, view.labels, step.network.classifier)

    def loss(self, logits: Tensor, labels: Tensor, classifier: Classifier) -> Tensor:
        """The loss of one batch of this classifier's logits."""
        if not isinstance(classifier, ProxyClassifier):
            raise ValueError(
                "The NCA loss has a margin in scores, which a "
                f"{type(classifier).__name__} doesn't have: take head='proxies'."
            )
        return nca_loss(logits, labels, self.mode, classifier.eta * self.margin)


class PodSpatial(FeatureTerm):
    """PODNet's POD-spatial, on the last map of each stage; see `pod_spatial`."""

    needs_maps = True
    distance_formula = "|pooled maps - teacher's pooled maps|"

    def _distance(self, student: Outputs, teacher: Outputs) -> Tensor:
        return pod_spatial(student.maps, teacher.maps)


class ChannelDistance(FeatureTerm):
    """AFC's distance between maps, each channel weighted by its importance to the teacher.

    The importance of a channel is the square of the classification loss's gradient with respect to
    it, summed over one epoch of the task's images. It is measured anew after each task. After tasks
    that another method learned, all channels count alike.
    """

    needs_old_tasks = needs_maps = True
    needs_head = "proxies"  # since the importance comes from the NCA loss
    distance_formula = "importance |channel - teacher's channel|"

    def __init__(self, weight: RatioWeight, nca: Nca) -> None:
        super().__init__(weight)
        self.nca = nca
        self.importance: tuple[Tensor, ...] = ()

    def _distance(self, student: Outputs, teacher: Outputs) -> Tensor:
        importance = self.importance or [x.new_ones(x.shape[1]) for x in teacher.maps]
        return channel_distance(student.maps, teacher.maps, importance)

    def end(self, context: TaskContext) -> None:
        """Measure the importance of the trained network's channels."""
        # In training mode, on a copy, so that the network's batch statistics stay as they are.
        network = copy.deepcopy(context.network).train()
        shares = []
        for batch in context.batches():
            seen = network(batch.images)
            loss = self.nca.loss(seen.logits, batch.labels, network.classifier)
            shares.append(channel_importance(torch.autograd.grad(loss, seen.maps)))
        layers = zip(*shares, strict=True)
        self.importance = normalised([functools.reduce(torch.add, layer) for layer in layers])

    def state_dict(self) -> dict[str, Tensor]:
        """The importance of each map's channels."""
        return {f"importance.{number}": layer for number, layer in enumerate(self.importance)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the importance from what `state_dict` gave."""
        self.importance = tuple(state[f"importance.{number}"] for number in range(len(state)))


def podnet(options: PodnetOptions, schedules: Schedules) -> Method:
    r"""PODNet, on one batch x of new images and old exemplars.

    .. math:: L = NCA(x) + \sqrt{seen / new} \, (3 L_{spatial}(x) + L_{flat}(x))

    See `_with_proxies` for the classifier and the phases.
    """
    return _with_proxies(
        "podnet",
        {
            "nca": Nca(options.nca, options.margin),
            "pod_spatial": PodSpatial(RatioWeight(options.spatial, 0.5)),
            "pod_flat": LessForget(RatioWeight(options.flat, 0.5)),
        },
        schedules,
        options.clamp,
    )


def afc(options: AfcOptions, schedules: Schedules) -> Method:
    r"""AFC, on one batch x of new images and old exemplars.

    .. math:: L = NCA(x) + \lambda \sqrt{seen / new} \, L_{disc}(x)

    Classifier and phases are PODNet's, see `_with_proxies`.
    """
    nca = Nca(options.nca, options.margin)
    distance = ChannelDistance(RatioWeight(options.lambda_base, 0.5), nca)
    return _with_proxies("afc", {"nca": nca, "channels": distance}, schedules, options.clamp)


def _with_proxies(
    name: str, terms: Mapping[str, Term], schedules: Schedules, clamp: float
) -> Method:
    """Make a method of these terms, with PODNet's classifier and phases.

    New proxies are imprinted; those of old classes don't change. Then the proxies of all classes,
    and nothing else, are trained by the same terms on balanced exemplars, by the schedule
    ``finish``; batch norm stays in training mode there.
    """
    if schedules.finish is None:
        raise ValueError(
            f"{name} ends each later task by fine-tuning: give the schedules a finish."
        )
    base, increment, finish = (
        each if each.clamp is not None else dataclasses.replace(each, clamp=clamp)
        for each in (schedules.base, schedules.increment, schedules.finish)
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


def _schedules(
    epochs: int, lr: float, finish_lr: float, batch_size: int, weight_decay: float
) -> Schedules:
    """PODNet's schedules: a cosine to 0, then 20 epochs of fine-tuning at a constant rate."""
    train = Schedule(epochs, lr, lr_end=0.0, batch_size=batch_size, weight_decay=weight_decay)
    finish = dataclasses.replace(train, epochs=20, lr=finish_lr, decay="constant", lr_end=1e-4)
    return same_for_all(train, finish)


_JITTER = 63 / 255  # the random brightness
_NETWORK_REASON = "it compares feature maps, which other networks rectify"
_SMALL = _schedules(160, 0.1, 0.05, 128, 5e-4)
_DIGITS = same_for_all(
    Schedule(20, 0.1, lr_end=0.0, batch_size=32), Schedule(10, 0.05, "constant", batch_size=32)
)
_ON_IMAGENET = PodnetOptions(spatial=8.0, flat=10.0)

PODNET = MethodSpec(
    "podnet",
    "pooled maps kept near, ten proxies a class",
    PodnetOptions,
    podnet,
    {
        "small": Published(PodnetOptions(), _SMALL, "podnet32", brightness=_JITTER),
        "imagenet100": Published(
            _ON_IMAGENET, _schedules(90, 0.05, 0.01, 64, 5e-4), "podnet18", brightness=_JITTER
        ),
        "imagenet": Published(
            _ON_IMAGENET, _schedules(90, 0.05, 0.01, 64, 1e-4), "podnet18", brightness=_JITTER
        ),
        "digits": Published(PodnetOptions(), _DIGITS, "podnet14"),
    },
    network_prefix="podnet",
    network_reason=_NETWORK_REASON,
)
AFC = MethodSpec(
    "afc",
    "maps kept near where they matter",
    AfcOptions,
    afc,
    {
        "small": Published(AfcOptions(), _SMALL, "podnet32", brightness=_JITTER),
        "imagenet": Published(
            AfcOptions(lambda_base=10.0),
            _schedules(90, 0.1, 0.02, 128, 1e-4),
            "podnet18",
            brightness=_JITTER,
        ),
        "digits": Published(AfcOptions(), _DIGITS, "podnet14"),
    },
    network_prefix="podnet",
    network_reason=_NETWORK_REASON,
)
