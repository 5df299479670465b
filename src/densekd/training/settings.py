"""The settings of a learner besides its network and its method."""

from dataclasses import dataclass, field

from densekd.data.augment import Augment
from densekd.data.dataset import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Images,
    PixelImages,
    channel_statistics,
)
from densekd.nn.network import own_statistics
from densekd.training.engine import Engine

# Pad by an eighth of an image's size: 4 pixels for CIFAR's 32.
_PADDING = 8


class InferredAugment(Augment):
    """An augmentation that takes mean and deviation from the first images it gets.

    Args:
        padding: black pixels around an image before it is cropped; None for 1/8 of its size.
        flip: mirror half of the images at random.
        brightness: make images brighter or darker by up to this share; 0 for none.
    """

    def __init__(
        self, *, padding: int | None = None, flip: bool = True, brightness: float = 0.0
    ) -> None:
        super().__init__(
            (0.5,) * 3, (0.5,) * 3, padding=padding or 0, flip=flip, brightness=brightness
        )
        self.by_size = padding is None

    def on(self, images: Images, backbone: object) -> Augment:
        """The augmentation for these images; a pretrained backbone brings its own statistics."""
        mean, std = own_statistics(backbone) or _statistics(images)
        shortest = min(images.pixels.shape[2:]) if isinstance(images, PixelImages) else images.size
        padding = shortest // _PADDING if self.by_size else self.padding
        return Augment(mean, std, padding=padding, flip=self.flip, brightness=self.brightness)


@dataclass(frozen=True)
class Settings:
    """Settings that don't depend on the method.

    Args:
        augment: how images are augmented and normalised.
        seed: of all random streams.
        engine: the devices, and their precision.
        workers: processes that decode images in files.
        image_size: the height and width that images of various sizes are brought to.
        oversample_rare: show rare classes more often; see
            `densekd.data.stratify.oversample_rare`.
    """

    augment: Augment = field(default_factory=InferredAugment)
    seed: int = 1993
    engine: Engine = field(default_factory=Engine)
    workers: int = 0
    image_size: int | None = None
    oversample_rare: bool = False


def _statistics(images: Images) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    if isinstance(images, PixelImages):
        return channel_statistics(images.pixels.cpu())
    return IMAGENET_MEAN, IMAGENET_STD
