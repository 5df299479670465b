"""The image files in class folders, by their names alone.

The rules for what is no image in a class folder: hidden files and folders are passed over, all
else that is left out is named with its reason, and nothing is entered deeper than a class folder,
so that links can't lead in circles.
"""

import logging
import os
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from densekd.data.decode import image_endings

Classes = dict[str, list[Path]]
LeftOut = tuple[Path, str]

# The part of a folder that isn't divided into train and val or test.
WHOLE = "all"
TRAIN = "train"

logger = logging.getLogger(__name__)


class FoundImages(NamedTuple):
    """The image files under a folder, judged by their names alone.

    Args:
        parts: for ``train`` and ``val`` or ``test``, else for ``all``, each class's files.
        left_out: what was passed over, with the reason.
    """

    parts: dict[str, Classes]
    left_out: list[LeftOut]


def find_images(path: Path) -> FoundImages:
    """The image files under a folder of either layout; their content is not looked at."""
    top = list_folder(path)
    test = next((part for part in ("val", "test") if part in top.folders), None)
    if TRAIN in top.folders and test is not None:
        return find_divided(top, test)
    classes, left_out = find_classes(path)
    _check_names(classes)
    return FoundImages({WHOLE: classes}, left_out)


def find_classes(path: Path, only: Collection[str] | None = None) -> tuple[Classes, list[LeftOut]]:
    """The image files of each class folder in ``path``, and what is left out with the reason.

    Args:
        path: a folder of class folders.
        only: the class folders to look into; all if not given.
    """
    top = _class_folders(path)
    left_out = _outside(top)
    classes: Classes = {}
    for name, folder in top.folders.items():
        if only is None or name in only:
            classes[name], others = _find_in_class(folder)
            left_out += others
    return classes, left_out


def class_names(path: Path) -> list[str]:
    """The names of the class folders in ``path``, sorted, whether or not they hold images."""
    return sorted(_class_folders(path).folders)


class Listing(NamedTuple):
    """What a folder holds, sorted by name; hidden entries are not in it."""

    folders: dict[str, Path]
    files: list[Path]
    others: list[LeftOut]


def _list(folder: Path) -> Listing:
    listing = Listing({}, [], [])
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = folder / entry.name
            if entry.name.startswith("."):
                continue
            try:
                is_folder, is_file = entry.is_dir(), entry.is_file()
            except OSError:  # a link in a circle
                is_folder = is_file = False
            if is_folder:
                listing.folders[entry.name] = path
            elif is_file:
                listing.files.append(path)
            else:
                link = "a link that leads nowhere"
                kind = link if entry.is_symlink() else "neither a file nor a folder"
                listing.others.append((path, f"it is {kind}"))
    return listing


def list_folder(path: Path) -> Listing:
    """What a folder that the user named holds."""
    try:
        return _list(path)
    except FileNotFoundError as error:
        raise ValueError(f"There is no folder {path}; check its name.") from error
    except NotADirectoryError as error:
        raise ValueError(
            f"{path} is a file; give a folder with one sub-folder of images per class."
        ) from error
    except OSError as error:
        raise ValueError(f"The folder {path} can't be read: {error.strerror}.") from error


def _outside(top: Listing) -> list[LeftOut]:
    return top.others + [(file, "it lies outside the class folders") for file in top.files]


def _class_folders(path: Path) -> Listing:
    top = list_folder(path)
    if top.folders:
        return top
    if any(_is_image(file) for file in top.files):
        raise ValueError(
            f"{path} has images directly in it instead of class folders; move each image into a "
            "sub-folder named after its class."
        )
    raise ValueError(f"{path} has no class folders; make one sub-folder of images per class.")


def _find_in_class(folder: Path) -> tuple[list[Path], list[LeftOut]]:
    try:
        inside = _list(folder)
    except OSError as error:
        return [], [(folder, f"the class folder can't be read: {error.strerror}")]
    images = [file for file in inside.files if _is_image(file)]
    left_out = list(inside.others)
    left_out += [(nested, "a folder in a class folder") for nested in inside.folders.values()]
    left_out += [(file, _why_no_image(file)) for file in inside.files if not _is_image(file)]
    if not images:
        left_out.append((folder, "a class folder without images"))
    return images, left_out


def _why_no_image(file: Path) -> str:
    if file.suffix.lower() in (".heic", ".heif"):
        return "HEIC is not read here; convert it to JPEG or PNG, as phones do when sharing a photo"
    return f"{file.suffix!r} is not the ending of an image file that is read here"


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in image_endings()


def find_divided(top: Listing, test: str, only: Collection[str] | None = None) -> FoundImages:
    """The files of a folder that is divided into ``train`` and a part for testing."""
    unused = [name for name in top.folders if name not in (TRAIN, test)]
    left_out = _outside(top)
    left_out += [(top.folders[name], f"only {TRAIN} and {test} are used") for name in unused]
    parts: dict[str, Classes] = {}
    for part in (TRAIN, test):
        parts[part], others = find_classes(top.folders[part], only)
        left_out += others
    _check_names([*parts[TRAIN], *parts[test]])
    return FoundImages(parts, left_out)


def warn_of(left_out: Iterable[LeftOut]) -> None:
    """One warning for each reason, since there may be thousands of such files."""
    by_reason = defaultdict[str, list[str]](list)
    for path, reason in left_out:
        by_reason[reason].append(str(path))
    for reason, paths in by_reason.items():
        # Quoted, for a name may hold a line break, or bytes that can't be printed.
        logger.warning("Left out %s: %s.", listed(paths, most=1), reason)


def listed(names: Sequence[str], most: int = 3) -> str:
    """Names in quotes, the first few of them."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + rest


def _check_names(names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in sorted(set(names)):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"The class folder {name!r} has a name that isn't UTF-8; rename it."
            ) from error
        # What one file system keeps apart another may not, nor may a reader.
        other = seen.setdefault(unicodedata.normalize("NFC", name).lower(), name)
        if other != name:
            raise ValueError(
                f"The class folders {other!r} and {name!r} differ only by case or encoding; "
                "rename or merge them."
            )
