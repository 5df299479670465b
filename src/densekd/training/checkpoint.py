"""Save states to disk so that a killed process loses little and damage is detected.

A state is two files: ``NAME-DIGEST.safetensors`` with the tensors, and ``NAME.json`` with the facts
and the checksums of both files. The JSON is written last, atomically, so a state exists once its
JSON does; tensors without a JSON are ignored.
"""

import glob
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from densekd.allocator import physical_memory
from densekd.files import (
    DamagedFile,
    read_regular_file,
    read_sealed_json,
    remove_leftovers,
    sealed_json,
    sync_folder,
    write_atomically,
)
from densekd.text import first_line

_FORMAT = 1
_DIGITS = 16  # of the digest, in the name of a tensors file
_KEPT = 2  # states in a folder, in case the newer is damaged
_NUMBERED = re.compile(rf"(\d{{6,}})(?:\.json|-[0-9a-f]{{{_DIGITS}}}\.safetensors)")

logger = logging.getLogger(__name__)


class State(NamedTuple):
    """The content of a checkpoint."""

    facts: dict[str, Any]  # values for JSON; NaN and infinity are loaded as None, tuples as lists
    tensors: dict[str, Tensor]  # loaded to the CPU, contiguous and sorted by name


def save_state(path: Path, state: State) -> None:
    """Save a state at ``path``, a folder and a name without suffix; replaces the one there.

    If the process is killed, `load_state` gives either the previous state or this one. Only one
    process at a time may save into a folder.
    """
    remove_leftovers(path.parent)
    content = save(
        {
            # Always a copy: safetensors accepts neither strided tensors nor shared memory.
            name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, tensor in state.tensors.items()
        }
    )
    digest = sha256(content).hexdigest()
    facts = sealed_json({"format": _FORMAT, "facts": state.facts, "tensors": digest})
    file = _tensors_file(path, digest)
    write_atomically(file, content)
    write_atomically(path.with_name(f"{path.name}.json"), facts)
    for other in path.parent.glob(f"{glob.escape(path.name)}-{'?' * _DIGITS}.safetensors"):
        if other != file:
            other.unlink()


def load_state(path: Path) -> State:
    """Load the state that `save_state` saved at ``path``.

    Raises:
        DamagedFile: a file was changed, cut off or lost, or has another format.
        FileNotFoundError: there is no such state.
    """
    record = _read_json(path)
    file = _tensors_file(path, record["tensors"])
    try:
        content = read_regular_file(file, most_bytes())
    except FileNotFoundError as error:
        raise DamagedFile(f"The checkpoint {path} has lost its tensors, {file}.") from error
    if sha256(content).hexdigest() != record["tensors"]:
        raise DamagedFile(f"{file} is damaged: it isn't what was saved.")
    try:
        return State(record["facts"], dict(sorted(load(content).items())))
    except (SafetensorError, ValueError, KeyError) as error:
        raise DamagedFile(f"{file} is damaged: it isn't in the format safetensors.") from error


def most_bytes() -> int:
    """The most bytes of tensors that `load_state` reads: half of this computer's memory."""
    return physical_memory() // 2


@contextmanager
def sound_content(place: Path) -> Iterator[None]:
    """Turn the errors that wrong facts and tensors cause into a `DamagedFile`.

    A file that someone else wrote can have the right checksum and wrong content.
    """
    try:
        yield
    except (LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
        raise DamagedFile(
            f"{place} has the right checksum, but isn't what was saved "
            f"({type(error).__name__}: {first_line(error)})."
        ) from error


def remove_unused(folder: Path) -> None:
    """Remove tensors that no state in the folder refers to any more, and temporary files.

    Only one process at a time may change the folder.
    """
    remove_leftovers(folder)
    states = [file.with_suffix("") for file in folder.glob("*.json")]
    used = {_tensors_file(state, _read_json(state)["tensors"]) for state in states}
    for file in folder.glob("*.safetensors"):
        if file not in used:
            file.unlink()
    sync_folder(folder)


def load_facts(path: Path) -> dict[str, Any]:
    """Load only the facts of a state; raises the errors of `load_state`."""
    return dict(_read_json(path)["facts"])


def select_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with ``prefix``, by the rest of their names."""
    return {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}


class Checkpoints:
    """Numbered states in a folder; keeps the newest two, or all.

    `newest` skips a damaged state for the one before it. If the process is killed in any call,
    `newest` still gives the last state whose `save` finished, or the one being saved. The folder is
    made when the first state is saved.
    """

    def __init__(self, folder: Path, *, keep_all: bool = False) -> None:
        self.folder, self.keep_all = folder, keep_all

    def save(self, number: int, state: State) -> None:
        """Save a state; remove all but it and the one before, with ``keep_all`` only later ones."""
        if number < 0:
            raise ValueError(f"Checkpoints are numbered from 0, not {number}.")
        # First free the space of files that a killed process left, in case the disk is full.
        self._remove_all_but(self.numbers())
        save_state(self._path(number), state)
        self.tidy(number)

    def tidy(self, number: int) -> None:
        """Remove the states that this one replaced; a killed process might not have done so."""
        earlier = [n for n in self.numbers() if n <= number]
        self._remove_all_but(earlier if self.keep_all else earlier[-_KEPT:])

    def numbers(self) -> list[int]:
        """The numbers of all states, damaged or not, in order."""
        return [n for n, file in self._files() if file.suffix == ".json"]

    def load(self, number: int) -> State:
        """Load a state by its number; raises the errors of `load_state`."""
        return load_state(self._path(number))

    def newest(self) -> State | None:
        """The newest intact state; None if there is none, and the work must be done again.

        Logs a warning for each newer state that is damaged, or a single one if all are.
        """
        damaged: list[str] = []
        for number in reversed(self.numbers()):
            try:
                state = self.load(number)
            except DamagedFile as error:
                damaged.append(str(error))
                continue
            for reason in damaged:
                logger.warning("%s Checkpoint %d is used instead.", reason, number)
            return state
        if damaged:
            what = "No checkpoint in %s is intact; the newest: %s Their work is done again."
            logger.warning(what, self.folder, damaged[0])
        return None

    def clear(self) -> None:
        """Remove all states."""
        self._remove_all_but(())
        remove_leftovers(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}"

    def _files(self) -> list[tuple[int, Path]]:
        """All numbered files, including tensors without a JSON."""
        matches = ((_NUMBERED.fullmatch(file.name), file) for file in self.folder.glob("*"))
        return sorted((int(match[1]), file) for match, file in matches if match)

    def _remove_all_but(self, numbers: Collection[int]) -> None:
        files = [file for n, file in self._files() if n not in numbers]
        # JSON files first, so that none outlives its tensors; of these, the newest last.
        for file in sorted(files, key=lambda file: file.suffix):
            file.unlink()


def _read_json(path: Path) -> dict[str, Any]:
    """The verified content of a state's JSON."""
    file = path.with_name(f"{path.name}.json")
    try:
        record = read_sealed_json(file, _FORMAT)
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no checkpoint {file}.") from None
    if not isinstance(record.get("facts"), dict) or not isinstance(record.get("tensors"), str):
        raise DamagedFile(f"{file} is damaged: it has no facts or no tensors.")
    return record


def _tensors_file(path: Path, digest: str) -> Path:
    # The digest in the name keeps new tensors from replacing those that are still needed.
    return path.with_name(f"{path.name}-{digest[:_DIGITS]}.safetensors")
