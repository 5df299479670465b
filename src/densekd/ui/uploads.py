"""Files that the browser sent: images, and the folders they were in. None of it is trusted."""

import itertools
import json
import os
import secrets
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from densekd.checks import is_folder_name
from densekd.data.folder import TRAIN

# Folders that split a data set, and whether their photos are for testing.
_TESTED = {TRAIN: False, "val": True, "test": True}
_LONGEST_NAME = 200  # bytes


class Upload(NamedTuple):
    """An uploaded file."""

    folders: tuple[str, ...]  # to put it in, its class last; empty if it has no class yet
    name: str  # on the user's computer
    file: Path  # where it is stored, under a random name

    @property
    def id(self) -> str:
        """Its name on the page, which says nothing about where it is stored."""
        return self.file.name

    @property
    def label(self) -> str:
        """Its class; empty if it has none yet."""
        return self.folders[-1] if self.folders else ""

    def in_class(self, name: str) -> "Upload":
        """The same file in another class."""
        return self._replace(folders=(*self.folders[:-1], name))


def take_uploads(sent: object, inbox: Path, target: Path) -> list[Upload]:
    """Move uploaded files out of the inbox; hidden ones are deleted.

    A folder of images is a class. The outermost of nested folders is left out, unless it is
    ``train``, ``val`` or ``test``.

    Args:
        sent: JSON with the ``name`` of each file, folders included, and the ``file`` in the inbox.
        inbox: where the server stores uploads.
        target: where to put them, under random names.
    """
    try:
        listed = [(str(each["name"]), str(each["file"])) for each in json.loads(str(sent))]
    except (ValueError, TypeError, KeyError):
        raise ValueError("Can't read what was dropped; reload the page and try again.") from None
    files = [_inside(Path(file), inbox) for _, file in listed]
    places = [_place(path) for path, _ in listed]
    uploads = [
        Upload(folders, name, _link(file, target))
        for (folders, name), file in zip(places, files, strict=True)
        if not any(part.startswith(".") for part in (*folders, name))
    ]
    # Delete last: the server stores equal files with equal names only once.
    for file in files:
        file.unlink(missing_ok=True)
    return uploads


def copy_upload(upload: Upload) -> Upload:
    """A copy of the photo under another id, which can be deleted separately."""
    return upload._replace(file=_link(upload.file, upload.file.parent))


def check_class_name(name: str) -> str:
    """The name without spaces around it; raises unless it can name a class."""
    if not name.strip():
        raise ValueError("Enter a class name for these photos.")
    name = _check_name(name)
    if name.startswith("."):
        raise ValueError(f"{name!r} can't be a class name; begin it with a letter or a digit.")
    return name


def by_class(uploads: Iterable[Upload]) -> dict[str, list[Upload]]:
    """The photos of each class, sorted by name; those without a class come first, under ''."""
    label = attrgetter("label")
    groups = itertools.groupby(sorted(uploads, key=label), key=label)
    return {name: list(photos) for name, photos in groups}


def link_by_class(uploads: Sequence[Upload], place: Path) -> None:
    """Link files into a folder for each class, as `densekd.model.teach.teach_model` takes it.

    If some files were in ``train`` and some in ``val`` or ``test``, the folder is split likewise,
    and files that were in none of these are trained on.
    """
    divided = {True, False} <= {_is_tested(upload) for upload in uploads}
    parts = sorted({upload.label for upload in uploads} & _TESTED.keys())
    if not divided and TRAIN in parts and len(parts) > 1:
        raise ValueError(
            f"Classes can't be called {' and '.join(parts)} at once, since these names stand for "
            "the parts of a data set; move the photos of one to a class with another name."
        )
    for upload in uploads:
        part = ("val" if _is_tested(upload) else TRAIN,) if divided else ()
        folder = place.joinpath(*part, upload.label)
        folder.mkdir(parents=True, exist_ok=True)
        name, number = upload.name, 1
        while (folder / name).is_symlink():  # two cameras may number their photos alike
            number += 1
            name = f"{number} {upload.name}"
        (folder / name).symlink_to(upload.file)


def delete_uploads(uploads: Iterable[Upload]) -> None:
    """Delete the files."""
    for upload in uploads:
        upload.file.unlink(missing_ok=True)


def _is_tested(upload: Upload) -> bool | None:
    """True for a file in a folder to test on, False in one to train on, otherwise None."""
    return _TESTED.get("".join(upload.folders[-2:-1]))


def _place(path: str) -> tuple[tuple[str, ...], str]:
    """The folders to put a file in, and its name, of which only the ending matters."""
    *folders, name = path.strip("/").split("/")
    if folders[1:] and folders[0] not in _TESTED:  # users may drop ``train`` and ``val`` together
        del folders[0]
    shown = "".join(c if c.isprintable() or c < " " else " " for c in name)
    return tuple(map(_check_name, folders)), _check_name(_shortened(shown))


def _shortened(name: str) -> str:
    """The name of a file, shortened before its ending if it is too long."""
    stem, ending = os.path.splitext(name)
    room = _LONGEST_NAME - len(ending.encode(errors="replace"))
    return stem.encode(errors="replace")[: max(room, 1)].decode(errors="ignore") + ending


def _link(file: Path, target: Path) -> Path:
    """Link a file into a folder under a random name."""
    own = target / secrets.token_hex(8)
    os.link(file, own)
    return own


def _check_name(name: str) -> str:
    """A name without spaces around it; raises unless it can be the name of one folder."""
    name = name.strip()
    if len(name.encode(errors="replace")) > _LONGEST_NAME:
        raise ValueError(
            f"The name {name[:20]!r}... is longer than {_LONGEST_NAME} bytes; choose a shorter one."
        )
    if not name:
        raise ValueError("A file or a folder has an empty name; rename it.")
    if name in (".", ".."):
        raise ValueError(f"{name!r} can't be a name; choose another.")
    if not is_folder_name(name):
        raise ValueError(
            f"{name!r} can't be a class name or a file name; use letters, digits and spaces."
        )
    return name


def _inside(file: Path, inbox: Path) -> Path:
    """The real path of an uploaded file; raises unless it is in the inbox."""
    real = file.resolve()
    if not real.is_relative_to(inbox.resolve()) or not real.is_file():
        raise ValueError("This file wasn't uploaded; drop it again.")
    return real
