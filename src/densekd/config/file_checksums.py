"""The checksums of files that a run depends on: code, lists of class names, and data."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from densekd.config.own_parts import own_references
from densekd.config.settings_tree import CODE_FILE, given
from densekd.data.sources import SOURCES, source_digest
from densekd.files import DamagedFile, expand_home, read_sealed_json, write_sealed_json
from densekd.parts import OwnPartError, load_files, version

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# The settings with custom parts that learned steps depend on, so a branch must not change them.
_FIXED = ("network", "data.source", "scenario.order")
# Those that the base task, or a compression's teacher, depends on. If the method holds images out,
# the selection is added.
_OF_BASE = (*_FIXED, "method.name", "teacher")
# The settings that may name a text file of class names; ``order`` belongs to a compression.
_CLASS_FILES = ("data.classes_file", "scenario.order", "scenario.tasks", "order")


def named_files(config: "DataclassInstance") -> list[str]:
    """The files besides code that settings name: lists of class names, and the data source."""
    tree = dataclasses.asdict(config)
    named = [given(tree, *key.split(".")) for key in _CLASS_FILES]
    files = [str(path) for path in named if isinstance(path, Path)]
    return [*files, *filter(_is_source, [str(given(tree, "data", "source"))])]


def base_code(config: "DataclassInstance", *, selection: bool = False) -> dict[str, str]:
    """The versions of the code that a trained base or teacher depends on, by reference."""
    keys = (*_OF_BASE, *(["memory.selection"] if selection else []))
    return {name: version(name) for key, name in own_references(config).items() if key in keys}


def check_code(folder: Path, code: Mapping[str, str]) -> None:
    """Refuse to use a run if its files of code have changed; ``code`` has their SHA-256 by name."""
    if file := _changed(folder, code):
        raise OwnPartError(
            f"{file} has changed since this run began; restore it, delete {folder}, or choose "
            "another --out."
        )


def check_files(folder: Path, files: Iterable[str]) -> None:
    """Refuse to resume a run if files that it began with, such as its data, have changed.

    Unreadable files are ignored: a finished run no longer needs them, and an unfinished one reports
    them itself.
    """
    begun = _read(folder)
    check_code(folder, _checksums(file for file in files if file in begun))


def has_other_files(folder: Path, checksum: Callable[[str], str | None]) -> bool:
    """Whether a file of a run has changed since it began; a missing file counts as unchanged.

    ``checksum`` is `file_checksum`, perhaps with a cache.
    """
    try:
        return _changed(folder, _checksums(_read(folder), checksum)) is not None
    except ValueError:  # damaged checksums, which the run itself will report
        return True


def check_parent(config: "DataclassInstance", parent: Path) -> None:
    """Refuse to go on from a run whose data, class order or network has changed since."""
    fixed = [name for key, name in own_references(config).items() if key in _FIXED]
    begun = _read(parent)
    named = _checksums(file for file in named_files(config) if file in begun)
    if file := _changed(parent, {**load_files(fixed), **named}):
        raise OwnPartError(
            f"{file} has changed since {parent} learned its steps by it; restore it, and put what "
            "is new into another file."
        )


def file_checksum(file: str) -> str | None:
    """The SHA-256 of a file or a source of data; None if it can't be read."""
    if _is_source(file):
        return source_digest(file)
    path = expand_home(file)
    # Don't read a pipe: that works only once.
    readable = os.path.isfile(path) and os.access(path, os.R_OK)
    return sha256(path.read_bytes()).hexdigest() if readable else None


def _checksums(
    files: Iterable[str], checksum: Callable[[str], str | None] = file_checksum
) -> dict[str, str]:
    """The checksums of those files that can be read, by name."""
    return {file: found for file in files if (found := checksum(file)) is not None}


def _is_source(name: str) -> bool:
    kind, colon, _ = name.partition(":")
    return bool(colon) and kind in SOURCES


def _changed(folder: Path, code: Mapping[str, str]) -> str | None:
    """The first file of ``code`` whose checksum differs from the one in the folder, or None."""
    before = _read(folder)
    return next((file for file, sha256 in code.items() if before.get(file, sha256) != sha256), None)


def parent_files(config: "DataclassInstance") -> dict[str, str]:
    """The checksums that a branch's parent stored; none without a parent, or if it was deleted."""
    start = getattr(config, "start", None)
    return {} if start is None else _read(start.run)


def write_files(folder: Path, files: Iterable[str]) -> None:
    """Write the checksum of each file to a run folder; existing ones stay."""
    begun = _read(folder)
    write_code(folder, _checksums(file for file in files if file not in begun))


def write_code(folder: Path, code: Mapping[str, str]) -> None:
    """Write the SHA-256 of each file, by name, to a run folder; existing ones stay."""
    before = _read(folder)
    if code.keys() - before.keys():
        write_sealed_json(folder / CODE_FILE, {**code, **before})


def load_trusted(config: "DataclassInstance", folder: Path, trust_code: bool) -> None:
    """Load the code files that the settings of a folder name, if the user trusts them.

    Raises:
        OwnPartError: there are some but ``trust_code`` is False, or one has changed.
    """
    references = own_references(config).values()
    if trust_code:
        check_code(folder, load_files(references))
        return
    files = [name for name in references if not name.startswith("python:")]
    if files:
        raise OwnPartError(
            f"{folder} was made with the code in {files[0]}, which runs only if you agree: add "
            "--trust-code, in Python trust_code=True."
        )


def _read(folder: Path) -> dict[str, str]:
    try:
        return read_sealed_json(folder / CODE_FILE, unsealed=True)
    except FileNotFoundError:
        return {}
    except (OSError, DamagedFile) as error:
        raise ValueError(
            f"{folder / CODE_FILE} can't be read ({error}); delete {folder}."
        ) from error
