"""Crops of images in files: the test crop, or a training crop of a random area of the image."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import simplejpeg  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils import data

from densekd.data.dataset import Images, PixelImages, image_shape
from densekd.data.decode import (
    UnreadableImage,
    centre_crop,
    content_of,
    muted,
    open_rgb,
    reading,
    upright_rgb,
)

Box = tuple[int, int, int, int]  # left, top, right and bottom

_AREA = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)  # of width to height
_ATTEMPTS = 10


class CropDataset(data.Dataset[Tensor]):
    """Reads and crops images one by one, for the workers of a ``DataLoader``.

    The key of an item is its index and a seed. The seed draws the training crop of each image by
    itself, so results don't depend on the workers. Without a seed the item is the test crop.
    """

    def __init__(self, images: Images) -> None:
        self.images = images
        self.shape = image_shape(images)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, item: tuple[int, int | None]) -> Tensor:
        index, seed = item
        generator = None if seed is None else np.random.default_rng([seed, index])
        if isinstance(self.images, PixelImages):
            pixels = self.images.pixels[index]
            if generator is None:
                return pixels
            return random_resized_crop(pixels.permute(1, 2, 0).numpy(), self.shape, generator)
        file = self.images.files[index]
        try:
            if generator is None:
                return centre_crop(open_rgb(file, self.images.size), self.images.size)
            return training_crop(file, self.shape, generator)
        except UnreadableImage as error:
            name = f"Image {index}" if isinstance(file, bytes) else repr(str(file))
            raise UnreadableImage(
                f"{name} can't be read ({error}); `densekd data check` lists all such files."
            ) from error

    def __getitems__(self, items: Sequence[tuple[int, int | None]]) -> Tensor:
        """The crops of a batch, uint8 ``[B, 3, H, W]``, in memory with colours last."""
        batch = torch.empty(len(items), *self.shape, 3, dtype=torch.uint8)
        with muted:
            for row, item in zip(batch, items, strict=True):
                row.copy_(self[item].permute(1, 2, 0))
        return batch.permute(0, 3, 1, 2)


def training_crop(
    file: Path | bytes, shape: tuple[int, int], generator: np.random.Generator
) -> Tensor:
    """Make a training crop of an image file; see `random_resized_crop`.

    A usual JPEG is decoded by libjpeg-turbo itself, to the same pixels as by Pillow but faster. If
    the drawn part is large, it is decoded at half its size or less, but at no fewer pixels than
    the crop has.

    Raises:
        UnreadableImage: it is missing, not an image, damaged or too large.
    """
    content = content_of(file)
    with reading(content) as image:
        if _is_plain_jpeg(image):
            return _decode_part(content, image, draw_box(*image.size, generator), shape)
        image.load()
        pixels = np.array(upright_rgb(image))
    return random_resized_crop(pixels, shape, generator)


def _is_plain_jpeg(image: Image.Image) -> bool:
    """Whether an opened image is a JPEG in RGB or grey that stands upright."""
    if image.format != "JPEG" or image.mode not in ("RGB", "L"):
        return False
    try:
        return bool(image.getexif().get(ExifTags.Base.Orientation, 1) == 1)
    except Exception:  # damaged tags in an intact picture
        return False


def _decode_part(content: bytes, image: Image.Image, box: Box, shape: tuple[int, int]) -> Tensor:
    """Decode a JPEG, at a reduced size if ``box`` has pixels to spare, and resize the box."""
    width, height = image.size
    least = {
        "min_height": math.ceil(height * shape[0] / (box[3] - box[1])),
        "min_width": math.ceil(width * shape[1] / (box[2] - box[0])),
    }
    spare = 2 * least["min_height"] <= height and 2 * least["min_width"] <= width
    try:
        reduced = {**least, "min_factor": 2} if spare else {}
        pixels = simplejpeg.decode_jpeg(content, "RGB", **reduced)
    except ValueError:  # whether an image can be read is for Pillow to say
        image.load()
        pixels = np.array(upright_rgb(image))
    if pixels.shape[:2] == (height, width):
        return resample(pixels, box, shape)
    small_height, small_width = pixels.shape[:2]
    # One of the sizes that the format has: so many eighths, rounded up.
    scale = next(n / 8 for n in range(1, 9) if math.ceil(width * n / 8) == small_width)
    left, top, right, bottom = (scale * side for side in box)
    part = left, top, min(right, small_width), min(bottom, small_height)
    resized = Image.fromarray(pixels).resize(shape[::-1], Image.Resampling.BILINEAR, box=part)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


def random_resized_crop(
    pixels: NDArray[np.uint8], shape: tuple[int, int], generator: np.random.Generator
) -> Tensor:
    """Make a training crop of an RGB image ``[H, W, 3]``: uint8 ``[3, *shape]``.

    Its area is uniform in 0.08 to 1 of the image's, its ratio of width to height log-uniform in
    3/4 to 4/3.
    """
    height, width = pixels.shape[:2]
    return resample(pixels, draw_box(width, height, generator), shape)


def resample(pixels: NDArray[np.uint8], box: Box, shape: tuple[int, int]) -> Tensor:
    """Resize the part of an image ``[H, W, 3]`` in ``box`` to uint8 ``[3, *shape]``.

    It averages over the pixels that a new one covers, as Pillow does, to within one level. The
    memory has colours last.
    """
    left, top, right, bottom = box
    image = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)[:, :, top:bottom, left:right]
    return interpolate(image, shape, mode="bilinear", antialias=True)[0]


def draw_box(width: int, height: int, generator: np.random.Generator) -> Box:
    """Draw the box of a crop; after ten failures take the largest centred box."""
    for _ in range(_ATTEMPTS):
        area = width * height * generator.uniform(*_AREA)
        ratio = math.exp(generator.uniform(math.log(_RATIO[0]), math.log(_RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left = int(generator.integers(width - w + 1))
            top = int(generator.integers(height - h + 1))
            return left, top, left + w, top + h
    ratio = min(max(width / height, _RATIO[0]), _RATIO[1])
    w, h = min(width, round(height * ratio)), min(height, round(width / ratio))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
