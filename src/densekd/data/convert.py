"""Convert images and data sets of other kinds: arrays, Pillow images, torch, Hugging Face."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from densekd.data.dataset import (
    Dataset,
    FileImages,
    Images,
    OnProgress,
    PixelImages,
    Split,
    image_shape,
    image_statistics,
    rgb_planes,
)
from densekd.data.decode import UnreadableImage, centre_crop, in_threads, open_rgb, upright_rgb
from densekd.data.folder_images import load_folder
from densekd.data.hub import count_up_to, hub_dataset
from densekd.data.scenario import Task
from densekd.data.stratify import TEST_FRACTION, stratified_split
from densekd.parts import OwnPartError, display_name, explain_errors, line_of
from densekd.seeds import fixed_random_state
from densekd.text import first_line

ImageInput = Path | str | Image.Image | NDArray[Any]
Label = str | int
ImageInputs = Images | NDArray[Any] | Tensor | Sequence[ImageInput]
_TESTS = ("test", "val", "validation", "valid")


@dataclasses.dataclass(frozen=True)
class ConvertOptions:
    """How `as_dataset` reads data."""

    image_size: int | None = None  # the height and width to resize images to; arrays must have it
    seed: int = 0  # draws the test images of data that has none
    image_column: str | None = None  # of Hugging Face data with several image columns
    label_column: str | None = None  # of Hugging Face data with several label columns
    on_progress: OnProgress | None = None


def as_dataset(data: Any, name: str = "data", options: ConvertOptions | None = None) -> Dataset:
    """Convert data in any usual form to a data set; a large folder's images stay in their files.

    Args:
        data: a `Dataset`; the path of a folder with a sub-folder per class; arrays or tensors
            ``(train_x, train_y, test_x, test_y)``; a pair or a mapping ``train``, ``test`` of torch
            data sets, whose items are ``(image, label)``; Hugging Face's ``DatasetDict``; or a
            function without arguments that returns one of these. Without test images, a fifth of
            each class is taken for testing.
        name: the name of the data set.
        options: see `ConvertOptions`.

    Raises:
        OwnPartError: it is none of these or can't be converted; the message names it ``name``.

    Example:
        >>> import numpy as np
        >>> from densekd import Scenario, as_dataset
        >>> x, y = np.zeros((40, 8, 8, 3), np.uint8), ["a", "b", "c", "d"] * 10
        >>> Scenario.of(as_dataset((x, y, x, y)), base=2, steps=2)
        Scenario('data', tasks of [2, 1, 1] classes)
    """
    options = options or ConvertOptions()
    part = display_name(name, "data set")
    with fixed_random_state():
        with explain_errors(part):
            value = data() if callable(data) and not _is_sequence(data) else data
        try:
            made = _convert(value, part, options)
        except OwnPartError:
            raise
        except (ValueError, OSError) as error:
            where = line_of(error)
            kind = f"{type(error).__name__}{where}: " if where else ""
            raise OwnPartError(f"{part} can't be used: {kind}{error}") from error
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
            kind = f"{type(error).__name__}{line_of(error)}"
            raise OwnPartError(f"{part} can't be used: {kind}: {first_line(error)}.") from error
    (height, width), size = image_shape(made.train.images), options.image_size
    if size is not None and (height, width) != (size, size):
        raise OwnPartError(
            f"{part} has images of {height} x {width} pixels, and image_size doesn't resize arrays "
            "or a Dataset; resize them, or leave image_size out."
        )
    return dataclasses.replace(made, name=name)


def as_images(pictures: ImageInputs, size: int | None = None) -> Images:
    """Convert images of any kind to the images of a data set; raise ValueError for others.

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
    # A one-dimensional array of names or objects is a sequence; any other array must be pixels.
    row = isinstance(pictures, np.ndarray) and pictures.ndim == 1 and pictures.dtype.kind in "UO"
    if isinstance(pictures, np.ndarray | Tensor) and not row:
        return PixelImages(_pixels(pictures))
    if isinstance(pictures, str | Path | Image.Image):
        raise ValueError("This is one image; give a list of images, if only of one.")
    if not isinstance(pictures, Iterable):
        raise ValueError(f"Images must be an array or a list, not {pictures!r}.")
    return PixelImages(_decode(list(pictures), size))


