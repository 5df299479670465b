"""Pack a folder of images into one file: shrunk once, encoded anew, with an index.

The file depends only on the images and the options, not on the number of processes or on
interruptions. A killed process leaves what it has packed beside the file; the next one resumes.
"""

import hashlib
import io
import json
import math
import os
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from PIL import features
from torch.utils import data

from densekd.data.batches import default_workers
from densekd.data.dataset import FileImages, OnProgress
from densekd.data.decode import UnreadableImage, content_of, muted, open_rgb, reading, shrink
from densekd.data.file_lists import ends_of
from densekd.data.folder import FolderTable, LeftOut
from densekd.data.packed import DTYPES, FORMAT, HEADER_BYTES, TENSORS, PackedFile
from densekd.files import DamagedFile, sync_folder

_MOST_WORKERS = 1024
_AT_ONCE = 16  # images that a process encodes in one go
_RECORD = struct.Struct("<qI")  # a journal entry: an image's length, -1 if unreadable; CRC-32


@dataclass(frozen=True)
class PackOptions:
    """How images are packed."""

    shorter_side: int | None = 256  # shrink larger images to this; None keeps all files as they are
    quality: int = 90  # of JPEG, up to 95

    def __post_init__(self) -> None:
        if self.shorter_side is not None and self.shorter_side < 1:
            raise ValueError(f"The shorter side must be at least 1, not {self.shorter_side}.")
        if not 1 <= self.quality <= 95:
            raise ValueError(f"The quality must be from 1 to 95, not {self.quality}.")


def pack(
    table: FolderTable,
    target: Path,
    options: PackOptions,
    workers: int | None = None,  # processes that encode; None chooses by the processors
    on_progress: OnProgress | None = None,
) -> list[LeftOut]:
    """Pack images into a file; return the unreadable ones, which are left out, with the reasons.

    Raises:
        ValueError: the file holds something else, another process is packing into it, or no image
            can be read.
    """
    if workers is not None and not 0 <= workers <= _MOST_WORKERS:
        raise ValueError(f"Workers must be from 0 to {_MOST_WORKERS}, not {workers}.")
    if target.is_dir():
        raise ValueError(f"{target} is a folder; name a file to write to.")
    plan, work = _plan(table, options)
    with _exclusive(target):
        if target.exists():
            if not _is_up_to_date(target, plan, table, options, workers):
                raise ValueError(
                    f"{target} exists and isn't what would be packed; delete it, or give another "
                    "name."
                )
            _beside(target, "journal").unlink(missing_ok=True)  # if a process was killed at the end
            return []
        with _Unfinished(target, work) as unfinished:
            begun = len(unfinished.lengths)
            left = table.take(torch.arange(begun, len(table.files)))
            for number, image in enumerate(_encoded(left.paths, options, workers), begun + 1):
                unfinished.add(image)
                if on_progress is not None:
                    on_progress(number, len(table.files))
            return unfinished.finish(table, options, plan)


def encode_image(file: Path, options: PackOptions) -> bytes:
    """Return the bytes to pack for an image: a JPEG of it, shrunk, without metadata.

    A JPEG that is small enough, or any file if ``shorter_side`` is None, is returned as it is.
    Raises UnreadableImage.
    """
    shorter = options.shorter_side
    with reading(file) as image:
        size, plain = image.size, image.format == "JPEG"
    if shorter is None or (plain and min(size) <= shorter):
        open_rgb(file)  # or raise
        return content_of(file)
    small, out = shrink(open_rgb(file), shorter), io.BytesIO()
    try:
        small.save(out, "JPEG", quality=options.quality)
    except OSError as error:
        pixels = f"{small.width} x {small.height} pixels"
        raise UnreadableImage(f"it can't become a JPEG of {pixels}") from error
    return out.getvalue()


class _Encoder(data.Dataset[bytes | None]):
    """Encodes files; an unreadable one becomes None."""

    def __init__(self, files: Sequence[Path], options: PackOptions) -> None:
        self.files, self.options = files, options

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> bytes | None:
        try:
            with muted:
                return encode_image(self.files[index], self.options)
        except UnreadableImage:
            return None


