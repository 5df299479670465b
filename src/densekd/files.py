"""Atomic writes, strict JSON, and files that carry their own checksum."""

import io
import json
import math
import os
import secrets
import stat
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

# Larger than any JSON file that is written here: 100,000 classes take about 20 MB.
_MOST_JSON = 256 << 20
ASIDE = "set-aside"  # the folder for files that were set aside


class DamagedFile(ValueError):
    """A file isn't what was written, or can't be a file of that kind."""


def expand_home(path: Path | str) -> Path:
    """Expand ``~`` in a path; ``~name`` of an unknown user stays, so it names a missing file."""
    if not isinstance(path, str | os.PathLike):  # such as a list of folders
        raise ValueError(f"A path is a text or a Path, not {path!r}; give each folder by itself.")
    return Path(os.path.expanduser(path))  # Path's own method raises a RuntimeError


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path leads into a folder, or to the folder itself, after following all links."""
    # Not Path.resolve, which fails for a link to itself.
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file so that it has the old or the new content even if the process is killed.

    Makes the folder if it is missing. Leaves no temporary file if it fails, such as on a full disk.
    Raises ValueError for a device, which root could replace by a file.
    """
    if path.is_char_device() or path.is_block_device():
        raise ValueError(f"{path} is a device; name a file to write to.")
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
    """Sync the names of a folder's files to disk; syncing a file doesn't do that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed processes; call it only if no other process writes there."""
    for file in folder.glob(".*.????????.tmp"):
        file.unlink()


def set_aside(folder: Path, *places: Path) -> Path:
    """Move files or folders to a new subfolder of ``folder`` that nothing reads; return it."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")
    aside = folder / ASIDE / f"{now}.{secrets.token_hex(2)}"
    for place in places:
        other = aside / place.relative_to(folder)
        other.parent.mkdir(parents=True, exist_ok=True)
        os.replace(place, other)
        sync_folder(place.parent)
    return aside


def write_sealed_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON with its own checksum, atomically; `read_sealed_json` verifies it."""
    write_atomically(path, sealed_json(content))


def sealed_json(content: Mapping[str, Any]) -> bytes:
    """JSON of one or more entries, followed by its own SHA-256 as the last entry."""
    return _sealed(to_json(dict(content)), _FILE_SEAL)


def read_sealed_json(
    path: Path, version: int | None = None, *, unsealed: bool = False
) -> dict[str, Any]:
    """Read what `write_sealed_json` wrote, without the checksum.

    Args:
        path: the file.
        version: what its entry ``format`` must be, if it has one; None for any.
        unsealed: also take a file without a checksum, as earlier versions wrote it.

    Raises:
        DamagedFile: it was changed or cut off, isn't JSON, or has another format.
        FileNotFoundError: there is no such file.
    """
    content = read_regular_file(path, _MOST_JSON)
    record = _json_object(content)
    if record is not None and version is not None and record.get("format", version) != version:
        raise DamagedFile(
            f"{path} has the format {record['format']!r}, but this version reads {version}."
        )
    if record is None or not (_is_sealed(content, _FILE_SEAL) if _names_seal(record) else unsealed):
        raise DamagedFile(f"{path} is damaged: it isn't what was saved.")
    record.pop(_SEAL_NAME, None)
    return record


def sealed_line(content: Mapping[str, Any]) -> bytes:
    """One line of JSON of one or more entries, followed by its own SHA-256 as the last entry."""
    return _sealed(json.dumps(_strict(dict(content))).encode(), _LINE_SEAL)


def read_sealed_line(line: bytes) -> dict[str, Any] | None:
    """Read a line of `sealed_line` or an earlier version, without its checksum; None if damaged."""
    record = _json_object(line)
    if record is None or (_names_seal(record) and not _is_sealed(line, _LINE_SEAL)):
        return None
    record.pop(_SEAL_NAME, None)
    return record


def _json_object(content: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):  # the latter for thousands of nested brackets
        return None
    return record if isinstance(record, dict) else None


def write_sealed_text(path: Path, text: str) -> None:
    """Write text whose first line is a comment with the checksum of the rest, atomically."""
    body = text.encode()
    write_atomically(path, _first_line(body) + body)


def read_sealed_text(path: Path, most: int) -> str:
    """Read what `write_sealed_text` or an earlier version wrote, without the checksum.

    Raises:
        DamagedFile: it was changed, is empty, isn't text or has more than ``most`` bytes.
        FileNotFoundError: there is no such file.
    """
    content = read_regular_file(path, most)
    if content.startswith(_TEXT_SEAL):
        line, end, body = content.partition(b"\n")
        content = body if line + end == _first_line(body) else b""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = ""
    if not text.strip():
        raise DamagedFile(f"{path} is damaged: it isn't what was saved.")
    return text


def write_sealed_zip(path: Path, archive: bytes) -> None:
    """Write a zip archive, such as an ``npz``, with its checksum as its comment, atomically."""
    content = io.BytesIO(archive)
    with zipfile.ZipFile(content, "a") as file:
        file.comment = bytes(_HEX)  # a zip ends with its comment; the checksum goes there
    write_atomically(path, _sealed(content.getvalue()[:-_HEX], _ZIP_SEAL))


def read_sealed_zip(path: Path, most: int) -> bytes:
    """Read what `write_sealed_zip` wrote, or what an earlier version wrote without a checksum.

    Raises:
        DamagedFile: it was changed, isn't a zip archive, or has more than ``most`` bytes.
        FileNotFoundError: there is no such file.
    """
    content = read_regular_file(path, most)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            sealed = bool(file.comment)
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        sealed = True
    if sealed and not _is_sealed(content, _ZIP_SEAL):
        raise DamagedFile(f"{path} is damaged: it isn't what was saved.")
    return content


class _Seal(NamedTuple):
    """How a kind of file holds its checksum: ``before``, checksum, ``after`` replace ``end``."""

    end: bytes
    before: bytes
    after: bytes


_SEAL_NAME = "sha256"
_FILE_SEAL = _Seal(b"\n}\n", b',\n "sha256": "', b'"\n}\n')
_LINE_SEAL = _Seal(b"}", b', "sha256": "', b'"}')
_ZIP_SEAL = _Seal(b"", b"", b"")
_TEXT_SEAL = b"# sha256 "
_HEX = 64  # digits of a checksum


def _first_line(body: bytes) -> bytes:
    return _TEXT_SEAL + sha256(body).hexdigest().encode() + b"\n"


def _sealed(body: bytes, kind: _Seal) -> bytes:
    checksum = sha256(body).hexdigest().encode()
    return body.removesuffix(kind.end) + kind.before + checksum + kind.after


def _is_sealed(content: bytes, kind: _Seal) -> bool:
    """Whether content was sealed and not changed since."""
    place = len(content) - len(kind.before) - _HEX - len(kind.after)
    return place > 0 and _sealed(content[:place] + kind.end, kind) == content


def _names_seal(record: dict[str, Any]) -> bool:
    """Whether JSON was sealed; also if up to two characters of the seal's name are damaged."""
    last = next(reversed(record), "")
    differing = sum(a != b for a, b in zip(last, _SEAL_NAME, strict=False))
    return _SEAL_NAME in record or (len(last) == len(_SEAL_NAME) and differing <= 2)


def read_regular_file(path: Path, most: int) -> bytes:
    """Read a file of at most ``most`` bytes; never waits for a pipe or a device.

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
        # Not ``most``: ``read`` allocates as much memory as it is asked for.
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