def as_labels(labels: Iterable[Label], images: int) -> list[Label]:
    """List labels; raise ValueError unless each image has one, a name or a whole number."""
    single = isinstance(labels, str) or getattr(labels, "ndim", 1) == 0
    if single or not isinstance(labels, Iterable):
        raise ValueError(f"Labels must be a list with one for each image, not {labels!r}.")
    given: list[Any] = labels.tolist() if isinstance(labels, np.ndarray | Tensor) else list(labels)
    if len(given) != images:
        raise ValueError(f"{images} images have {len(given)} labels; give one for each.")
    given = [label.item() if getattr(label, "ndim", 1) == 0 else label for label in given]
    wrong = [label for label in given if not isinstance(label, str | int)]
    if wrong:
        raise ValueError(f"A label must be a name or a whole number, not {wrong[0]!r}.")
    kinds = {type(label) for label in given}
    if bool in kinds and len(kinds) > 1:
        raise ValueError("Labels are either all true or false, or none is: True equals 1.")
    return given


def class_names(labels: Iterable[Label]) -> tuple[str, ...]:
    """The text of each distinct label: numbers first, in numeric order, then names, sorted."""
    ordered = sorted(set(labels), key=lambda label: (isinstance(label, str), label))
    return tuple(dict.fromkeys(map(str, ordered)))


def as_task(images: Images, labels: Iterable[Label], known: Sequence[str], number: int) -> Task:
    """Make the next task, with its classes in the order of their labels.

    A class is named by the text of its label. Raises ValueError if that is the name of one of the
    ``known`` classes, which were learned before.
    """
    given = as_labels(labels, len(images))
    if not given:
        raise ValueError("There is no image to learn from.")
    names = class_names(given)
    again = [name for name in names if name in known]
    if again:
        raise ValueError(
            f"The class {again[0]!r} was learned before, and can't be learned again: leave its "
            "images out, or learn everything anew with fit."
        )
    ranks = {name: len(known) + rank for rank, name in enumerate(names)}
    train = Split(images, torch.tensor([ranks[str(label)] for label in given]))
    return Task(number, names, len(known), train, train.take(torch.arange(0)))


def _convert(value: Any, name: str, options: ConvertOptions) -> Dataset:
    if isinstance(value, Dataset):
        return value
    seed, size, on_progress = options.seed, options.image_size, options.on_progress
    if isinstance(value, str | Path):
        return load_folder(value, image_size=size, seed=seed, on_progress=on_progress)
    if isinstance(value, tuple | list) and len(value) == 4:
        parts = [_Part(x, as_labels(y, len(x))) for x, y in (value[:2], value[2:])]
        return _dataset(name, parts, None, options)
    train, test = _divided(value)
    if hasattr(train, "features") and hasattr(train, "select_columns"):
        # Test images are often published without labels; then test on the validation images.
        held = value.get("validation") if isinstance(value, Mapping) else None
        named = {"train": train, "test": test, "validation": held}
        rows = {key: part for key, part in named.items() if part is not None}
        columns = {"image": options.image_column, "label": options.label_column}
        return hub_dataset(name, rows, columns, size, seed, on_progress)
    if not _is_sequence(train) or not (test is None or _is_sequence(test)):
        raise OwnPartError(
            f"{name} must be a Dataset, a folder, arrays (train_x, train_y, test_x, test_y), torch "
            f"or Hugging Face data sets, or a function that returns one, not "
            f"{type(value).__name__}."
        )
    found = [x for x in (train, test) if x is not None]
    count = count_up_to(sum(map(len, found)), on_progress)
    classes = getattr(train, "classes", None)
    return _dataset(name, [_items(part, count) for part in found], classes, options)


class _Part(NamedTuple):
    """The images and labels of the training or the test images."""

    images: Any
    labels: list[Label]


def _is_sequence(value: Any) -> bool:
    return hasattr(value, "__getitem__") and hasattr(value, "__len__")


