"""What the browser sent: images and the folders that they were in. None of it is trusted."""

import json
import os
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Upload(NamedTuple):
    """A file that was received.

    Args:
        folders: where it is to lie, its class last; empty if it has no class yet.
        name: as its owner calls it.
        file: where it is; nothing else is there.
    """

    folders: tuple[str, ...]
    name: str
    file: Path


def received(sent: object, folder: Path, kept: Path) -> list[Upload]:
    """Take the files that a drop area tells of; hidden ones are passed over.

    A folder of images is a class. A folder of folders is taken as it is, without its own name,
    so it may be divided into ``train`` and ``val``.

    Args:
        sent: JSON, for each file its ``name`` with the folders before it, and the ``file`` that
            it was received as.
        folder: where files are received; those that were told of are gone afterwards.
        kept: where they are put, under names of their own.
    """
    try:
        told = [(str(each["name"]), str(each["file"])) for each in json.loads(str(sent))]
    except (ValueError, TypeError, KeyError):
        raise ValueError("What was dropped can't be understood; load the page again.") from None
    files = [_inside(Path(file), folder) for _, file in told]
    uploads = []
    for (path, _), file in zip(told, files, strict=True):
        *folders, name = [check_name(part) for part in path.strip("/").split("/")]
        if not name.startswith("."):
            own = kept / secrets.token_hex(8)
            os.link(file, own)
            uploads.append(Upload(tuple(folders[1:] or folders), name, own))
    # At the end, for equal files of equal names are received as one.
    for file in files:
        file.unlink(missing_ok=True)
    return uploads


def check_name(name: str) -> str:
    """A name that can be a folder's and nothing else, without spaces around it."""
    name = name.strip()
    if not name or name in (".", "..") or len(name.encode(errors="replace")) > 200:
        raise ValueError("A name must have between 1 and 200 letters.")
    if "/" in name or "\\" in name or not name.isprintable():
        raise ValueError(f"{name!r} can't be a name; use letters, digits and spaces.")
    return name


def named(uploads: Iterable[Upload], label: str) -> list[Upload]:
    """The same, where images without a class are of the class ``label``."""
    uploads = list(uploads)
    if all(upload.folders for upload in uploads):
        return uploads
    if not label.strip():
        raise ValueError("Say what the images show: give them a name.")
    folders = (check_name(label),)
    if folders[0].startswith("."):
        raise ValueError(f"{label!r} can't be a name; begin it with a letter or a digit.")
    return [upload if upload.folders else upload._replace(folders=folders) for upload in uploads]


def counts(uploads: Iterable[Upload]) -> dict[str, int]:
    """How many images there are of each class; of those without one under an empty name."""
    found = Counter(upload.folders[-1] if upload.folders else "" for upload in uploads)
    return dict(sorted(found.items()))


def lay_out(uploads: Sequence[Upload], place: Path) -> None:
    """Make a folder with a sub-folder for each class, as `densekd.model.teach.teach` takes it."""
    for upload in uploads:
        folder = place.joinpath(*upload.folders)
        folder.mkdir(parents=True, exist_ok=True)
        name, number = upload.name, 1
        while (folder / name).is_symlink():  # from different folders, phones number alike
            number += 1
            name = f"{number} {upload.name}"
        (folder / name).symlink_to(upload.file)


def remove(uploads: Iterable[Upload]) -> None:
    """Delete the files."""
    for upload in uploads:
        upload.file.unlink(missing_ok=True)


def _inside(file: Path, folder: Path) -> Path:
    """The file, if it is one that was received."""
    real = file.resolve()
    if not real.is_relative_to(folder.resolve()) or not real.is_file():
        raise ValueError("A file was named that wasn't received; drop it again.")
    return real
