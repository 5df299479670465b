"""States on disk that outlive a killed process, and that tell when they were damaged.

A state is two files: ``NAME-DIGEST.safetensors`` with its tensors, and ``NAME.json`` with its
facts and the checksums of both. The JSON is written last and replaced at once, so it is what makes
a state exist; tensors that no JSON speaks of are ignored.
"""

import glob
import json
import logging
import re
from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor

from densekd.files import remove_leftovers, to_json, write_atomically

_FORMAT = 1
_DIGITS = 16  # of the digest, in the name of a tensors file
_GENERATION = re.compile(rf"(\d{{6,}})(?:\.json|-[0-9a-f]{{{_DIGITS}}}\.safetensors)")

logger = logging.getLogger(__name__)


class State(NamedTuple):
    """All that a resume needs.

    Args:
        facts: what JSON can hold; NaN and infinity come back as None, tuples as lists.
        tensors: by name; they come back on the CPU and contiguous, sorted by name.
    """

    facts: dict[str, Any]
    tensors: dict[str, Tensor]


class DamagedCheckpoint(ValueError):
    """A state on disk that isn't what was saved, or that another version saved."""


def save_state(path: Path, state: State) -> None:
    """Save a state, replacing the one that has the same ``path``.

    Whenever the process ends, `load_state` gives either the one before or this one. Only one
    process at a time may save into a folder.

    Args:
        path: a folder and the NAME in it, without an ending.
        state: what to save.
    """
    remove_leftovers(path.parent)
    content = save({name: _packed(tensor) for name, tensor in state.tensors.items()})
    digest = sha256(content).hexdigest()
    facts = _sealed({"format": _FORMAT, "facts": state.facts, "tensors": digest})
    file = _tensors_file(path, digest)
    write_atomically(file, content)
    write_atomically(_json_file(path), facts)
    for other in path.parent.glob(f"{glob.escape(path.name)}-{'?' * _DIGITS}.safetensors"):
        if other != file:
            other.unlink()


def load_state(path: Path) -> State:
    """The state that `save_state` saved at ``path``.

    Raises:
        DamagedCheckpoint: a file of it was changed, cut off or lost, or has another format.
        FileNotFoundError: there is no such state.
    """
    held = _held(path)
    file = _tensors_file(path, held["tensors"])
    try:
        content = file.read_bytes()
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"The checkpoint {path} has lost its tensors, {file}.") from error
    if sha256(content).hexdigest() != held["tensors"]:
        raise _damaged(file)
    return State(held["facts"], dict(sorted(load(content).items())))


def load_facts(path: Path) -> dict[str, Any]:
    """The facts alone of the state that `save_state` saved at ``path``; raises as `load_state`."""
    facts: dict[str, Any] = _held(path)["facts"]
    return facts


def select_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with ``prefix``, by the rest of their names."""
    return {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}


class Checkpoints:
    """The newest states of something, in a folder of their own, by number.

    A damaged one is passed over for the one before it. A process may be killed in any call:
    `latest` then gives the last state whose `save` had come to its end, or the one being saved.

    Args:
        folder: where they are; it is made when the first is saved.
        keep: how many are kept.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"Can't keep {keep} checkpoints; keep at least 1.")
        self.folder = folder
        self.keep = keep

    def save(self, number: int, state: State) -> None:
        """Save a state; then remove those beyond ``keep``, and any with a greater number.

        Args:
            number: greater than that of the last one, or the same to replace it.
            state: what to save.
        """
        if number < 0:
            raise ValueError(f"Checkpoints are numbered from 0, not {number}.")
        # What a killed process left may be what fills the disk.
        self._remove_all_but(self._numbers())
        save_state(self._path(number), state)
        self._remove_all_but([n for n in self._numbers() if n <= number][-self.keep :])

    def latest(self) -> tuple[int, State] | None:
        """The newest intact state and its number; None if nothing was saved.

        Logs a warning for each damaged one that is newer.

        Raises:
            DamagedCheckpoint: there are some, but none is intact. Beginning anew in their place
                is not for this class to decide.
        """
        damaged: list[str] = []
        for number in reversed(self._numbers()):
            try:
                state = load_state(self._path(number))
            except DamagedCheckpoint as error:
                damaged.append(str(error))
                continue
            for reason in damaged:
                logger.warning("%s Checkpoint %d is used instead.", reason, number)
            return number, state
        if damaged:
            raise DamagedCheckpoint(
                f"No checkpoint in {self.folder} is intact; remove the folder to begin anew. "
                f"The newest: {damaged[0]}"
            )
        return None

    def newest(self) -> State | None:
        """The newest intact state, for work that can be done again where there is none.

        Logs a warning if there are some, but none is intact.
        """
        try:
            latest = self.latest()
        except DamagedCheckpoint as error:
            logger.warning("%s What they held is done again.", error)
            return None
        return None if latest is None else latest[1]

    def clear(self) -> None:
        """Remove all states."""
        self._remove_all_but(())
        remove_leftovers(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}"

    def _numbers(self) -> list[int]:
        """The numbers of all states there are, damaged or not, in order."""
        return [n for n, file in self._files() if file.suffix == ".json"]

    def _files(self) -> list[tuple[int, Path]]:
        """The files of all states with their numbers, and tensors that belong to none."""
        matches = ((_GENERATION.fullmatch(file.name), file) for file in self.folder.glob("*"))
        return sorted((int(match[1]), file) for match, file in matches if match)

    def _remove_all_but(self, numbers: Collection[int]) -> None:
        files = [file for n, file in self._files() if n not in numbers]
        # No JSON outlives its tensors, and the newest is the last to go: sorting keeps the order.
        for file in sorted(files, key=lambda file: file.suffix):
            file.unlink()


def _held(path: Path) -> dict[str, Any]:
    """What the JSON of a state holds, verified."""
    file = _json_file(path)
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no checkpoint {file}.") from None
    return _unsealed(file, content)


def _json_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _tensors_file(path: Path, digest: str) -> Path:
    # With the digest in its name, new tensors never take the place of those still needed.
    return path.with_name(f"{path.name}-{digest[:_DIGITS]}.safetensors")


def _packed(tensor: Tensor) -> Tensor:
    # Always a copy: safetensors takes neither gaps nor tensors that share their memory.
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _sealed(content: dict[str, Any]) -> bytes:
    return to_json({**content, "sha256": sha256(to_json(content)).hexdigest()})


def _unsealed(file: Path, content: bytes) -> dict[str, Any]:
    try:
        held = json.loads(content)
    except ValueError as error:
        raise _damaged(file) from error
    if not isinstance(held, dict):
        raise _damaged(file)
    if held.get("format", _FORMAT) != _FORMAT:
        raise DamagedCheckpoint(
            f"{file} has the format {held['format']!r}, but this version reads {_FORMAT}."
        )
    held.pop("sha256", None)
    # Rendered anew rather than only summed, so that not even a changed blank goes unseen.
    if content != _sealed(held):
        raise _damaged(file)
    return held


def _damaged(file: Path) -> DamagedCheckpoint:
    return DamagedCheckpoint(f"{file} is damaged: it isn't what was saved.")
