"""Data sets from class folders: images are kept in memory if they fit, else in their files."""

import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import torch

from densekd.data.dataset import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Dataset,
    FileImages,
    Images,
    OnProgress,
    PixelImages,
    Split,
)
from densekd.data.decode import UnreadableImage, decode_all, try_all, width_and_height
from densekd.data.folder import (
    TRAIN,
    WHOLE,
    FolderTable,
    FoundImages,
    check_usable,
    find_images,
    warn_left_out,
)
from densekd.data.stratify import TEST_FRACTION, held_out
from densekd.files import expand_home

FOLDER_IMAGE_SIZE = 224  # the height and width that images are resized to by default
MEMORY_BYTES = 1 << 30  # decoded images are kept in memory if they need no more than this
_SIZE_SAMPLE = 200  # the number of images whose sizes are looked at
logger = logging.getLogger(__name__)


def load_folder(
    path: str | Path,
    *,
    image_size: int | None = None,  # height and width; `FOLDER_IMAGE_SIZE` unless given
    seed: int = 0,
    memory_bytes: int = MEMORY_BYTES,
    on_progress: OnProgress | None = None,
) -> Dataset:
    """Load a data set from class folders, or from those in ``train`` and ``val`` (or ``test``).

    A folder that isn't divided is tested on a fifth of each class, drawn by the seed; see
    `held_out`.
    """
    path = expand_home(path)
    found = find_images(path)
    if image_size is None:
        _warn_of_small_images(path, found.table().paths)
    size = FOLDER_IMAGE_SIZE if image_size is None else image_size
    images, table = read_images(found, size, memory_bytes, on_progress, check=True)
    return folder_dataset(f"folder:{path}", images, divided(table, seed))


def _warn_of_small_images(path: Path, files: Sequence[Path]) -> None:
    """Warn if most images would be enlarged a lot, which takes time and adds no detail."""
    side = max(1, int(median_side(files) or FOLDER_IMAGE_SIZE))
    times = (FOLDER_IMAGE_SIZE / side) ** 2
    if times >= 2:
        logger.warning(
            "%s has images of about %d pixels, and they are enlarged to %d x %d: that takes about "
            "%.0f times as long as at their own size. To train on that, give --image-size %d.",
            *(path, side, FOLDER_IMAGE_SIZE, FOLDER_IMAGE_SIZE, times, side),
        )


def median_side(files: Sequence[Path]) -> float | None:
    """The median of the shorter sides of a sample of images; None if none of it can be read."""
    sides = []
    for file in files[:: max(1, math.ceil(len(files) / _SIZE_SAMPLE))]:
        with suppress(UnreadableImage):  # will be reported when all images are read
            sides.append(min(width_and_height(file)))
    return median(sides) if sides else None


def read_images(
    found: FoundImages, size: int, memory_bytes: int, on_progress: OnProgress | None, *, check: bool
) -> tuple[Images, FolderTable]:
    """Decode the images if they fit into memory; otherwise leave them in their files.

    Unreadable files are dropped with a warning; with ``check``, also those among images left in
    their files. Returns the images and the table of their files.
    """
    if size < 1:
        raise ValueError(f"image_size must be at least 1, not {size}.")
    warn_left_out(found.left_out)
    table = found.table()
    files = table.paths
    needed = len(files) * 3 * size**2
    numbers = len(files), needed, memory_bytes
    if needed <= memory_bytes:
        logger.info("Decoding %d images into memory as centre crops: %d of %d bytes.", *numbers)
        pixels, kept, unreadable = decode_all(files, size, on_progress)
        warn_left_out(unreadable)
        return PixelImages(pixels), table.take(torch.tensor(kept, dtype=torch.int64))
    logger.info(
        "Leaving %d images in their files: %d bytes are over the limit of %d. They are decoded "
        "anew in each epoch.",
        *numbers,
    )
    if check:
        kept, unreadable = try_all(files, lambda i: width_and_height(files[i]), on_progress)
        warn_left_out(unreadable)
        table = table.take(torch.tensor(kept, dtype=torch.int64))
    return FileImages(table.files, size), table


def divided(table: FolderTable, seed: int) -> FolderTable:
    """Divide a folder without ``train`` and ``val`` by drawing test images; see `held_out`."""
    if WHOLE not in table.part_names:
        return table
    tested = held_out(table.class_of_each, TEST_FRACTION, seed)
    return table._replace(parts=tested.long(), part_names=(TRAIN, "test"))


def folder_dataset(
    name: str, images: Images, table: FolderTable, order: Sequence[str] | None = None
) -> Dataset:
    """Make a data set of images and the table of their files; warn of classes without test images.

    The classes are sorted, or in a given ``order``.
    """
    path = Path(name.partition(":")[2])
    learned, tested = check_usable(path, table.counts())
    if learned - tested:
        names = ", ".join(map(repr, sorted(learned - tested)))
        logger.warning("%s has only training images, none to test on, of: %s.", path, names)
    classes = tuple(sorted(learned) if order is None else order)
    rank = {label: i for i, label in enumerate(classes)}
    # A class without training images has no images at all, else `check_usable` would have raised.
    ranks = torch.tensor([rank.get(label, -1) for label in table.classes], dtype=torch.int64)
    whole = Split(images, ranks[table.labels])
    in_train = table.parts == table.part_names.index(TRAIN)
    train, test = (whole.take(chosen) for chosen in (in_train, ~in_train))
    return Dataset(name, classes, train, test, IMAGENET_MEAN, IMAGENET_STD)
