"""What a learner is told besides its network and its method."""

from dataclasses import dataclass, field

from densekd.data.augment import Augment
from densekd.data.dataset import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Images,
    PixelImages,
    channel_statistics,
)
from densekd.nn.transformers_backbone import own_statistics
from densekd.training.engine import Engine

# Of an image's size, what is put around it before it is cropped: 4 pixels of CIFAR's 32.
_PADDING = 8


class InferredAugment(Augment):
    """Stands for an augmentation whose mean and deviation are those of the first images.

    Args:
        padding: how many black pixels to put around an image; an eighth of its size unless given.
        flip: mirror every second image, on average.
        brightness: multiply each image by up to this much more or less, 0 for none.
    """

    def __init__(
        self, *, padding: int | None = None, flip: bool = True, brightness: float = 0.0
    ) -> None:
        super().__init__(
            (0.5,) * 3, (0.5,) * 3, padding=padding or 0, flip=flip, brightness=brightness
        )
        self.by_size = padding is None

    def on(self, images: Images, backbone: object) -> Augment:
        """The augmentation for such images; a pretrained backbone knows what to normalise by."""
        mean, std = own_statistics(backbone) or _statistics(images)
        shortest = min(images.pixels.shape[2:]) if isinstance(images, PixelImages) else images.size
        padding = shortest // _PADDING if self.by_size else self.padding
        return Augment(mean, std, padding=padding, flip=self.flip, brightness=self.brightness)


@dataclass(frozen=True)
class Settings:
    """What is the same for all methods.

    Args:
        augment: how images are augmented and normalised; by what the first images suggest unless
            given.
        seed: of all random streams.
        engine: where and how it is computed.
        workers: processes that decode images in files.
        image_size: the height and width that pictures of various sizes are brought to.
        oversample_rare: show new images of rare classes more often; see
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
