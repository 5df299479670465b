"""Data sets from class folders: find the image files, check them and load them.

Hidden files are ignored. Everything else that is left out is reported with a reason. Only class
folders are entered, so links can't lead in circles.
"""

import logging
import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

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
from densekd.data.decode import (
    UnreadableImage,
    decode_all,
    image_endings,
    open_rgb,
    try_all,
    width_and_height,
)
from densekd.data.stratify import held_out

ClassFiles = dict[str, list[Path]]
LeftOut = tuple[Path, str]  # a path and why it is left out

TRAIN = "train"
WHOLE = "all"  # the only part of a folder that isn't divided into train and val or test

FOLDER_IMAGE_SIZE = 224  # the height and width that images are brought to unless others are given
_SIZE_SAMPLE = 100  # images whose sizes are looked at
logger = logging.getLogger(__name__)


class ImageItem(NamedTuple):
    """An image file, its class and the part of the folder it is in."""

    file: Path
    label: str
    part: str


class FoundImages(NamedTuple):
    """The files of a folder that look like images by their names; none has been opened."""

    parts: dict[str, ClassFiles]  # by ``train`` and ``val`` or ``test``, or only ``all``
    left_out: list[LeftOut]

    def items(self) -> list[ImageItem]:
        """All files, part by part and class by class."""
        return [
            ImageItem(file, label, part)
            for part, classes in self.parts.items()
            for label, files in classes.items()
            for file in files
        ]


class FolderListing(NamedTuple):
    """The entries of a folder without the hidden ones, sorted by name."""

    folders: dict[str, Path]
    files: list[Path]
    others: list[LeftOut]


def load_folder(
    path: str | Path,
    *,
    image_size: int | None = None,  # height and width; `FOLDER_IMAGE_SIZE` unless given
    test_fraction: float = 0.2,
    seed: int = 0,
    memory_bytes: int = 1 << 30,  # keep decoded images in memory if they need no more than this
    on_progress: OnProgress | None = None,
) -> Dataset:
    """Load a data set from class folders, or from ``train`` and ``val`` (or ``test``) with such.

    If it isn't divided so, test on a fraction of each class that the seed draws; see `held_out`.
    """
    path = Path(path).expanduser()
    if not 0 <= test_fraction < 1:
        raise ValueError(f"test_fraction must be from 0 to below 1, not {test_fraction}.")
    found = find_images(path)
    if image_size is None:
        _warn_of_small_images(path, [item.file for item in found.items()])
    size = FOLDER_IMAGE_SIZE if image_size is None else image_size
    images, items = read_images(found, size, memory_bytes, on_progress, check=True)
    if WHOLE in found.parts:
        tested = held_out([item.label for item in items], test_fraction, seed).tolist()
        items = [
            item._replace(part="test" if test else TRAIN)
            for item, test in zip(items, tested, strict=True)
        ]
    return folder_dataset("folder", path, images, items)


