"""Files that are never half written."""

import json
import math
import os
import secrets
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file such that, whenever the process ends, it has the old content or the new.

    The folder is made if need be. If anything fails, a full disk say, nothing is left behind.
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
    """Remove the temporary files of killed processes; nobody else may be writing there."""
    for file in folder.glob(".*.????????.tmp"):
        file.unlink()


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` with `write_atomically` as `to_json` renders it."""
    write_atomically(path, to_json(value))


def to_json(value: Any) -> bytes:
    """``value`` as JSON that every reader takes: in UTF-8, with null for NaN and infinity.

    Names must be strings, for any other would come back as one.
    """
    text = json.dumps(_plain(value), ensure_ascii=False, indent=1)
    # Half of a surrogate pair, as in names of files that aren't UTF-8, becomes JSON's own escape.
    return f"{text}\n".encode(errors="backslashreplace")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise ValueError(f"{name!r} can't be a name in JSON; make it a string.")
        return {name: _plain(item) for name, item in value.items()}
    return value
