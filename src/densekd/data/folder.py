"""Image files in class sub-folders to a data set."""

import functools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
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
from densekd.data.decode import decode_all, in_threads, why_unreadable
from densekd.data.find import (
    TRAIN,
    WHOLE,
    Classes,
    FoundImages,
    LeftOut,
    find_divided,
    find_images,
    list_folder,
    warn_of,
)
from densekd.data.stratify import held_out

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FolderReport:
    """What is left of a folder's images once every file has been decoded.

    Args:
        images: for ``train`` and ``val`` or ``test``, else for ``all``, the number of readable
            images of each class.
        unreadable: what can't be read, with the reason.
    """

    images: dict[str, dict[str, int]]
    unreadable: list[LeftOut]


def load_folder(
    path: Path,
    *,
    image_size: int = 224,
    test_fraction: float = 0.2,
    seed: int = 0,
    memory_bytes: int = 1 << 30,
    on_progress: OnProgress | None = None,
) -> Dataset:
    """A data set from class sub-folders of images.

    Args:
        path: has ``train`` and ``val`` (or ``test``) with a sub-folder for each class, or has
            these sub-folders itself.
        image_size: the height and width that images are brought to.
        test_fraction: of each class, what is kept for testing if the folder isn't divided; a
            class of several images has at least one on either side.
        seed: draws the test images, class by class, so that a new class moves no other's.
        memory_bytes: images that take no more than this are decoded now and kept in memory.
        on_progress: called with the number of files read so far, and of all.
    """
    if not 0 <= test_fraction < 1:
        raise ValueError(f"test_fraction must be from 0 to below 1, not {test_fraction}.")
    found = find_images(path)
    images, items = _read(found, image_size, memory_bytes, on_progress, look=True)
    if WHOLE in found.parts:
        tested = held_out([item.label for item in items], test_fraction, seed).tolist()
        items = [
            item._replace(part="test" if test else TRAIN)
            for item, test in zip(items, tested, strict=True)
        ]
    return _dataset("folder", path, images, items)


def load_imagenet(
    path: Path,
    *,
    image_size: int = 224,
    classes: Sequence[str] | None = None,
    memory_bytes: int = 1 << 30,
    on_progress: OnProgress | None = None,
) -> Dataset:
    """ImageNet, or any folder laid out like it; files are not looked into unless they are few.

    Args:
        path: has ``train`` and ``val`` with a sub-folder for each WordNet id.
        image_size: the height and width that images are brought to.
        classes: the ids to take; all if not given.
        memory_bytes: images that take no more than this are decoded now and kept in memory.
        on_progress: called with the number of files read so far, and of all.
    """
    found = find_imagenet(path, classes)
    images, items = _read(found, image_size, memory_bytes, on_progress, look=False)
    return _dataset("imagenet", path, images, items)


def find_imagenet(path: Path, classes: Sequence[str] | None = None) -> FoundImages:
    """The files of an ImageNet, of all classes or of some; see `load_imagenet`."""
    top = list_folder(path)
    for part in (TRAIN, "val"):
        if part not in top.folders:
            raise ValueError(
                f"{path} has no folder {part!r}: ImageNet is expected as train/<WordNet id>/ and "
                "val/<WordNet id>/."
            )
    found = find_divided(top, "val", classes)
    if classes is not None:
        _check_wanted(path / TRAIN, classes, found.parts[TRAIN])
    return found


def imagenet100_classes(wnids: Sequence[str]) -> list[str]:
    """The 100 classes of ImageNet-100, drawn from the sorted ids with legacy NumPy seed 1993."""
    if len(wnids) < 100:
        raise ValueError(
            f"ImageNet-100 is drawn from ImageNet's 1000 classes, but there are {len(wnids)}; "
            "take them all with imagenet:PATH."
        )
    if len(wnids) not in (100, 1000):
        logger.warning(
            "ImageNet-100 is drawn from %d classes instead of 1000, so it isn't the usual one.",
            len(wnids),
        )
    drawn = np.random.RandomState(1993).choice(sorted(wnids), 100, replace=False)
    return sorted(str(wnid) for wnid in drawn)


