"""Crops of images in files: the test crop, or a training crop of a random area of the image."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
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
    too_large,
)

Box = tuple[int, int, int, int]  # left, top, right and bottom
MakeCrop = Callable[[], Tensor]  # returns uint8 [3, H, W]

_AREA = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)  # of width to height
_ATTEMPTS = 10
# The number of images to read, and to draw crops of, before decoding the first of them. Decoding
# fills the processor's cache: the many small steps before it would be several times slower if they
# alternated with it.
_AT_ONCE = 32
_APP1 = b"\xff\xe1"  # the marker of a JPEG's segment for Exif and XMP


class CropDataset(data.Dataset[Tensor]):
    """Reads and crops images, for the workers of a ``DataLoader``.

    The key of an item is its index and a seed. These two determine the training crop, so results
    don't depend on the workers. Without a seed, the item is the test crop.

    With ``buffers``, a worker puts its batches into that many pieces of shared memory in turn: a
    batch is overwritten once the worker has made that many more.
    """

    def __init__(self, images: Images, buffers: int = 0) -> None:
        self.images = images
        self.shape = image_shape(images)
        self._buffers = deque[Tensor](maxlen=buffers)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, item: tuple[int, int | None]) -> Tensor:
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[tuple[int, int | None]]) -> Tensor:
        """The crops of a batch, uint8 ``[B, 3, H, W]``, in memory with colours last."""
        batch = self._memory(len(items))
        with muted:
            for start in range(0, len(items), _AT_ONCE):
                some = slice(start, start + _AT_ONCE)
                for row, crop in zip(batch[some], self._crops(items[some]), strict=True):
                    row.copy_(crop.permute(1, 2, 0))
        return batch.permute(0, 3, 1, 2)

    def _memory(self, count: int) -> Tensor:
        """Memory for a batch, uint8 ``[count, H, W, 3]``."""
        if not self._buffers.maxlen or data.get_worker_info() is None:
            return torch.empty(count, *self.shape, 3, dtype=torch.uint8)
        # New shared memory for each batch would take a quarter of a worker's time, since the
        # system clears every page of it.
        full = len(self._buffers) == self._buffers.maxlen
        buffer = self._buffers.popleft() if full else None
        if buffer is None or len(buffer) < count:
            buffer = torch.zeros(count, *self.shape, 3, dtype=torch.uint8).share_memory_()
        self._buffers.append(buffer)
        return buffer[:count]

    def _crops(self, items: Sequence[tuple[int, int | None]]) -> Iterator[Tensor]:
        """Yield the crops of a few images, whose files are all read first."""
        if isinstance(self.images, PixelImages):
            yield from (self._crop_from_memory(self.images, *item) for item in items)
            return
        files, ready = [self.images.files[index] for index, _ in items], []
        for file, (index, seed) in zip(files, items, strict=True):
            with _naming(file, index):
                ready.append(self._prepared(file, index, seed))
        for make, file, (index, _) in zip(ready, files, items, strict=True):
            with _naming(file, index):
                crop = make()
            yield crop

    def _crop_from_memory(self, images: PixelImages, index: int, seed: int | None) -> Tensor:
        pixels = images.pixels[index]
        if seed is None:
            return pixels
        generator = np.random.default_rng([seed, index])
        return random_resized_crop(pixels.permute(1, 2, 0).numpy(), self.shape, generator)

    def _prepared(self, file: Path | bytes, index: int, seed: int | None) -> MakeCrop:
        if seed is None:
            return lambda: centre_crop(open_rgb(file, self.shape[0]), self.shape[0])
        return prepare_crop(file, self.shape, np.random.default_rng([seed, index]))


@contextmanager
def _naming(file: Path | bytes, index: int) -> Iterator[None]:
    """Add to an `UnreadableImage` the file's name, and the command that lists all such files."""
    try:
        yield
    except UnreadableImage as error:
        name = f"Image {index}" if isinstance(file, bytes) else repr(str(file))
        raise UnreadableImage(
            f"{name} can't be read ({error}); `densekd data check` lists all such files."
        ) from error


def prepare_crop(
    file: Path | bytes, shape: tuple[int, int], generator: np.random.Generator
) -> MakeCrop:
    """Read an image file, and return a function that makes the training crop.

    The crop is that of `random_resized_crop`. A usual JPEG is decoded by libjpeg-turbo itself, to
    the same pixels as by Pillow but faster. If the drawn part is large, it is decoded at half its
    size or less, but never to fewer pixels than the crop has.

    Raises:
        UnreadableImage: it is missing, not an image, damaged or too large. The returned function
            raises it, too.
    """
    content = content_of(file)
    size = _plain_jpeg_size(content)
    if size is None:
        return lambda: random_resized_crop(np.array(open_rgb(content)), shape, generator)
    return partial(_decode_part, content, size, draw_box(*size, generator), shape)


def _plain_jpeg_size(content: bytes) -> tuple[int, int] | None:
    """Width and height of an upright JPEG in RGB or grey; None for any other image."""
    # Without a segment APP1, there is no tag that turns the picture, so Pillow isn't needed.
    if _APP1 not in content:
        with suppress(ValueError):  # Pillow decides whether an image can be read
            height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
            if colours in ("YCbCr", "RGB", "Gray") and not too_large(width, height):
                return width, height
    with reading(content) as image:
        if image.format != "JPEG" or image.mode not in ("RGB", "L"):
            return None
        with suppress(Exception):  # damaged tags in an intact picture
            if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
                return image.size
    return None


def _decode_part(content: bytes, size: tuple[int, int], box: Box, shape: tuple[int, int]) -> Tensor:
    """Decode a JPEG, at a reduced size if ``box`` has pixels to spare, and resize the box."""
    width, height = size
    least = {
        "min_height": math.ceil(height * shape[0] / (box[3] - box[1])),
        "min_width": math.ceil(width * shape[1] / (box[2] - box[0])),
    }
    spare = 2 * least["min_height"] <= height and 2 * least["min_width"] <= width
    try:
        reduced = {**least, "min_factor": 2} if spare else {}
        pixels = simplejpeg.decode_jpeg(content, "RGB", **reduced)
    except ValueError:  # Pillow decides whether an image can be read
        pixels = np.array(open_rgb(content))
    if pixels.shape[:2] == (height, width):
        return resample(pixels, box, shape)
    small_height, small_width = pixels.shape[:2]
    # A JPEG is decoded at a whole number of eighths of its size, rounded up.
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

    A new pixel is the average of the pixels that it covers, as with Pillow, to within one level.
    The result has colours last in memory.
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
