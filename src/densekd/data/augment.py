"""Augmentation of whole batches, on the images' device."""

import copy
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from densekd.checks import check_choice
from densekd.data import autoaugment
from densekd.data.dataset import Channels

Strength = Literal["usual", "heavy"]
# How training images are cropped: from the padded test crop, or from any part of the image, with
# random area and aspect ratio; see `densekd.data.crops`.
Crop = Literal["padded", "resized"]

# An image with at least so many values is augmented by itself, not in a batch.
_LARGE = 3 * 100 * 100


class Draws(NamedTuple):
    """The random numbers for the augmentation of n images."""

    corners: Tensor  # int64 [n, 2], the upper left corner of the crop in the padded image
    flipped: Tensor  # bool [n]
    brightness: Tensor  # float [n], the factor to multiply the pixels by
    heavy: Tensor  # float [n, k], uniform numbers for heavy augmentation; k is 0 without it

    def take(self, index: Tensor | slice) -> "Draws":
        """Return the draws for some of the images."""
        return Draws(*(part[index] for part in self))

    def to(self, device: torch.device) -> "Draws":
        """Copy the draws to another device without waiting for the copy."""
        return Draws(*(part.to(device, non_blocking=True) for part in self))


class Augment(nn.Module):
    """Random crops, flips and brightness, then normalisation.

    It does the same for images in memory and in files. Crops of a random area are cut when images
    are read; everything else is done here.

    Args:
        mean: of each channel, for pixels scaled to 0 to 1.
        std: of each channel, likewise.
        padding: the black border added to an image before a ``padded`` crop, in pixels.
        flip: mirror half of the images.
        brightness: multiply each image by a factor between 1 minus this and 1 plus this.
        crop: ``padded``, or ``resized`` for crops of a random area, which have no border.
    """

    heavy = False
    mixup = 0.0

    def __init__(
        self,
        mean: Channels,
        std: Channels,
        *,
        padding: int = 4,
        flip: bool = True,
        brightness: float = 0.0,
        crop: Crop = "padded",
    ) -> None:
        super().__init__()
        check_choice("crop", crop, get_args(Crop))
        if padding < 0 or not 0 <= brightness < 1 or min(std) <= 0:
            raise ValueError(
                f"Can't augment with padding={padding}, brightness={brightness}, std={std}."
            )
        self.mean, self.std = mean, std
        self.padding = padding
        self.flip = flip
        self.brightness = brightness
        self.crop = crop
        deviation = torch.tensor(std).view(3, 1, 1)
        self.register_buffer("scale", 1 / (255 * deviation))
        self.register_buffer("shift", -torch.tensor(mean).view(3, 1, 1) / deviation)

    def draw(self, n: int, generator: torch.Generator) -> Draws:
        """Draw the random numbers for n images, on the generator's device."""
        device = generator.device
        corners = torch.randint(2 * self.padding + 1, (n, 2), generator=generator, device=device)
        uniform = torch.rand(n, 2, generator=generator, device=device)
        flipped = (uniform[:, 0] < 0.5) & self.flip
        brightness = 1 + self.brightness * (2 * uniform[:, 1] - 1)
        # Drawn last, so that heavy augmentation doesn't change the other draws.
        numbers = autoaugment.NUMBERS + 2 if self.heavy else 0
        heavy = torch.rand(n, numbers, generator=generator, device=device)
        return Draws(corners, flipped, brightness, heavy)

    def forward(self, pixels: Tensor, draws: Draws) -> Tensor:
        """Augment and normalise images: uint8 ``[B, 3, H, W]`` to float ``[B, 3, H, W]``."""
        if pixels.device.type != "cpu" or self.heavy or pixels[:1].numel() < _LARGE:
            return self.normalise(self._augmented(pixels, draws))
        # One at a time, a large image stays in the processor's cache through all steps.
        batch = torch.empty_like(pixels, dtype=self.get_buffer("scale").dtype)
        rows, scale, shift = self._rows(batch)
        flipped, corners = draws.flipped.tolist(), draws.corners.tolist()
        for i, image in enumerate(pixels):
            image = self._cut(image, corners[i], flipped[i])
            batch[i].copy_(self._brightened(image, draws.brightness[i]))
            torch.addcmul(shift, rows[i], scale, out=rows[i])
        return batch

    def _rows(self, batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return a view of a batch that is fast to normalise, and scale and shift to match it."""
        scale, shift = self.get_buffer("scale"), self.get_buffer("shift")
        if not batch.is_contiguous(memory_format=torch.channels_last):
            return batch, scale, shift
        # With colours last, a row of pixels at a time is far faster than three colours at a time.
        width = batch.shape[3]
        rows = batch.permute(0, 2, 3, 1).flatten(2)
        return rows, scale.flatten().repeat(width), shift.flatten().repeat(width)

    def _cut(self, image: Tensor, corner: list[int], flipped: bool) -> Tensor:
        """Crop and flip one image; faster than `_crop_and_flip` if it is large."""
        if self.padding and self.crop == "padded":
            (top, left), (height, width) = corner, image.shape[1:]
            image = pad(image, (self.padding,) * 4)[:, top : top + height, left : left + width]
        return image.flip(-1) if flipped else image

    def _augmented(self, pixels: Tensor, draws: Draws) -> Tensor:
        if self.heavy:
            pixels = _cutout(pixels, draws.heavy[:, autoaugment.NUMBERS :])
        if self.padding and self.crop == "padded":
            pixels = self._crop_and_flip(pixels, draws)
        elif self.flip:
            pixels = torch.where(draws.flipped.view(-1, 1, 1, 1), pixels.flip(-1), pixels)
        if self.heavy:
            pixels = autoaugment.distorted(pixels, draws.heavy)
        return self._brightened(pixels, draws.brightness.view(-1, 1, 1, 1))

    def _brightened(self, pixels: Tensor, factor: Tensor) -> Tensor:
        return (pixels * factor).clamp_(max=255) if self.brightness else pixels

    def of(self, strength: Strength, mixup: float = 0.0) -> "Augment":
        """Return a copy with this strength and this mixup (alpha of `Mixup`; 0 for none).

        ``heavy`` is CCIL's augmentation: cutout of half an image's side, borders mirrored instead
        of black, and AutoAugment.
        """
        if mixup < 0:
            raise ValueError(f"mixup must be at least 0, not {mixup}.")
        other = copy.copy(self)
        other.heavy, other.mixup = strength == "heavy", mixup
        return other

    def normalise(self, pixels: Tensor) -> Tensor:
        """Normalise images ``[B, 3, H, W]`` from 0 to 255 to float of the same shape."""
        scale, shift = self.get_buffer("scale"), self.get_buffer("shift")
        return torch.addcmul(shift, pixels.to(scale.dtype), scale)

    def _crop_and_flip(self, pixels: Tensor, draws: Draws) -> Tensor:
        # One gather of pixels from the padded images does both, which is faster than slicing.
        batch, channels, height, width = pixels.shape
        padded = self._padded(pixels).flatten(2)
        row = torch.arange(height, device=pixels.device)
        column = torch.arange(width, device=pixels.device)
        column = torch.where(draws.flipped[:, None], width - 1 - column, column)
        rows = draws.corners[:, :1] + row
        columns = draws.corners[:, 1:] + column
        index = rows[:, :, None] * (width + 2 * self.padding) + columns[:, None, :]
        index = index.view(batch, 1, -1).expand(-1, channels, -1)
        return padded.gather(2, index).view_as(pixels)

    def _padded(self, pixels: Tensor) -> Tensor:
        if not self.heavy:
            return pad(pixels, (self.padding,) * 4)
        # torch's reflection padding doesn't take uint8.
        rows, columns = (_mirrored(side, self.padding, pixels.device) for side in pixels.shape[2:])
        return pixels[:, :, rows][:, :, :, columns]


def _mirrored(side: int, padding: int, device: torch.device) -> Tensor:
    """Return the indices that pad a side by mirroring it at its ends."""
    index = torch.arange(-padding, side + padding, device=device).abs()
    return (side - 1 - (side - 1 - index).abs()).clamp(min=0)


def _cutout(pixels: Tensor, centre: Tensor) -> Tensor:
    """Blacken a square of half a side around a point ``[B, 2]``, from 0 to below 1."""
    near = []
    for axis, side in enumerate(pixels.shape[2:]):
        offset = torch.arange(side, device=pixels.device) - (centre[:, axis, None] * side).long()
        near.append((offset >= -(side // 4)) & (offset < side // 4))
    return pixels.masked_fill((near[0][:, :, None] & near[1][:, None])[:, None], 0)
