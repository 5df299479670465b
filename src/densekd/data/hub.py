"""Data sets from the Hugging Face hub, or saved by its optional library ``datasets``."""

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from densekd.checks import missing_extra
from densekd.data.dataset import Dataset, OnProgress, PixelImages, Split, image_statistics
from densekd.data.decode import UnreadableImage, open_rgb
from densekd.data.stratify import TEST_FRACTION, stratified_split
from densekd.files import expand_home
from densekd.text import first_line

# For images and labels: the type of a column to find, and the possible types of a named column.
_KINDS = {"image": ("Image", ("Image",)), "label": ("ClassLabel", ("ClassLabel", "Value"))}

logger = logging.getLogger(__name__)


def load_hub(
    name: str,
    *,
    image_column: str | None = None,  # found by its type if there is only one
    label_column: str | None = None,  # the same; a column of numbers or text must be named
    image_size: int | None = None,  # height and width
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Dataset:
    """Load a data set of the hub, with all images in memory.

    The name may also be the folder of a saved data set. There must be a split ``train``. The test
    images are those of ``test``, else ``validation``, if they have labels, and otherwise a fifth of
    each class of ``train``, drawn by the seed. ``image_size`` is that of the first image unless
    given; images of another size are scaled to cover it and cropped to their centre.
    """
    if image_size is not None and image_size < 1:
        raise ValueError(f"image_size must be at least 1, not {image_size}.")
    columns = {"image": image_column, "label": label_column}
    return hub_dataset(f"hub:{name}", open_hub(name), columns, image_size, seed, on_progress)


def hub_dataset(
    name: str,
    parts: Mapping[str, Any],
    columns: Mapping[str, str | None],
    image_size: int | None = None,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Dataset:
    """Convert the splits of a Hugging Face data set; see `load_hub`.

    ``columns`` has the name of the ``image`` and the ``label`` column, None to find it by its type.
    """
    import datasets  # type: ignore[import-untyped]

    undecoded = datasets.Image(decode=False)  # each image as its file's content or path
    features = parts["train"].features
    image = _column(name, features, "image", columns["image"])
    label = _column(name, features, "label", columns["label"])
    classes, labels = _labels(parts, label)
    tests = [part for part in ("test", "validation") if max(labels.get(part, ()), default=-1) >= 0]
    if not tests:
        logger.warning("%s has no test labels; a fifth of each class is for testing.", name)
    rows = {}
    for part in ("train", *tests[:1]):
        known, labels[part] = _labelled(f"{name}, {part}", parts[part], labels[part])
        rows[part] = known.select_columns([image]).cast_column(image, undecoded)
    size = _first_size(rows["train"]) if image_size is None else (image_size, image_size)
    count = count_up_to(sum(map(len, rows.values())), on_progress)
    splits = [_decode(f"{name}, {part}", rows[part], labels[part], size, count) for part in rows]
    train, test = splits if tests else stratified_split(splits[0], TEST_FRACTION, seed)
    return Dataset(name, classes, train, test, *image_statistics(train.images))


def count_up_to(total: int, on_progress: OnProgress | None) -> Callable[[], None]:
    """Return a function to call after each of ``total`` images; it reports the number so far."""
    numbers = itertools.count(1)

    def count() -> None:
        if on_progress is not None:
            on_progress(next(numbers), total)

    return count


def open_hub(name: str, *, bars: bool = False) -> Mapping[str, Any]:
    """Download a data set unless it is cached, and return its non-empty splits by name.

    ``bars`` lets the library show its own progress bars.
    """
    try:
        import datasets
    except ImportError as error:
        raise missing_extra(f"hub:{name}", "hub") from error

    folder = expand_home(name)
    place = str(folder) if folder.is_dir() else name
    try:
        with nullcontext() if bars else _without_bars(datasets):
            if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
                loaded = datasets.load_from_disk(place)
            else:
                loaded = datasets.load_dataset(place)
    except Exception as error:  # the library raises many kinds of errors
        raise ValueError(
            f"hub:{name} can't be loaded ({first_line(error)}); check its name and the network, or "
            "name the folder of a saved data set."
        ) from error
    parts = loaded if isinstance(loaded, Mapping) else {"train": loaded}
    if "train" not in parts or len(parts["train"]) == 0:
        raise ValueError(
            f"hub:{name} has no images to learn from: its splits are {', '.join(parts)}, and "
            "'train' must be one of them and not be empty."
        )
    return {part: rows for part, rows in parts.items() if len(rows) > 0}


@contextmanager
def _without_bars(datasets: Any) -> Iterator[None]:
    were_shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if were_shown:
            datasets.enable_progress_bars()


def _column(name: str, features: Mapping[str, Any], what: str, given: str | None) -> str:
    """Return the given column of images or labels, else the only one of the right type."""
    usual, possible = _KINDS[what]
    kinds = {column: type(feature).__name__ for column, feature in features.items()}
    found = [column for column, kind in kinds.items() if kind == usual]
    fit = ", ".join(found or [column for column, kind in kinds.items() if kind in possible])
    if not fit:
        raise ValueError(f"{name} has no column of {what}s, only {', '.join(kinds)}.")
    if given is None and len(found) != 1:
        raise ValueError(
            f"{name} has {len(found)} columns of {usual}s; name the {what} column: {fit}."
        )
    column = given or found[0]
    if kinds.get(column) not in possible:
        raise ValueError(f"{name}: {column!r} is not a column of {what}s; {fit} would be.")
    return column


def _labels(parts: Mapping[str, Any], column: str) -> tuple[tuple[str, ...], dict[str, list[int]]]:
    """Return the class names and each split's labels, with -1 for a missing or unknown label."""
    given = {part: list(rows[column]) for part, rows in parts.items() if column in rows.features}
    feature = parts["train"].features[column]
    if hasattr(feature, "names"):
        names, values = tuple(feature.names), list(range(len(feature.names)))
    else:
        values = sorted({value for value in given["train"] if value is not None})
        names = tuple(map(str, values))
    number = {value: i for i, value in enumerate(values)}
    return names, {part: [number.get(value, -1) for value in own] for part, own in given.items()}


def _labelled(what: str, rows: Any, labels: list[int]) -> tuple[Any, list[int]]:
    """The rows with a known label, and their labels."""
    kept = [i for i, label in enumerate(labels) if label >= 0]
    if len(kept) == len(labels):
        return rows, labels
    missing = len(labels) - len(kept)
    logger.warning("Left out %d images of %s, which have no known label.", missing, what)
    return rows.select(kept), [labels[i] for i in kept]


def _read(row: dict[str, Any]) -> Image.Image:
    (file,) = row.values()
    if file is None:
        raise UnreadableImage("there is no image in this row")
    return open_rgb(Path(file["path"]) if file["bytes"] is None else file["bytes"])


def _first_size(rows: Any) -> tuple[int, int]:
    """Return width and height of the first readable image; 1, 1 if there is none."""
    for row in rows:
        with suppress(UnreadableImage):
            return _read(row).size
    return 1, 1


def _decode(
    what: str, rows: Any, labels: list[int], size: tuple[int, int], count: Callable[[], None]
) -> Split:
    """Decode the readable images of a split to one width and height."""
    width, height = size
    try:
        pixels = torch.empty(len(rows), 3, height, width, dtype=torch.uint8)
    except RuntimeError as error:
        raise ValueError(
            f"{what} has {len(rows)} images, too many for the memory here if each has {width} x "
            f"{height} pixels; give a smaller image_size."
        ) from error
    kept: list[int] = []
    for i, row in enumerate(rows):
        try:
            image = _read(row)
        except UnreadableImage as error:
            logger.warning("Left out image %d of %s: %s.", i, what, error)
        else:
            if image.size != size:
                image = ImageOps.fit(image, size, Image.Resampling.BILINEAR)
            pixels[len(kept)] = torch.from_numpy(np.array(image)).permute(2, 0, 1)
            kept.append(i)
        count()
    if not kept:
        raise ValueError(f"{what} has no image that can be read; choose another image column.")
    return Split(PixelImages(pixels[: len(kept)]), torch.tensor(labels)[kept])