def _divided(value: Any) -> tuple[Any, Any]:
    """The training and the test data; None if there is no test data."""
    if isinstance(value, Mapping):
        if "train" not in value:
            raise ValueError(f"it has {', '.join(map(str, value))}, and 'train' must be among them")
        return value["train"], next((value[key] for key in _TESTS if key in value), None)
    if isinstance(value, tuple | list) and len(value) == 2:
        return value[0], value[1]
    return value, None


def _items(part: Any, count: Callable[[], None]) -> _Part:
    """The items of a torch data set."""
    images, labels = [], []
    for i in range(len(part)):
        item = part[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(
                f"item {i} is of type {type(item).__name__}; it must be a pair (image, label)."
            )
        image, label = item
        images.append(image)
        labels.append(label.item() if hasattr(label, "item") else label)
        count()
    return _Part(images, as_labels(labels, len(images)))


def _dataset(
    name: str, parts: list[_Part], names: Sequence[str] | None, options: ConvertOptions
) -> Dataset:
    """Make a data set of one or two parts; ``names`` default to the labels of the first part."""
    labels = [label for part in parts for label in part.labels]
    learned = set(parts[0].labels)
    if not learned:
        raise ValueError("it has no training images.")
    if names is None:
        names = class_names(learned)
        rank = {name: i for i, name in enumerate(names)}
        ranks: dict[Label, int] = {label: rank[str(label)] for label in learned}
    else:
        names = tuple(map(str, names))
        ranks = {known: i for i, text in enumerate(names) for known in (i, text)}
    unknown = [label for label in labels if label not in ranks]
    if unknown:
        raise ValueError(f"the label {unknown[0]!r} is none of its {len(names)} classes.")
    splits = [
        Split(
            as_images(part.images, options.image_size),
            torch.tensor([ranks[label] for label in part.labels], dtype=torch.int64),
        )
        for part in parts
    ]
    if len(splits) == 1:
        splits = list(stratified_split(splits[0], TEST_FRACTION, options.seed))
    train, test = splits
    shapes = [image_shape(split.images) for split in splits]
    if shapes[0] != shapes[1]:
        raise ValueError(f"training images have {shapes[0]} pixels, test images {shapes[1]}.")
    return Dataset(name, names, train, test, *image_statistics(train.images))


def _pixels(given: NDArray[Any] | Tensor) -> Tensor:
    """Convert an array in any layout to uint8 ``[n, 3, H, W]``."""
    try:
        plain = given if isinstance(given, Tensor) else np.ascontiguousarray(given)
        images = torch.as_tensor(plain).detach().cpu()
    except TypeError as error:
        raise ValueError(f"Images must be uint8 or floats, not {given.dtype}.") from error
    if images.ndim == 3 and images.shape[2] == 3:
        raise ValueError("This looks like one image; add a dimension in front: X[None].")
    if len(images) and not images.numel():
        raise ValueError(f"Images of shape {list(images.shape)} have no pixels.")
    return rgb_planes(_to_bytes(images), channels_first=isinstance(given, Tensor))


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
            "to bring them to: image_size, in a Learner Settings(image_size=...)."
        )
    return torch.stack(decoded)


def _decode_one(picture: ImageInput, size: int | None) -> Tensor:
    """Convert an array, a Pillow image or a file to uint8 ``[3, H, W]``."""
    if isinstance(picture, np.ndarray | Tensor):
        image = Image.fromarray(_pixels(picture[None])[0].permute(1, 2, 0).numpy())
    else:
        image = _open(picture, size)
    if size is not None:
        return centre_crop(image, size)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _open(picture: Path | str | Image.Image, size: int | None) -> Image.Image:
    if isinstance(picture, Image.Image):
        return upright_rgb(picture.copy())
    if not isinstance(picture, str | os.PathLike):
        kind = type(picture).__name__
        raise ValueError(f"An image must be a file, a Pillow image or an array, not {kind}.")
    try:
        return open_rgb(Path(picture), size)
    except UnreadableImage as error:
        raise UnreadableImage(f"{str(picture)!r} can't be read ({error}).") from error
