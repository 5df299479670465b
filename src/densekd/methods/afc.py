"""AFC: a penalty on changes of feature maps, weighted by each channel's importance."""

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from densekd.losses.classify import NcaMode
from densekd.losses.feature import channel_distance, channel_importance, normalised
from densekd.methods.method import Method, MethodSpec, Published
from densekd.methods.podnet import (
    DIGITS_PROXY_SCHEDULES,
    JITTER,
    NETWORK_REASON,
    SMALL_PROXY_SCHEDULES,
    Nca,
    proxy_schedules,
    with_proxies,
)
from densekd.methods.schedule import Schedules
from densekd.methods.terms import RatioWeight, TaskContext
from densekd.methods.ucir import FeatureTerm
from densekd.nn.network import Outputs


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


class ChannelDistance(FeatureTerm):
    """AFC's distance between maps, each channel weighted by its importance to the teacher.

    The importance of a channel is the square of the classification loss's gradient with respect to
    it, summed over one epoch of the task's images. It is measured anew after each task.
    """

    needs_old_tasks = True
    reads = "importance |channel - teacher's channel|"

    def __init__(self, weight: RatioWeight, nca: Nca) -> None:
        super().__init__(weight)
        self.nca = nca
        self.importance: tuple[Tensor, ...] = ()

    def _distance(self, student: Outputs, teacher: Outputs) -> Tensor:
        return channel_distance(student.maps, teacher.maps, self.importance)

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


def afc(options: AfcOptions, schedules: Schedules) -> Method:
    r"""AFC, on one batch x of new images and old exemplars.

    .. math:: L = NCA(x) + \lambda \sqrt{seen / new} \, L_{disc}(x)

    Classifier and phases are PODNet's, see `densekd.methods.podnet.with_proxies`.
    """
    nca = Nca(options.nca, options.margin)
    distance = ChannelDistance(RatioWeight(options.lambda_base, 0.5), nca)
    return with_proxies("afc", {"nca": nca, "channels": distance}, schedules, options.clamp)


AFC = MethodSpec(
    "afc",
    "maps kept near where they matter",
    AfcOptions,
    afc,
    {
        "small": Published(AfcOptions(), SMALL_PROXY_SCHEDULES, "podnet32", brightness=JITTER),
        "imagenet": Published(
            AfcOptions(lambda_base=10.0),
            proxy_schedules(90, 0.1, 0.02, 128, 1e-4),
            "podnet18",
            brightness=JITTER,
        ),
        "digits": Published(AfcOptions(), DIGITS_PROXY_SCHEDULES, "podnet14"),
    },
    network_prefix="podnet",
    network_reason=NETWORK_REASON,
)
