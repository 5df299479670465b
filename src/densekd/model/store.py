"""Where the states of a model are kept, and which of them it is in.

::

    MODEL/current.json         which state it is in and how many there are, which makes them count
    MODEL/steps/000, 001, ...  a state each, never changed and never removed
    MODEL/pending/KEY/         how far an update is
    MODEL/lock                 whoever changes something holds it; readers don't need it
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from densekd.files import remove_leftovers, write_json
from densekd.model.records import Accuracy, ClassChange, HistoryEntry, Update
from densekd.training.checkpoint import load_facts

_FORMAT = 1


class Pointer(NamedTuple):
    """Which state a model is in, and how many it has had."""

    step: int
    steps: int


@dataclass(frozen=True)
class Store:
    """The files of a model."""

    folder: Path

    def pointer(self) -> Pointer | None:
        """Which state counts; None if there is none yet."""
        file = self.folder / "current.json"
        try:
            held = json.loads(file.read_bytes())
            pointer = Pointer(held["step"], held["steps"])
            if held["format"] != _FORMAT or not 0 <= pointer.step < pointer.steps:
                raise ValueError
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f'{file} is damaged; write {{"format": {_FORMAT}, "step": N, "steps": N + 1}} into '
                f"it, where N is the number of the newest folder in {self.folder / 'steps'}."
            ) from None
        return pointer

    def existing(self) -> Pointer:
        """Which state counts; raises if there is none."""
        pointer = self.pointer()
        if pointer is None:
            raise ValueError(
                f"There is no model in {self.folder}; `densekd learn {self.folder} FOLDER` makes "
                "one from a folder with a sub-folder of images for each class."
            )
        return pointer

    def path(self, step: int) -> Path:
        """The folder of a state."""
        return self.folder / "steps" / f"{step:03d}"

    def pending(self, key: str) -> Path:
        """The folder of an update that is going on."""
        return self.folder / "pending" / key

    def facts(self, step: int) -> dict[str, Any]:
        """What is written down of a state."""
        return load_facts(self.path(step) / "state")

    def entry(self, step: int, current: bool) -> HistoryEntry:
        """A state in the history."""
        return entry_of(step, self.facts(step), current)

    def line(self, step: int | None) -> Iterator[int]:
        """A state, the one that it was made from, and so on to the first."""
        while step is not None:
            yield step
            step = self.facts(step)["parent"]

    def commit(self, prepared: Path, step: int) -> None:
        """Make what was written to ``prepared`` a state, and the one that the model is in."""
        self.put(prepared, step)
        self.point(Pointer(step, step + 1))
        shutil.rmtree(self.folder / "pending", ignore_errors=True)

    def put(self, prepared: Path, step: int) -> None:
        """Move what was written to ``prepared`` to where it counts once the pointer says so."""
        place = self.path(step)
        if place.exists():  # of an update that was killed before it counted
            shutil.rmtree(place)
        place.parent.mkdir(exist_ok=True)
        os.replace(prepared, place)
        _sync(place.parent)

    def point(self, pointer: Pointer) -> None:
        """Change which state counts, at once."""
        write_json(self.folder / "current.json", {"format": _FORMAT, **pointer._asdict()})

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Refuse to change a model that another process changes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(
                f"Another process is changing {self.folder}; wait for it, or stop it first."
            ) from None
        try:
            remove_leftovers(self.folder)
            yield
        finally:
            lock.release()


def entry_of(step: int, facts: dict[str, Any], current: bool) -> HistoryEntry:
    """A state in the history, of what is written down of it."""
    return HistoryEntry(step, facts["parent"], facts["when"], current, _update(facts["update"]))


def _update(facts: dict[str, Any]) -> Update:
    """The update that became ``facts`` in JSON."""
    before = facts["before"]
    return Update(
        **{
            **facts,
            "learned": tuple(facts["learned"]),
            "replayed": tuple(facts["replayed"]),
            "before": None if before is None else Accuracy(**before),
            "after": Accuracy(**facts["after"]),
            "classes": tuple(ClassChange(**each) for each in facts["classes"]),
        }
    )


def _sync(folder: Path) -> None:
    """Bring a folder's names to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