def _encoded(
    files: Sequence[Path], options: PackOptions, workers: int | None
) -> Iterator[bytes | None]:
    """Yield the encoded images in order, made by ``workers`` processes; None if unreadable."""
    if workers is None:
        workers = default_workers(FileImages(files, 1))
    workers = min(workers, math.ceil(len(files) / _AT_ONCE))  # more would have nothing to do
    loader: data.DataLoader[Any] = data.DataLoader(
        _Encoder(files, options), _AT_ONCE, num_workers=workers, collate_fn=list
    )
    for images in loader:
        yield from images


class _Unfinished:
    """A file that is being packed, and the journal of its images.

    After a kill, the images that are complete in both are kept.
    """

    def __init__(self, target: Path, work: str) -> None:
        self.target, self.work = target, work
        self.part, self.journal = (_beside(target, kind) for kind in ("part", "journal"))
        self.lengths = array("q")  # -1 for an image that can't be read
        self.checksums = array("I")

    def __enter__(self) -> "_Unfinished":
        first = f"{self.work}\n".encode()
        self._part, self._journal = _open(self.part), _open(self.journal)
        if self._journal.read(len(first)) == first:
            self._take_over()
        else:
            self._journal.seek(0)
            self._journal.write(first)
        done = sum(length for length in self.lengths if length > 0)
        self._part.seek(HEADER_BYTES + done)
        self._journal.seek(len(first) + _RECORD.size * len(self.lengths))
        for file in (self._part, self._journal):
            file.truncate()
        return self

    def __exit__(self, *_: object) -> None:
        self._part.close()
        self._journal.close()

    def add(self, image: bytes | None) -> None:
        """Add the next image; None for one that can't be read."""
        self._part.write(image or b"")
        self._count(-1 if image is None else len(image), zlib.crc32(image or b""))
        self._journal.write(_RECORD.pack(self.lengths[-1], self.checksums[-1]))

    def finish(self, table: FolderTable, options: PackOptions, plan: str) -> list[LeftOut]:
        """Write index and header, and rename the file; return the images that can't be read."""
        lengths = np.array(self.lengths)
        readable = torch.from_numpy(lengths >= 0)
        if len(lengths) and not readable.any():
            self.journal.unlink()  # so that the next attempt reads the images again
            self.part.unlink()
            why = _why_unreadable(table.paths[0], options)
            raise ValueError(
                f"No image can be read, such as {table.paths[0]} ({why}), so nothing was packed; "
                "check the source."
            )
        kept = table.take(readable)
        tensors = _index(kept, lengths[readable.numpy()])
        tensors["checksums"] = np.array(self.checksums, np.uint32)[readable.numpy()]
        end = int(tensors["ends"][-1])
        padding = -end % 8
        index = b"".join(tensors[name].tobytes() for name in TENSORS if name != "images")
        self._part.write(bytes(padding) + index)
        sizes = {name: array.nbytes for name, array in tensors.items()}
        facts = {"format": FORMAT, "plan": plan}
        facts["index_sha256"] = hashlib.sha256(index).hexdigest()
        self._part.seek(0)
        self._part.write(_header({"images": end + padding, **sizes}, facts))
        self._part.flush()
        os.fsync(self._part.fileno())
        os.replace(self.part, self.target)
        sync_folder(self.target.parent)
        self.journal.unlink()
        unreadable = (~readable).nonzero().flatten().tolist()
        return [(table.paths[i], _why_unreadable(table.paths[i], options)) for i in unreadable]

    def _take_over(self) -> None:
        """Keep the images that a killed process has packed completely."""
        left = self._part.seek(0, os.SEEK_END) - HEADER_BYTES
        self._part.seek(HEADER_BYTES)
        while len(record := self._journal.read(_RECORD.size)) == _RECORD.size:
            length, checksum = _RECORD.unpack(record)
            # After a crash, a lost page of the journal has zeros; no image has zero bytes.
            if length != -1 and not 0 < length <= left:
                break
            image = self._part.read(max(length, 0))
            if zlib.crc32(image) != checksum:
                break
            left -= len(image)
            self._count(length, checksum)

    def _count(self, length: int, checksum: int) -> None:
        self.lengths.append(length)
        self.checksums.append(checksum)


