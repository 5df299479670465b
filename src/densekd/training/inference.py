"""Logits, features and class means of images, batch by batch and without gradients."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from densekd.data.batches import in_order
from densekd.data.dataset import Images, Split
from densekd.nn.network import Network
from densekd.training.settings import Settings

# Inference needs less memory than training, so batches can be larger. On a processor, the features
# of a smaller batch stay in each core's cache; docs/benchmarks.md has the times.
_BATCH_SIZE = 256
_BATCH_SIZE_OF_A_THREAD = 64


class InferenceOutputs(NamedTuple):
    """The network's outputs for n images."""

    logits: Tensor  # [n, classes]
    features: Tensor  # [n, D]


def infer(
    network: Network, images: Images, settings: Settings, *, flipped: bool = False
) -> InferenceOutputs:
    """Logits and pooled features of images, or of their mirror images."""
    data = Split(images, torch.zeros(len(images), dtype=torch.int64))
    outputs = [
        (out.logits.float(), out.features.float())
        for out in _outputs(network, network, data, settings, flipped)
    ]
    head, device = network.classifier, settings.engine.device
    none = torch.empty(0, head.classes, device=device), torch.empty(0, head.width, device=device)
    return InferenceOutputs(*map(torch.cat, zip(*(outputs or [none]), strict=True)))


def extract_features(network: Network, data: Split, settings: Settings) -> Tensor:
    """Pooled features ``[n, D]``, without computing logits."""
    outputs = _outputs(network, network.backbone, data, settings)
    features = [batch.pooled.float() for batch in outputs]
    none = torch.empty(0, network.classifier.width, device=settings.engine.device)
    return torch.cat(features or [none])


def class_means(network: Network, exemplars: Split, settings: Settings) -> Tensor:
    """ICaRL's class means, unit vectors ``[classes, D]``.

    The mean of the L2-normalised features of a class's exemplars and their mirror images,
    normalised again.
    """
    both = [
        infer(network, exemplars.images, settings, flipped=flipped).features
        for flipped in (False, True)
    ]
    unit = normalize(both[0], dim=1) + normalize(both[1], dim=1)
    return mean_directions(unit, exemplars.labels, network.classifier.classes)


def mean_directions(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Unit vectors ``[classes, D]`` towards the mean of each class's features ``[n, D]``."""
    sums = features.new_zeros(classes, features.shape[1])
    sums.index_add_(0, labels.to(sums.device), features)
    return normalize(sums, dim=1)  # a sum has the direction of its mean, whatever the counts


def cosines(features: Tensor, means: Tensor) -> Tensor:
    """Cosines of features ``[n, D]`` with unit means ``[classes, D]``: ``[n, classes]``."""
    return normalize(features, dim=1) @ means.T


def batch_size(device: torch.device) -> int:
    """How many images to infer at once."""
    if device.type != "cpu":
        return _BATCH_SIZE
    return min(_BATCH_SIZE, _BATCH_SIZE_OF_A_THREAD * torch.get_num_threads())


def _outputs(
    network: Network, module: nn.Module, data: Split, settings: Settings, flipped: bool = False
) -> Iterator[Any]:
    """The outputs of the network, or of a module of it, for each batch."""
    was_training = network.training
    if was_training:  # for a small network, switching takes as long as one image
        network.eval()
    size = batch_size(settings.engine.device)
    for batch in in_order(data, size, settings.augment, workers=settings.workers_for(data.images)):
        images = batch.images.flip(-1) if flipped else batch.images
        with torch.inference_mode(), settings.engine.autocast():
            outputs = module(settings.engine.lay_out(images))
        yield outputs
    if was_training:
        network.train()
