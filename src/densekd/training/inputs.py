"""Convert arrays, tensors, Pillow images or paths with labels to images and a task."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from densekd.data.dataset import FileImages, Images, PixelImages, Split, rgb_planes
from densekd.data.decode import UnreadableImage, centre_crop, in_threads, open_rgb, upright_rgb
from densekd.data.scenario import Task

ImageInput = Path | str | Image.Image | NDArray[Any]
ImageInputs = Images | NDArray[Any] | Tensor | Sequence[ImageInput]
Label = str | int


def as_images(pictures: ImageInputs, size: int | None = None) -> Images:
    """Convert images of any kind to those of a data set.

    Args:
        pictures: one array or tensor, uint8 or floats from 0 to 1, of shape ``[n, H, W]``,
            ``[n, H, W, C]`` or ``[n, C, H, W]`` with C of 1 or 3; or a sequence of paths, Pillow
            images or arrays ``[H, W]`` or ``[H, W, 3]``, which are decoded into memory; or images
            of a data set, which are returned unchanged.
        size: resize and crop each image of a sequence to this height and width; without it, all
            must have the same size.
    """
    if isinstance(pictures, PixelImages | FileImages):
        return pictures
    if isinstance(pictures, Tensor):
        return PixelImages(_pixels(pictures.detach().cpu(), channels_first=True))
    if isinstance(pictures, np.ndarray) and pictures.dtype.kind not in "UO":
        return PixelImages(_pixels(torch.from_numpy(np.ascontiguousarray(pictures))))
    if isinstance(pictures, str | Path | Image.Image):
        raise ValueError("This is one image; give a list of images, if only of one.")
    return PixelImages(_decode(list(pictures), size))


def as_task(images: Images, labels: Iterable[Label], known: Sequence[str], number: int) -> Task:
    """Make the next task, with its classes in the order of their labels.

    A class is named by the text of its label. Raises ValueError if that is among the names of the
    ``known`` classes, which were learned before.
    """
    given = as_labels(labels, len(images))
    if not given:
        raise ValueError("There is no image to learn from.")
    # Numbers in their own order, before names.
    ordered = sorted(set(given), key=lambda label: (isinstance(label, str), label))
    names = tuple(dict.fromkeys(map(str, ordered)))
    again = [name for name in names if name in known]
    if again:
        raise ValueError(
            f"The class {again[0]!r} was learned before, and can't be learned again: leave its "
            "images out, or learn everything anew with fit."
        )
    ranks = {name: len(known) + rank for rank, name in enumerate(names)}
    train = Split(images, torch.tensor([ranks[str(label)] for label in given]))
    return Task(number, names, len(known), train, train.take(torch.arange(0)))


def as_labels(labels: Iterable[Label], images: int) -> list[Label]:
    """Names and whole numbers; raises ValueError unless there is one for each of the images."""
    given = labels.tolist() if isinstance(labels, np.ndarray | Tensor) else list(labels)
    if len(given) != images:
        raise ValueError(f"{images} images have {len(given)} labels; give one for each.")
    given = [label.item() if isinstance(label, np.generic) else label for label in given]
    wrong = [label for label in given if not isinstance(label, str | int)]
    if wrong:
        raise ValueError(f"A label must be a name or a whole number, not {wrong[0]!r}.")
    return given


def _pixels(images: Tensor, channels_first: bool = False) -> Tensor:
    """Convert an array in any layout to uint8 ``[n, 3, H, W]``."""
    if images.ndim == 3 and images.shape[2] == 3:
        raise ValueError("This looks like one image; add a dimension in front: X[None].")
    return rgb_planes(_to_bytes(images), channels_first=channels_first)


def _to_bytes(images: Tensor) -> Tensor:
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        raise ValueError(f"Images must be uint8 or floats, not {images.dtype}.")
    if images.numel() and not (images.min() >= 0 and images.max() <= 1):
        raise ValueError(
            f"Images in floats must be from 0 to 1, and these are from {images.min():.3g} to "
            f"{images.max():.3g}; leave out their normalisation, or make them uint8."
        )
    return (images * 255).round().to(torch.uint8)


def _decode(pictures: list[ImageInput], size: int | None) -> Tensor:
    if not pictures:
        side = size or 1
        return torch.empty(0, 3, side, side, dtype=torch.uint8)
    decoded = list(in_threads(lambda picture: _decode_one(picture, size), pictures))
    shapes = list(dict.fromkeys(tuple(image.shape[1:]) for image in decoded))
    if len(shapes) > 1:
        (a, b), (c, d) = shapes[:2]
        raise ValueError(
            f"The images have different sizes, such as {a} x {b} and {c} x {d} pixels; say which "
            "to bring them to: Settings(image_size=...)."
        )
    return torch.stack(decoded)


def _decode_one(picture: ImageInput, size: int | None) -> Tensor:
    """Convert an array, a Pillow image or a file to uint8 ``[3, H, W]``."""
    if isinstance(picture, np.ndarray | Tensor):
        batch = as_images(picture[None])
        assert isinstance(batch, PixelImages)
        image = Image.fromarray(batch.pixels[0].permute(1, 2, 0).numpy())
    else:
        image = _open(picture, size)
    if size is not None:
        return centre_crop(image, size)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _open(picture: Path | str | Image.Image, size: int | None) -> Image.Image:
    if isinstance(picture, Image.Image):
        return upright_rgb(picture.copy())
    try:
        return open_rgb(Path(picture), size)
    except UnreadableImage as error:
        raise UnreadableImage(f"{str(picture)!r} can't be read ({error}).") from error
