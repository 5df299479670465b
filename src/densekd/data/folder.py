"""Class folders: find the image files and check them.

Hidden files are ignored. Everything else that is left out is reported with a reason. Only class
folders are entered, so links can't lead in circles.
"""

import logging
import os
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor

from densekd.data.dataset import OnProgress
from densekd.data.decode import image_endings, open_rgb, try_all
from densekd.data.file_lists import FileSelection, FolderFiles, all_of

ClassFiles = dict[str, Sequence[Path]]
LeftOut = tuple[Path, str]  # a path and why it is left out

TRAIN = "train"
WHOLE = "all"  # the only part of a folder that isn't divided into train and val or test

logger = logging.getLogger(__name__)


class FoundImages(NamedTuple):
    """The files of a folder that look like images by their names; none has been opened."""

    parts: dict[str, ClassFiles]  # the keys are ``train`` and ``val`` or ``test``, or only ``all``
    left_out: list[LeftOut]

    def table(self) -> "FolderTable":
        """All files, part by part and class by class."""
        names = dict.fromkeys(label for classes in self.parts.values() for label in classes)
        rank = {label: i for i, label in enumerate(names)}
        own = [
            (files, rank[label], part)
            for part, classes in enumerate(self.parts.values())
            for label, files in classes.items()
        ]
        counts = torch.tensor([len(files) for files, _, _ in own], dtype=torch.int64)
        labels, parts = (
            torch.tensor([each[k] for each in own], dtype=torch.int64).repeat_interleave(counts)
            for k in (1, 2)
        )
        files = all_of(*(files for files, _, _ in own))
        return FolderTable(files, labels, parts, tuple(names), tuple(self.parts))


class FolderTable(NamedTuple):
    """Image files with their classes and parts, in arrays."""

    files: FileSelection
    labels: Tensor  # int64 [n], positions in ``classes``
    parts: Tensor  # int64 [n], positions in ``part_names``
    classes: tuple[str, ...]
    part_names: tuple[str, ...]

    @property
    def paths(self) -> Sequence[Path]:
        """The paths of a folder's files; only for a folder, since packed images have no paths."""
        return cast(Sequence[Path], self.files)

    @property
    def class_of_each(self) -> list[str]:
        """The class of each file."""
        return [self.classes[label] for label in self.labels.tolist()]

    @property
    def part_of_each(self) -> list[str]:
        """The part of the folder that each file is in."""
        return [self.part_names[part] for part in self.parts.tolist()]

    def take(self, index: Tensor) -> "FolderTable":
        """Return the files at ``index``, positions or a mask."""
        return self._replace(
            files=self.files.take(index), labels=self.labels[index], parts=self.parts[index]
        )

    def counts(self) -> dict[str, dict[str, int]]:
        """The number of files by part and class; each part has all classes."""
        found = {}
        for i, part in enumerate(self.part_names):
            numbers = self.labels[self.parts == i].bincount(minlength=len(self.classes)).tolist()
            found[part] = dict(zip(self.classes, numbers, strict=True))
        return found


class FolderListing(NamedTuple):
    """The entries of a folder without the hidden ones, sorted by name."""

    path: Path
    folders: dict[str, Path]
    files: list[str]  # their names
    others: list[LeftOut]


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
    """Find the files of a folder divided into ``train`` and the part that ``test`` names.

    With ``only``, find the files of these classes only.
    """
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
    """Find the image files of each class folder in ``path``; with ``only``, of those it names."""
    top = list_classes(path)
    left_out, classes = _outside(top), ClassFiles()
    for name, folder in top.folders.items():
        if only is None or name in only:
            classes[name], others = _find_in_class(folder)
            left_out += others
    return classes, left_out


def list_classes(path: Path) -> FolderListing:
    """List a folder of class folders; raise ValueError if it is missing or has no class folder."""
    top = list_folder(path)
    if top.folders:
        return top
    if any(_why_no_image(name) is None for name in top.files):
        raise ValueError(
            f"{path} has images directly in it; move each into a sub-folder named after its class."
        )
    raise ValueError(f"{path} has no class folders; make one sub-folder of images per class.")


def list_folder(path: Path) -> FolderListing:
    """List a folder that the user named; raise a `ValueError` if it can't be listed."""
    try:
        return _list(path)
    except FileNotFoundError as error:
        raise ValueError(f"There is no folder {path}; check its name.") from error
    except NotADirectoryError as error:
        raise ValueError(f"{path} is a file; give a folder of class folders.") from error
    except OSError as error:
        raise ValueError(f"The folder {path} can't be read: {error.strerror}.") from error