def _index(table: FolderTable, lengths: Any) -> dict[str, Any]:
    names = [os.fsencode(name) for name in _names(table)]
    said = {"classes": table.classes, "parts": table.part_names}
    return {
        "ends": ends_of(lengths),
        "name_ends": ends_of([len(name) for name in names]),
        "labels": table.labels.numpy().astype(np.int32),
        "names": np.frombuffer(b"".join(names), np.uint8),
        "classes": np.frombuffer(json.dumps(said).encode(), np.uint8),
        "parts": table.parts.numpy().astype(np.uint8),
    }


def _header(sizes: dict[str, int], facts: dict[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": facts}
    begin = 0
    for name, dtype in TENSORS.items():
        end = begin + sizes[name]
        shape = [sizes[name] // DTYPES[dtype].itemsize]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode().ljust(HEADER_BYTES - 8)
    return struct.pack("<Q", len(text)) + text


def _names(table: FolderTable) -> Iterator[str]:
    rows = zip(table.part_of_each, table.class_of_each, table.paths, strict=True)
    return (f"{part}/{label}/{file.name}" for part, label, file in rows)


def _plan(table: FolderTable, options: PackOptions) -> tuple[str, str]:
    """Two digests of what the packed file depends on: by the files' sizes, and by their times too.

    The packed file stores the first, since copies of the files have other times. The journal stores
    the second: what a killed process has packed is kept only if the files haven't changed.
    """
    made_by = [features.version("pil"), features.version("jpg")]
    said = [asdict(options), made_by, table.classes, table.part_names]
    digest, times = hashlib.sha256(json.dumps(said).encode()), array("q")
    for name, file in zip(_names(table), table.paths, strict=True):
        found = file.stat()
        digest.update(f"\0{name}\0{found.st_size}".encode(errors="surrogateescape"))
        times.append(found.st_mtime_ns)
    plan = digest.hexdigest()
    digest.update(times.tobytes())
    return plan, digest.hexdigest()


def _is_up_to_date(
    target: Path, plan: str, table: FolderTable, options: PackOptions, workers: int | None
) -> bool:
    """Whether a file is the one that would be packed.

    The plan has only the files' sizes, and an edit such as turning a photo might keep its size. So
    files that were written after the packed file are encoded again, and compared.
    """
    try:
        found, packed = PackedFile(target), target.stat().st_mtime_ns
    except (DamagedFile, OSError):
        return False
    if found.facts.get("plan") != plan:
        return False
    newer = torch.tensor([file.stat().st_mtime_ns > packed for file in table.paths]).bool()
    if not newer.any():
        return True
    assert found.checksums is not None
    checksums = {found.name(i): int(x) for i, x in enumerate(found.checksums)}
    changed = table.take(newer)
    images = _encoded(changed.paths, options, workers)
    return all(
        checksums.get(name) == (None if image is None else zlib.crc32(image))
        for name, image in zip(_names(changed), images, strict=True)
    )


def _why_unreadable(file: Path, options: PackOptions) -> str:
    try:
        encode_image(file, options)
    except UnreadableImage as error:
        return str(error)
    return "it could not be read when it was packed"


def _beside(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}.{kind}")


def _open(path: Path) -> IO[bytes]:
    """Open a file to read and write from its beginning, making it if it is missing."""
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")


@contextmanager
def _exclusive(target: Path) -> Iterator[None]:
    """Keep other processes from packing into the same file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(_beside(target, "lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"Another process is packing into {target}; wait for it.") from None
    try:
        yield
    finally:
        _beside(target, "lock").unlink(missing_ok=True)
        lock.release()
