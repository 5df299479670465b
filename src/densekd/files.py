"""Write files atomically, values as strict JSON, and JSON that carries its own checksum."""

import json
import math
import os
import secrets
import stat
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

# More than any file of facts that is written here: 100,000 classes take about 20 MB.
_MOST_JSON = 256 << 20


class DamagedFile(ValueError):
    """A file isn't what was written, or can't be a file of that kind."""


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


def write_sealed_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON with its own checksum, atomically; `read_sealed_json` verifies it."""
    write_atomically(path, sealed_json(content))


def sealed_json(content: Mapping[str, Any]) -> bytes:
    """JSON with its own SHA-256, as its last entry."""
    return to_json({**content, "sha256": sha256(to_json(dict(content))).hexdigest()})


def read_sealed_json(
    path: Path, version: int | None = None, *, unsealed: bool = False
) -> dict[str, Any]:
    """Read what `write_sealed_json` wrote, without the checksum.

    Args:
        path: the file.
        version: what its entry ``format`` must be, if anything.
        unsealed: also take a file without a checksum, as earlier versions wrote it.

    Raises:
        DamagedFile: it was changed or cut off, or isn't JSON.
        FileNotFoundError: there is no such file.
    """
    content = read_regular_file(path, _MOST_JSON)
    try:
        record = json.loads(content)
        known = isinstance(record, dict)
        # Compare the whole rendering, not just the checksum, to detect even changed white space.
        intact = known and (
            content == sealed_json({k: v for k, v in record.items() if k != "sha256"})
            if "sha256" in record
            else unsealed
        )
    except (ValueError, RecursionError):  # thousands of nested brackets
        known = intact = False
    if known and version is not None and record.get("format", version) != version:
        raise DamagedFile(
            f"{path} has the format {record['format']!r}, but this version reads {version}."
        )
    if not intact:
        raise DamagedFile(f"{path} is damaged: it isn't what was saved.")
    return {name: value for name, value in record.items() if name != "sha256"}


def read_regular_file(path: Path, most: int) -> bytes:
    """Read a file of at most so many bytes; never waits for a pipe or a device.

    Raises:
        DamagedFile: it is larger, or no regular file.
        FileNotFoundError: there is no such file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise DamagedFile(f"{path} is damaged: it isn't a regular file.")
    with open(handle, "rb") as file:
        if found.st_size > most:
            raise DamagedFile(
                f"{path} has {found.st_size:,} bytes, more than the {most:,} that are read."
            )
        # Not ``most``: reading sets aside as much memory as it is asked for.
        return file.read(found.st_size)


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
