"""Packed images: one safetensors file of encoded images with their classes, names and checksums.

`densekd.data.pack` writes the file. It is mapped into memory, so processes share it, and only the
images that are read take memory.
"""

import hashlib
import json
import os
import stat
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from densekd.data.dataset import Dataset, FileImages
from densekd.data.decode import UnreadableImage
from densekd.data.file_lists import FileContents, all_of
from densekd.data.folder import TRAIN, FolderTable, check_asked_for
from densekd.data.folder_images import FOLDER_IMAGE_SIZE, divided, folder_dataset
from densekd.data.scenario import read_names
from densekd.files import DamagedFile, expand_home

FORMAT = "densekd-packed-1"
# The length of the header, with the eight bytes before it, so that the images begin at a page.
HEADER_BYTES = 4096
# The tensors in the file's order, all of one dimension, with safetensors' names of their types.
TENSORS = {
    "images": "U8",  # one encoded image after the other; the end is padded to eight bytes
    "ends": "I64",  # [n + 1], where each image begins, and where the last ends
    "name_ends": "I64",  # [n + 1], the same for names
    "checksums": "U32",  # [n], CRC-32
    "labels": "I32",  # [n], positions in classes
    "names": "U8",  # PART/CLASS/FILE of each image, one after the other
    "classes": "U8",  # JSON: the names of classes and parts
    "parts": "U8",  # [n], positions in the names of parts
}
DTYPES: dict[str, np.dtype[Any]] = {
    "U8": np.dtype("u1"),
    "I64": np.dtype("<i8"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
}


class PackedFile(FileContents):
    """The encoded images of a packed file, as a sequence.

    Raises:
        DamagedFile: it isn't a packed file, or its index isn't what was written.
        FileNotFoundError: there is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors, self.facts = _map_tensors(path)
        super().__init__(*(self._tensors[name] for name in ("images", "ends", "checksums")))
        try:
            names = json.loads(self._tensors["classes"].tobytes())
            self.classes, self.part_names = tuple(names["classes"]), tuple(names["parts"])
            "".join(self.classes + self.part_names).encode()  # raises unless all are valid text
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise _damaged(path, "its classes can't be read") from error
        self._check()

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedFile, (self.path,)  # another process maps the file itself

    def name(self, place: int) -> str:
        """Part, class and file name of an image before it was packed."""
        ends = self._tensors["name_ends"]
        return os.fsdecode(self._tensors["names"][ends[place] : ends[place + 1]].tobytes())

    def table(self) -> FolderTable:
        """All images with their classes and parts."""
        labels, parts = (
            torch.from_numpy(self._tensors[name].astype(np.int64)) for name in ("labels", "parts")
        )
        return FolderTable(all_of(self), labels, parts, self.classes, self.part_names)

    def _at(self, place: int) -> bytes:
        content = super()._at(place)
        if zlib.crc32(content) != self._tensors["checksums"][place]:
            raise UnreadableImage(
                f"{self.path} is damaged: the image {self.name(place)!r} isn't what was packed; "
                "delete the file and pack it again"
            )
        return content

    def _check(self) -> None:
        """Raise `DamagedFile` if a position in the index points outside of its target."""
        count, own = len(self.ends) - 1, self._tensors
        one_each = all(len(own[k]) == count for k in ("checksums", "labels", "parts"))
        rising = all(
            len(ends) == count + 1 > 0
            and ends[0] == 0
            and ends[-1] <= len(own[of])
            # Compare, don't subtract: the difference of forged numbers may overflow.
            and bool((ends[1:] >= ends[:-1]).all())
            for ends, of in ((self.ends, "images"), (own["name_ends"], "names"))
        )
        if not (one_each and rising) or (
            count > 0
            and not (
                0 <= own["labels"].min() <= own["labels"].max() < len(self.classes)
                and own["parts"].max() < len(self.part_names)
            )
        ):
            raise _damaged(self.path, "its index points outside")


def load_packed(
    path: str | Path,
    *,
    image_size: int = FOLDER_IMAGE_SIZE,  # height and width
    classes_file: Path | None = None,  # a text file of the classes to load, one per line
    seed: int = 0,  # draws the test images of a folder that wasn't divided
) -> Dataset:
    """Load a file that `densekd.data.pack` wrote; its images stay in the file."""
    chosen = None if classes_file is None else read_names(classes_file)
    return packed_dataset(open_packed(path), image_size, chosen, seed)


def packed_dataset(
    packed: PackedFile, image_size: int, only: Sequence[str] | None, seed: int = 0
) -> Dataset:
    """Make a data set of a packed file, or of ``only`` some of its classes, in that order."""
    if image_size < 1:
        raise ValueError(f"image_size must be at least 1, not {image_size}.")
    table = divided(packed.table(), seed)
    learned = table.counts().get(TRAIN, {})
    if only is not None:
        check_asked_for(packed.path, only, learned)
        wanted = {*only}
        chosen = torch.tensor([name in wanted for name in packed.classes])
        table = table.take(chosen[table.labels])
    order = only or [name for name in packed.classes if learned.get(name)]
    images = FileImages(table.files, image_size)
    return folder_dataset(f"packed:{packed.path}", images, table, order)


def open_packed(path: str | Path) -> PackedFile:
    """Open a packed file that the user named; raise a `ValueError` if it can't be opened."""
    path = expand_home(path)
    try:
        return PackedFile(path)
    except FileNotFoundError as error:
        raise ValueError(f"There is no file {path}; make it with `densekd data pack`.") from error
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}.") from error


def _map_tensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Map the file's tensors into memory, after checking that the header describes this file."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise _damaged(path, "it isn't a regular file")
        head = file.read(HEADER_BYTES)
        spans, facts = _spans(path, head, found.st_size)
        # Read, not mapped: else all pages of the index would count as memory in use.
        file.seek(spans["images"][1])
        if hashlib.file_digest(file, "sha256").hexdigest() != facts.get("index_sha256"):
            raise _damaged(path, "its index isn't what was written")
        whole = np.memmap(file, np.uint8, "r")
    if len(whole) != found.st_size:
        raise _damaged(path, "its size changes")
    tensors: dict[str, Any] = {
        name: whole[begin:end].view(DTYPES[TENSORS[name]]).view(np.ndarray)
        for name, (begin, end) in spans.items()
    }
    return tensors, facts


def _spans(path: Path, head: bytes, size: int) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """Where each tensor begins and ends in the file, and the header's facts; checks both."""
    try:
        said_bytes = struct.unpack_from("<Q", head)[0]
        whole = said_bytes == HEADER_BYTES - 8 == len(head) - 8
        header = json.loads(head[8:]) if whole else {}
        facts = header.pop("__metadata__", None)
        known = isinstance(facts, dict) and facts.get("format") == FORMAT
        spans, begin = {}, 0
        for name, dtype in TENSORS.items():
            said = header.pop(name)
            begun, end = said["data_offsets"]
            length, rest = divmod(end - begin, DTYPES[dtype].itemsize)
            if (said["dtype"], said["shape"], begun) != (dtype, [length], begin):
                raise ValueError
            if type(end) is not int or rest or end < begin:
                raise ValueError
            spans[name] = (HEADER_BYTES + begin, HEADER_BYTES + end)
            begin = end
        if not known or header or HEADER_BYTES + begin != size:
            raise ValueError
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _damaged(path, "it isn't a packed file, or was cut off") from None
    return spans, facts


def _damaged(path: Path, why: str) -> DamagedFile:
    return DamagedFile(f"{path} can't be used: {why}; make it with `densekd data pack`.")
