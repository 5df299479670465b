"""A backbone and a classifier that grows with every task."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from densekd.nn.classifier import Classifier

_Channels = tuple[float, float, float]


class Preprocessing(NamedTuple):
    """The size and normalisation that a network was pretrained with; None where unknown."""

    size: tuple[int, int] | None = None
    mean: _Channels | None = None
    std: _Channels | None = None


def own_statistics(backbone: object) -> tuple[_Channels, _Channels] | None:
    """Return the mean and deviation to normalise a pretrained backbone's images by, if known."""
    _, mean, std = getattr(backbone, "preprocessing", Preprocessing())
    return None if mean is None or std is None else (mean, std)


class Features(NamedTuple):
    """The output of a backbone for a batch of images.

    Example:
        >>> import torch
        >>> from densekd import Features
        >>> class Means(torch.nn.Module):
        ...     width = 3  # the number of features
        ...     def forward(self, images):
        ...         return Features(images.mean((2, 3)), (images,))
        >>> Means()(torch.zeros(2, 3, 8, 8)).pooled.shape
        torch.Size([2, 3])
    """

    pooled: Tensor  # [B, D]
    maps: tuple[Tensor, ...]  # of each stage, [B, C, H, W]


class Backbone(Protocol):
    """Any module that returns pooled features, and the maps of its stages if it has any."""

    width: int  # D, the dimension of the pooled features

    def __call__(self, images: Tensor) -> Features:
        """``[B, 3, H, W]`` to pooled features ``[B, D]`` and maps."""


class Outputs(NamedTuple):
    """The output of a network for a batch of images."""

    logits: Tensor  # [B, classes so far]
    features: Tensor  # [B, D], pooled
    maps: tuple[Tensor, ...]  # of each stage, [B, C, H, W]


class Network(nn.Module):
    """A backbone followed by a classifier of the classes learned so far."""

    def __init__(self, backbone: Backbone, classifier: Classifier) -> None:
        super().__init__()
        if not isinstance(backbone, nn.Module):
            raise ValueError(f"A backbone must be an nn.Module, not {type(backbone).__name__}.")
        if backbone.width != classifier.width:
            raise ValueError(
                f"The backbone has {backbone.width} features, the classifier {classifier.width}."
            )
        self.backbone = backbone
        self.classifier = classifier

    def forward(self, images: Tensor) -> Outputs:
        """``[B, 3, H, W]`` to logits ``[B, classes]``, features and maps."""
        return self.classify(self.backbone(images))

    def classify(self, features: Features) -> Outputs:
        """Add logits ``[B, classes]`` to what the backbone returned for a batch."""
        return Outputs(self.classifier(features.pooled), features.pooled, features.maps)

    def grow(self, classes: int) -> None:
        """Add ``classes`` new classes; the other logits stay the same to the bit.

        The exception is a `BiasClassifier`, which corrects only the newest classes.
        """
        self.classifier.grow(classes)


def load_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights that a network learned; raises ValueError if they don't fit this network."""
    own = {name: x.shape for name, x in network.state_dict().items()}
    given = {name: x.shape for name, x in weights.items()}
    if own != given:
        name = next(n for n in sorted(own | given) if own.get(n) != given.get(n))
        raise ValueError(
            f"What was learned doesn't fit this network: its weights {name!r} differ; give the "
            "backbone that it was learned with."
        )
    network.load_state_dict(weights)
