"""Compact lists of image files, by name or by content: a few bytes for each file."""

import os
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

_Item = TypeVar("_Item", covariant=True)


class _FileList(Sequence[_Item], Generic[_Item]):
    """A sequence that makes an item when it is asked for."""

    @overload
    def __getitem__(self, index: int) -> _Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[_Item]: ...
    def __getitem__(self, index: int | slice) -> _Item | Sequence[_Item]:
        places = range(len(self))[index]
        return self._at(places) if isinstance(places, int) else [self._at(i) for i in places]

    @abstractmethod
    def _at(self, place: int) -> _Item: ...


class FolderFiles(_FileList[Path]):
    """The files of one folder: the folder's path, and the files' names in one buffer."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self.folder = folder
        self._names = b"".join(encoded)
        self._ends = ends_of([len(name) for name in encoded])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def _at(self, place: int) -> Path:
        return self.folder / self.name(place)

    def name(self, place: int) -> str:
        """The name of a file in its folder."""
        return os.fsdecode(self._names[self._ends[place] : self._ends[place + 1]])


class FileContents(_FileList[bytes]):
    """The contents of files, one after the other in one buffer, optionally with their CRC-32."""

    def __init__(
        self,
        content: NDArray[np.uint8],
        ends: NDArray[np.int64],  # [n + 1], where each file begins, and where the last ends
        checksums: NDArray[np.uint32] | None = None,
    ) -> None:
        self.content, self.ends, self.checksums = content, ends, checksums

    def __len__(self) -> int:
        return len(self.ends) - 1

    def _at(self, place: int) -> bytes:
        return self.content[self.ends[place] : self.ends[place + 1]].tobytes()

    def name(self, place: int) -> str:
        """What to call a file in messages."""
        return f"image {place}"


class FileSelection(_FileList[Path | bytes]):
    """Files of several lists, in any order.

    Selections share the lists, so a selection takes only twelve bytes for each file.
    """

    def __init__(
        self,
        lists: tuple[Sequence[Path | bytes], ...],
        which: NDArray[np.int32],  # [n], the list of each file
        places: NDArray[np.int64],  # [n], the file's place in that list
    ) -> None:
        self.lists, self.which, self.places = lists, which, places

    def __len__(self) -> int:
        return len(self.places)

    def _at(self, place: int) -> Path | bytes:
        return self.lists[int(self.which[place])][int(self.places[place])]

    def where(self, place: int) -> Path:
        """The path of a file, or what to call a file that is given by content."""
        files, own = self.lists[int(self.which[place])], int(self.places[place])
        if isinstance(files, FileContents):
            return Path(files.name(own))
        file = files[own]
        return file if isinstance(file, Path) else Path(f"image {place}")

    def take(self, index: Tensor) -> "FileSelection":
        """Return the files at ``index``, positions or a mask."""
        chosen = index.numpy()
        return FileSelection(self.lists, self.which[chosen], self.places[chosen])


def ends_of(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of several pieces begins, and where the last ends: ``[n + 1]``."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def all_of(*lists: Sequence[Path | bytes]) -> FileSelection:
    """Select all files of some lists, in their order."""
    if len(lists) == 1 and isinstance(lists[0], FileSelection):
        return lists[0]
    counts = [len(files) for files in lists]
    which = np.repeat(np.arange(len(lists), dtype=np.int32), counts)
    empty = np.zeros(0, np.int64)
    places = np.concatenate([empty, *(np.arange(n, dtype=np.int64) for n in counts)])
    return FileSelection(lists, which, places)


def join_files(parts: Sequence[Sequence[Path | bytes]]) -> FileSelection:
    """Join files in the order of ``parts``; a list that several parts share is kept once."""
    selections = [all_of(part) for part in parts]
    # Most parts have the same tuple of lists: look at each tuple once.
    tuples = {id(part.lists): part.lists for part in selections}
    lists: dict[int, Sequence[Path | bytes]] = {}
    for each in tuples.values():
        lists |= {id(files): files for files in each}
    rank = {key: i for i, key in enumerate(lists)}
    ranks = {
        key: np.array([rank[id(files)] for files in each], np.int32) for key, each in tuples.items()
    }
    which = [ranks[id(part.lists)][part.which] for part in selections]
    places = np.concatenate([part.places for part in selections])
    return FileSelection(tuple(lists.values()), np.concatenate(which), places)
