"""Write files atomically, and values as strict JSON."""

import json
import math
import os
import secrets
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file so that it has the old or the new content even if the process is killed.

    Makes the folder if it is missing. Leaves no temporary file when it fails, as on a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk; syncing a file doesn't do that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed processes; no other process may be writing there."""
    for file in folder.glob(".*.????????.tmp"):
        file.unlink()


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON, atomically."""
    write_atomically(path, to_json(value))


def to_json(value: Any) -> bytes:
    """Render strict JSON in UTF-8, with null for NaN and infinity.

    Raises ValueError for a key that is not a string, since it would be read back as one.
    """
    text = json.dumps(_strict(value), ensure_ascii=False, indent=1)
    # A lone surrogate, as in file names that aren't UTF-8, is written as JSON's own escape.
    return f"{text}\n".encode(errors="backslashreplace")


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise ValueError(f"{name!r} can't be a name in JSON; make it a string.")
        return {name: _strict(item) for name, item in value.items()}
    return value