def _warn_of_small_images(path: Path, files: Sequence[Path]) -> None:
    """Warn if most images would be enlarged a lot, which takes time and shows no more."""
    sides = []
    for file in files[:: max(1, len(files) // _SIZE_SAMPLE)]:
        with suppress(UnreadableImage):
            sides.append(min(width_and_height(file)))
    side = int(median(sides)) if sides else FOLDER_IMAGE_SIZE
    times = (FOLDER_IMAGE_SIZE / max(1, side)) ** 2
    if times >= 2:
        logger.warning(
            "%s has images of about %d pixels, and they are enlarged to %d x %d: that takes about "
            "%.0f times as long as at their own size. To train on that, give --image-size %d.",
            *(path, side, FOLDER_IMAGE_SIZE, FOLDER_IMAGE_SIZE, times, side),
        )


def find_images(path: Path) -> FoundImages:
    """Find the image files in ``path/CLASS``, or in ``path/train/CLASS`` and ``path/val/CLASS``."""
    top = list_folder(path)
    test = next((part for part in ("val", "test") if part in top.folders), None)
    if TRAIN in top.folders and test is not None:
        return find_divided(top, test)
    classes, left_out = find_classes(path)
    _check_names(classes)
    return FoundImages({WHOLE: classes}, left_out)


def find_divided(top: FolderListing, test: str, only: Collection[str] | None = None) -> FoundImages:
    """Find the files of a folder divided into ``train`` and ``test``, of ``only`` some classes."""
    left_out = _outside(top)
    unused = [folder for name, folder in top.folders.items() if name not in (TRAIN, test)]
    left_out += [(folder, f"only {TRAIN} and {test} are used") for folder in unused]
    parts: dict[str, ClassFiles] = {}
    for part in (TRAIN, test):
        parts[part], others = find_classes(top.folders[part], only)
        left_out += others
    _check_names([*parts[TRAIN], *parts[test]])
    return FoundImages(parts, left_out)


def find_classes(
    path: Path, only: Collection[str] | None = None
) -> tuple[ClassFiles, list[LeftOut]]:
    """Find the image files of each class folder in ``path``, or of ``only`` some of them."""
    top = list_classes(path)
    left_out, classes = _outside(top), ClassFiles()
    for name, folder in top.folders.items():
        if only is None or name in only:
            classes[name], others = _find_in_class(folder)
            left_out += others
    return classes, left_out


def list_classes(path: Path) -> FolderListing:
    """List a folder of class folders, with or without images; raise if there is no such folder."""
    top = list_folder(path)
    if top.folders:
        return top
    if any(_why_no_image(file) is None for file in top.files):
        raise ValueError(
            f"{path} has images directly in it; move each into a sub-folder named after its class."
        )
    raise ValueError(f"{path} has no class folders; make one sub-folder of images per class.")


def list_folder(path: Path) -> FolderListing:
    """List a folder that the user named; raise a `ValueError` if that is impossible."""
    try:
        return _list(path)
    except FileNotFoundError as error:
        raise ValueError(f"There is no folder {path}; check its name.") from error
    except NotADirectoryError as error:
        raise ValueError(f"{path} is a file; give a folder of class folders.") from error
    except OSError as error:
        raise ValueError(f"The folder {path} can't be read: {error.strerror}.") from error


def check_images(
    found: FoundImages, on_progress: OnProgress | None = None
) -> tuple[dict[str, dict[str, int]], list[LeftOut]]:
    """Decode all images; return the number of readable ones by part and class, and the others."""
    items = found.items()
    files = [item.file for item in items]
    read, unreadable = try_all(files, lambda i: open_rgb(files[i]), on_progress)
    counts = {part: dict.fromkeys(own, 0) for part, own in found.parts.items()}
    for i in read:
        counts[items[i].part][items[i].label] += 1
    return counts, unreadable


def check_usable(path: Path, images: Mapping[str, Mapping[str, int]]) -> None:
    """Raise unless the counts by part and class have training images of every tested class."""
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


def read_images(
    found: FoundImages, size: int, memory_bytes: int, on_progress: OnProgress | None, *, check: bool
) -> tuple[Images, list[ImageItem]]:
    """Decode the images if they fit into memory; otherwise leave them in their files.

    Unreadable files are dropped with a warning; ``check`` looks for them also among images left
    in their files. Returns the images and, for each, its item.
    """
    if size < 1:
        raise ValueError(f"image_size must be at least 1, not {size}.")
    warn_left_out(found.left_out)
    items = found.items()
    files = [item.file for item in items]
    needed = len(files) * 3 * size**2
    numbers = len(files), needed, memory_bytes
    if needed <= memory_bytes:
        logger.info("Decoding %d images into memory as centre crops: %d of %d bytes.", *numbers)
        pixels, kept, unreadable = decode_all(files, size, on_progress)
        warn_left_out(unreadable)
        return PixelImages(pixels), [items[i] for i in kept]
    logger.info(
        "Leaving %d images in their files: %d bytes are over the limit of %d. Each epoch crops "
        "them at random.",
        *numbers,
    )
    if check:
        kept, unreadable = try_all(files, lambda i: width_and_height(files[i]), on_progress)
        warn_left_out(unreadable)
        items = [items[i] for i in kept]
    return FileImages(tuple(item.file for item in items), size), items


def folder_dataset(
    kind: str,
    path: Path,
    images: Images,
    items: list[ImageItem],
    order: Sequence[str] | None = None,
) -> Dataset:
    """Make a data set of images and their items; warn of classes without test images.

    The classes are sorted, or in a given ``order``.
    """
    counts: dict[str, Counter[str]] = {}
    for item in items:
        counts.setdefault(item.part, Counter())[item.label] += 1
    check_usable(path, counts)
    learned = set(counts.pop(TRAIN))
    untested = learned - _with_images(counts.values())
    if untested:
        names = ", ".join(map(repr, sorted(untested)))
        logger.warning("%s has only training images, none to test on, of: %s.", path, names)
    classes = tuple(sorted(learned) if order is None else order)
    rank = {label: i for i, label in enumerate(classes)}
    whole = Split(images, torch.tensor([rank[item.label] for item in items]))
    in_train = torch.tensor([item.part == TRAIN for item in items])
    train, test = (whole.take(chosen) for chosen in (in_train, ~in_train))
    return Dataset(f"{kind}:{path}", classes, train, test, IMAGENET_MEAN, IMAGENET_STD)


def warn_left_out(left_out: Iterable[LeftOut]) -> None:
    """Log one warning for each reason, since thousands of files may share it."""
    by_reason = defaultdict[str, list[str]](list)
    for path, reason in left_out:
        by_reason[reason].append(str(path))
    for reason, paths in by_reason.items():
        logger.warning("Left out %s: %s.", quote_names(paths, most=1), reason)


def quote_names(names: Sequence[str], most: int = 3) -> str:
    """Join the first names, quoted since a name may hold a line break or unprintable bytes."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + rest


def _list(folder: Path) -> FolderListing:
    listing = FolderListing({}, [], [])
    with os.scandir(folder) as entries:
        visible = (entry for entry in entries if not entry.name.startswith("."))
        for entry in sorted(visible, key=lambda entry: entry.name):
            path = folder / entry.name
            try:
                is_folder, is_file = entry.is_dir(), entry.is_file()
            except OSError:  # a link in a circle
                is_folder = is_file = False
            if is_folder:
                listing.folders[entry.name] = path
            elif is_file:
                listing.files.append(path)
            else:
                link = entry.is_symlink()
                kind = "a link that leads nowhere" if link else "neither a file nor a folder"
                listing.others.append((path, f"it is {kind}"))
    return listing


def _outside(top: FolderListing) -> list[LeftOut]:
    return top.others + [(file, "it is outside the class folders") for file in top.files]


def _find_in_class(folder: Path) -> tuple[list[Path], list[LeftOut]]:
    try:
        inside = _list(folder)
    except OSError as error:
        return [], [(folder, f"the class folder can't be read: {error.strerror}")]
    images = [file for file in inside.files if _why_no_image(file) is None]
    left_out = list(inside.others)
    left_out += [(nested, "a folder in a class folder") for nested in inside.folders.values()]
    left_out += [(file, reason) for file in inside.files if (reason := _why_no_image(file))]
    if not images:
        left_out.append((folder, "a class folder without images"))
    return images, left_out


def _why_no_image(file: Path) -> str | None:
    if file.suffix.lower() in image_endings():
        return None
    if file.suffix.lower() in (".heic", ".heif"):
        return "HEIC is not supported; convert it to JPEG or PNG, as phones do when sharing a photo"
    return f"{file.suffix!r} is not the ending of a supported image file"


def _with_images(parts: Iterable[Mapping[str, int]]) -> set[str]:
    return {name for part in parts for name, count in part.items() if count}


def _check_names(names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in sorted(set(names)):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"The class folder {name!r} isn't named in UTF-8; rename it."
            ) from error
        # Another file system, or a reader, may not tell such names apart.
        other = seen.setdefault(unicodedata.normalize("NFC", name).lower(), name)
        if other != name:
            raise ValueError(
                f"The class folders {other!r} and {name!r} differ only by case or encoding; "
                "rename or merge them."
            )