def check_images(found: FoundImages, on_progress: OnProgress | None = None) -> FolderReport:
    """Decode every image that was found, to tell those that can't be.

    Args:
        found: by `find_images` or `find_imagenet`.
        on_progress: called with the number of files read so far, and of all.
    """
    images = {part: dict.fromkeys(classes, 0) for part, classes in found.parts.items()}
    unreadable: list[LeftOut] = []
    items = _items(found)
    reasons = in_threads(why_unreadable, [item.file for item in items], on_progress)
    for item, reason in zip(items, reasons, strict=True):
        if reason is None:
            images[item.part][item.label] += 1
        else:
            unreadable.append((item.file, reason))
    return FolderReport(images, unreadable)


def check_usable(path: Path, images: Mapping[str, Mapping[str, int]]) -> None:
    """Raise unless there is something to learn from, and of every class that is tested.

    Args:
        path: where the images are.
        images: for each part, the number of images of each class.
    """
    learned = _with_images(part for name, part in images.items() if name in (TRAIN, WHOLE))
    tested = _with_images(part for name, part in images.items() if name not in (TRAIN, WHOLE))
    if not learned | tested:
        raise ValueError(
            f"{path} has no readable image in its class folders; put images into "
            f"{path}/<class>/, or into {path}/train/<class>/ and {path}/val/<class>/."
        )
    if tested - learned:
        raise ValueError(
            f"{path} has test images but no training images of the class "
            f"{min(tested - learned)!r}; add some, or remove the class."
        )


def _with_images(parts: Iterable[Mapping[str, int]]) -> set[str]:
    return {name for part in parts for name, count in part.items() if count}


class _Item(NamedTuple):
    file: Path
    label: str
    part: str


def _check_wanted(train: Path, wanted: Sequence[str], classes: Classes) -> None:
    missing = [name for name in wanted if not classes.get(name)]
    if missing:
        raise ValueError(
            f"{train} has no images of the class {missing[0]!r}, and in all lacks {len(missing)} "
            f"of the {len(wanted)} classes asked for."
        )


def _items(found: FoundImages) -> list[_Item]:
    return [
        _Item(file, label, part)
        for part, classes in found.parts.items()
        for label, files in classes.items()
        for file in files
    ]


def _read(
    found: FoundImages, size: int, memory_bytes: int, on_progress: OnProgress | None, *, look: bool
) -> tuple[Images, list[_Item]]:
    """The images, in memory if they fit, and what each is; ``look`` into files that stay files."""
    if size < 1:
        raise ValueError(f"image_size must be at least 1, not {size}.")
    warn_of(found.left_out)
    items = _items(found)
    files = [item.file for item in items]
    needed = len(files) * 3 * size**2
    if needed <= memory_bytes:
        logger.info(
            "Decoding %d images into memory, once, as centre crops: their %d bytes are within the "
            "limit of %d.",
            *(len(files), needed, memory_bytes),
        )
        pixels, kept, unreadable = decode_all(files, size, on_progress)
        warn_of(unreadable)
        return PixelImages(pixels), [items[i] for i in kept]
    logger.info(
        "Leaving %d images in their files, of which each epoch takes another random part: their "
        "%d bytes are over the limit of %d.",
        *(len(files), needed, memory_bytes),
    )
    if look:
        check = functools.partial(why_unreadable, header_only=True)
        reasons = dict(zip(files, in_threads(check, files, on_progress), strict=True))
        warn_of((file, reason) for file, reason in reasons.items() if reason is not None)
        items = [item for item in items if reasons[item.file] is None]
    return FileImages(tuple(item.file for item in items), size), items


def _dataset(kind: str, path: Path, images: Images, items: list[_Item]) -> Dataset:
    """The data set of images that can be read; ``items`` describes each."""
    counts: dict[str, Counter[str]] = {}
    for item in items:
        counts.setdefault(item.part, Counter())[item.label] += 1
    check_usable(path, counts)
    learned = set(counts.pop(TRAIN))
    untested = learned - _with_images(counts.values())
    if untested:
        names = ", ".join(map(repr, sorted(untested)))
        logger.warning("%s has only training images, none to test on, of: %s.", path, names)
    classes = tuple(sorted(learned))
    rank = {label: i for i, label in enumerate(classes)}
    whole = Split(images, torch.tensor([rank[item.label] for item in items]))
    in_train = torch.tensor([item.part == TRAIN for item in items])
    train, test = (whole.take(chosen.nonzero().flatten()) for chosen in (in_train, ~in_train))
    return Dataset(f"{kind}:{path}", classes, train, test, IMAGENET_MEAN, IMAGENET_STD)
