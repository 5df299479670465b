"""The file ``current.json``, which names a model's current step; rebuilt if it is lost."""

import functools
import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from densekd.files import (
    DamagedFile,
    is_inside,
    read_regular_file,
    read_sealed_json,
    write_sealed_json,
)
from densekd.training.checkpoint import load_facts, load_state

_FORMAT = 1
POINTER_FILE = "current.json"
_MOST_BYTES = 1000

logger = logging.getLogger(__name__)


class Pointer(NamedTuple):
    """The content of ``current.json``: the current step and the number of steps."""

    step: int
    steps: int


def write_pointer(folder: Path, pointer: Pointer) -> None:
    """Change the current step of a model, atomically."""
    write_sealed_json(folder / POINTER_FILE, {"format": _FORMAT, **pointer._asdict()})


def read_pointer(folder: Path) -> Pointer | None:
    """The content of ``current.json``; None if it is lost, empty or no longer JSON.

    Raises ValueError if it is JSON but not what was written: someone may have edited it on purpose.
    """
    file = folder / POINTER_FILE
    try:
        content = read_sealed_json(file, unsealed=True)
        step, steps = content["step"], content["steps"]
        known = content.keys() == {"format", *Pointer._fields} and content["format"] == _FORMAT
        if known and type(step) is type(steps) is int and 0 <= step < steps:
            return Pointer(step, steps)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (DamagedFile, KeyError):
        if not _is_json(file):
            return None
    raise ValueError(
        f"{file} isn't what was saved; `densekd check {folder}` says which steps are intact, and "
        "`--repair` makes the newest of them the current one."
    )


def _is_json(file: Path) -> bool:
    try:
        json.loads(read_regular_file(file, _MOST_BYTES))
    except (ValueError, RecursionError):
        return False
    return True


def rebuild_pointer(folder: Path) -> Pointer | None:
    """A pointer to the newest intact step, with a warning; None if there is no model.

    Raises ValueError if there are steps but none is intact, or if there is only a damaged
    ``current.json``.
    """
    numbers, file = step_numbers(folder), folder / POINTER_FILE
    problem = "is damaged" if file.exists() else "is missing"
    for step in reversed(numbers):
        if why_damaged(folder, step) is None:
            warn_once(
                f"{file} {problem}, so the newest intact step, {step}, is used as the current one; "
                f"`densekd undo {folder} --to N` goes to another."
            )
            return Pointer(step, numbers[-1] + 1)
    if not numbers and not file.exists():
        return None
    raise ValueError(
        f"{file} {problem}, and no step in {folder / 'steps'} is intact; `densekd check "
        f"{folder}` says what is damaged; bring back a copy, or give another folder."
    )


def revision(folder: Path) -> tuple[tuple[int, int], ...] | None:
    """A value that changes when another step becomes current, or when its state is rewritten.

    None if there is no model. Unlike `rebuild_pointer`, this reads no state.
    """
    pointer, found = None, list[os.stat_result]()
    with suppress(ValueError, OSError):  # opening the model says what is wrong
        pointer = read_pointer(folder)
    steps = step_numbers(folder) if pointer is None else [pointer.step]
    states = [folder / "steps" / f"{step:03d}" / "state.json" for step in steps]
    for file in (folder / POINTER_FILE, *states):
        with suppress(OSError):
            found.append(file.stat())
    return tuple((each.st_ino, each.st_mtime_ns) for each in found) or None


def step_numbers(folder: Path) -> list[int]:
    """The numbers of all steps on disk, in order, committed or not."""
    return sorted(
        int(place.name) for place in (folder / "steps").glob("[0-9]*") if place.name.isdecimal()
    )


def step_path(folder: Path, step: int) -> Path:
    """The folder of a step; raises `DamagedFile` if it, or a file in it, links out of the model.

    Such a link in someone else's model could make densekd read any file of this computer.
    """
    place = folder / "steps" / f"{step:03d}"
    inside = os.scandir(place) if place.is_dir() else ()
    links = [Path(entry) for entry in inside if entry.is_symlink()]
    for path in (place.parent, place, *links):
        if path.is_symlink() and not is_inside(path, folder):
            raise DamagedFile(f"{path} is a link out of the model; replace it with a copy.")
    return place


def why_damaged(folder: Path, step: int) -> str | None:
    """Read all files that a step needs, also in other steps; returns the problem, or None."""
    try:
        for path in needed_states(folder, step):
            load_state(path)
    except (DamagedFile, FileNotFoundError) as error:
        return str(error)
    except (KeyError, TypeError, ValueError) as error:
        return f"{folder / 'steps' / f'{step:03d}'} doesn't say what it needs ({error!r})."
    return None


def needed_states(folder: Path, step: int) -> list[Path]:
    """The paths, as `load_state` takes them, of all saved states that a step needs."""
    facts = load_facts(step_path(folder, step) / "state")
    needed = [step_path(folder, step) / "state"]
    if "backbone" in facts:
        needed.append(step_path(folder, facts["backbone"]) / "backbone")
        return needed + [step_path(folder, other) / "photos" for other in facts["photos"]]
    return needed + [step_path(folder, other) / "kept" for other in step_ancestors(folder, step)]


def step_ancestors(folder: Path, step: int) -> Iterator[int]:
    """A step, its parent, and so on to the first step."""
    parent: Any = step
    while parent is not None:
        yield parent
        child, path = parent, step_path(folder, parent) / "state"
        parent = load_facts(path).get("parent")
        # The parent must be an earlier step, or this might never end.
        if parent is not None and not (type(parent) is int and 0 <= parent < child):
            raise DamagedFile(f"{path}.json is damaged: its parent can't be {parent!r}.")


@functools.cache
def warn_once(text: str) -> None:
    """Log a warning once: a command reads the pointer several times, a server all the time."""
    logger.warning("%s", text)
