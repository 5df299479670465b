"""What a network makes of images while nothing is learned."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from densekd.data.batches import in_order
from densekd.data.dataset import Images, Split
from densekd.nn.network import Network
from densekd.training.settings import Settings

# Images in a batch where nothing is learned, which needs less memory than training.
_READ_AT_ONCE = 256


class InferenceOutputs(NamedTuple):
    """What the network makes of many images."""

    logits: Tensor  # [n, classes]
    features: Tensor  # [n, D]


def infer(
    network: Network, images: Images, settings: Settings, *, flipped: bool = False
) -> InferenceOutputs:
    """Logits and pooled features of images, or of their mirror images."""
    data = Split(images, torch.zeros(len(images), dtype=torch.int64))
    classifier = network.classifier
    empty = InferenceOutputs(torch.empty(0, classifier.classes), torch.empty(0, classifier.width))
    seen = [
        InferenceOutputs(out.logits.float(), out.features.float())
        for out in _read(network, network, data, settings, flipped)
    ]
    return (
        InferenceOutputs(*(torch.cat(parts) for parts in zip(*seen, strict=True)))
        if seen
        else empty
    )


def extract_features(network: Network, data: Split, settings: Settings) -> Tensor:
    """Pooled features ``[n, D]``, without the logits, which may be many."""
    read = _read(network, network.backbone, data, settings)
    seen = [batch.pooled.float() for batch in read]
    return torch.cat(seen) if seen else torch.empty(0, network.classifier.width)


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
    sums = unit.new_zeros(network.classifier.classes, unit.shape[1])
    sums.index_add_(0, exemplars.labels.to(unit.device), unit)
    return normalize(sums, dim=1)  # the length of a mean doesn't matter, so neither do counts


def cosines(features: Tensor, means: Tensor) -> Tensor:
    """Of each feature with each mean: ``[n, D]`` and unit ``[classes, D]`` to ``[n, classes]``."""
    return normalize(features, dim=1) @ means.T


def nearest_mean(features: Tensor, means: Tensor) -> Tensor:
    """The nearest mean of each normalised feature: ``[n, D]`` and ``[classes, D]`` to ``[n]``.

    Between unit vectors the smallest distance is the largest product.
    """
    return cosines(features, means).argmax(1)


def _read(
    network: Network, module: nn.Module, data: Split, settings: Settings, flipped: bool = False
) -> Iterator[Any]:
    """What a module of the network makes of each batch."""
    was_training = network.training
    if was_training:  # to set it takes as long as a small network takes for an image
        network.eval()
    for batch in in_order(data, _READ_AT_ONCE, settings.augment, workers=settings.workers):
        images = batch.images.flip(-1) if flipped else batch.images
        with torch.inference_mode(), settings.engine.autocast():
            seen = module(settings.engine.laid_out(images))
        yield seen
    if was_training:
        network.train()