def check_images(
    table: FolderTable, on_progress: OnProgress | None = None
) -> tuple[dict[str, dict[str, int]], list[LeftOut]]:
    """Decode all images; return the counts of readable ones by part and class, and the others."""
    places = range(len(table.files))
    read, unreadable = try_all(places, lambda i: open_rgb(table.files[i]), on_progress)
    counts = table.take(torch.tensor(read, dtype=torch.int64)).counts()
    return counts, [(table.files.where(i), reason) for i, reason in unreadable]


def check_usable(
    path: Path, images: Mapping[str, Mapping[str, int]], known: Collection[str] = ()
) -> tuple[set[str], set[str]]:
    """Return the classes with training and with test images, from counts by part and class.

    Raises ValueError if there are no images, or if a class with test images has no training images
    and isn't ``known``.
    """
    learned, tested = set[str](), set[str]()
    for part, counts in images.items():
        own = learned if part in (TRAIN, WHOLE) else tested
        own.update(name for name, count in counts.items() if count)
    if not learned | tested:
        raise ValueError(
            f"{path} has no readable image in its class folders; put images into "
            f"{path}/<class>/, or into {path}/train/<class>/ and {path}/val/<class>/."
        )
    if untrained := tested - learned - {*known}:
        raise ValueError(
            f"{path} has test images but no training images of the class "
            f"{min(untrained)!r}; add some, or remove the class."
        )
    return learned, tested


def check_asked_for(where: Path, asked: Sequence[str], learned: Mapping[str, object]) -> None:
    """Raise ValueError unless ``learned`` has files, or a positive count, of each class."""
    missing = [name for name in asked if not learned.get(name)]
    if missing:
        raise ValueError(
            f"{where} has no images of the class {missing[0]!r}, and in all lacks "
            f"{len(missing)} of the {len(asked)} classes asked for."
        )


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
    listing = FolderListing(folder, {}, [], [])
    with os.scandir(folder) as entries:
        visible = (entry for entry in entries if not entry.name.startswith("."))
        for entry in sorted(visible, key=lambda entry: entry.name):
            try:
                is_folder, is_file = entry.is_dir(), entry.is_file()
            except OSError:  # a link that leads to itself
                is_folder = is_file = False
            if is_folder:
                listing.folders[entry.name] = folder / entry.name
            elif is_file:
                listing.files.append(entry.name)
            else:
                link = entry.is_symlink()
                kind = "a link that leads nowhere" if link else "neither a file nor a folder"
                listing.others.append((folder / entry.name, f"it is {kind}"))
    return listing


def _outside(top: FolderListing) -> list[LeftOut]:
    outside = [(top.path / name, "it is outside the class folders") for name in top.files]
    return top.others + outside


def _find_in_class(folder: Path) -> tuple[Sequence[Path], list[LeftOut]]:
    try:
        inside = _list(folder)
    except OSError as error:
        return [], [(folder, f"the class folder can't be read: {error.strerror}")]
    reasons = {name: _why_no_image(name) for name in inside.files}
    left_out = list(inside.others)
    left_out += [(nested, "a folder in a class folder") for nested in inside.folders.values()]
    left_out += [(folder / name, reason) for name, reason in reasons.items() if reason]
    images = FolderFiles(folder, [name for name, reason in reasons.items() if reason is None])
    if not images:
        left_out.append((folder, "a class folder without images"))
    return images, left_out


def _why_no_image(name: str) -> str | None:
    ending = os.path.splitext(name)[1]
    if ending.lower() in image_endings():
        return None
    if ending.lower() in (".heic", ".heif"):
        return "HEIC is not supported; convert it to JPEG or PNG, as phones do when sharing a photo"
    return f"{ending!r} is not the ending of a supported image file"


def _check_names(names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in sorted(set(names)):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"The class folder {name!r} isn't named in UTF-8; rename it."
            ) from error
        # Another file system, or a reader, might not tell such names apart.
        other = seen.setdefault(unicodedata.normalize("NFC", name).lower(), name)
        if other != name:
            raise ValueError(
                f"The class folders {other!r} and {name!r} differ only by case or encoding; "
                "rename or merge them."
            )
