"""Augmentation of whole batches, on the device where the images are."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from densekd.data.dataset import Channels


class Draws(NamedTuple):
    """What is random about the augmentation of n images."""

    corners: Tensor  # int64 [n, 2], the upper left corner of the crop in the padded image
    flipped: Tensor  # bool [n]
    brightness: Tensor  # float [n], the factor of the pixels

    def take(self, index: Tensor | slice) -> "Draws":
        """The draws for some of the images."""
        return Draws(*(part[index] for part in self))

    def to(self, device: torch.device) -> "Draws":
        """The draws on another device, without waiting for it."""
        return Draws(*(part.to(device, non_blocking=True) for part in self))


class Augment(nn.Module):
    """Random crops of padded images, flips, brightness; then normalisation.

    Args:
        mean: of each channel, pixels counting from 0 to 1.
        std: of each channel.
        padding: how many black pixels to put around an image before cropping it.
        flip: mirror every second image, on average.
        brightness: multiply each image by up to this much more or less, 0 for none.
    """

    def __init__(
        self,
        mean: Channels,
        std: Channels,
        *,
        padding: int = 4,
        flip: bool = True,
        brightness: float = 0.0,
    ) -> None:
        super().__init__()
        if padding < 0 or not 0 <= brightness < 1 or min(std) <= 0:
            raise ValueError(
                f"Can't augment with padding={padding}, brightness={brightness}, std={std}."
            )
        self.padding = padding
        self.flip = flip
        self.brightness = brightness
        deviation = torch.tensor(std).view(3, 1, 1)
        self.register_buffer("scale", 1 / (255 * deviation))
        self.register_buffer("shift", -torch.tensor(mean).view(3, 1, 1) / deviation)

    def draw(self, n: int, generator: torch.Generator) -> Draws:
        """Draw the augmentation of n images, on the generator's device."""
        device = generator.device
        corners = torch.randint(2 * self.padding + 1, (n, 2), generator=generator, device=device)
        uniform = torch.rand(n, 2, generator=generator, device=device)
        flipped = (uniform[:, 0] < 0.5) & self.flip
        return Draws(corners, flipped, 1 + self.brightness * (2 * uniform[:, 1] - 1))

    def forward(self, pixels: Tensor, draws: Draws) -> Tensor:
        """Augmented, normalised images: uint8 ``[B, 3, H, W]`` to float ``[B, 3, H, W]``."""
        if self.padding or self.flip:
            pixels = self._crop_and_flip(pixels, draws)
        if self.brightness == 0:
            return self.normalise(pixels)
        bright = pixels * draws.brightness.view(-1, 1, 1, 1)
        return self.normalise(bright.clamp_(max=255))

    def normalise(self, pixels: Tensor) -> Tensor:
        """Normalised images: ``[B, 3, H, W]``, 0 to 255, to float of the same shape."""
        scale, shift = self.get_buffer("scale"), self.get_buffer("shift")
        return torch.addcmul(shift, pixels.to(scale.dtype), scale)

    def _crop_and_flip(self, pixels: Tensor, draws: Draws) -> Tensor:
        # One gather of single pixels in the padded plane does both, faster than slicing.
        batch, channels, height, width = pixels.shape
        padded = pad(pixels, (self.padding,) * 4).flatten(2)
        row = torch.arange(height, device=pixels.device)
        column = torch.arange(width, device=pixels.device)
        column = torch.where(draws.flipped[:, None], width - 1 - column, column)
        rows = draws.corners[:, :1] + row
        columns = draws.corners[:, 1:] + column
        index = rows[:, :, None] * (width + 2 * self.padding) + columns[:, None, :]
        index = index.view(batch, 1, -1).expand(-1, channels, -1)
        return padded.gather(2, index).view_as(pixels)
