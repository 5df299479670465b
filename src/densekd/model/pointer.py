"""The file ``current.json``, which says which step of a model is current; rebuilt if it is lost."""

import functools
import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

from densekd.files import write_json
from densekd.training.checkpoint import DamagedCheckpoint, load_facts, load_state

_FORMAT = 1
_NAME = "current.json"

logger = logging.getLogger(__name__)


class Pointer(NamedTuple):
    """The content of ``current.json``: the current step and the number of steps."""

    step: int
    steps: int


def write_pointer(folder: Path, pointer: Pointer) -> None:
    """Change the current step of a model, atomically."""
    write_json(folder / _NAME, {"format": _FORMAT, **pointer._asdict()})


def read_pointer(folder: Path) -> Pointer | None:
    """What ``current.json`` says; None if it is lost, empty or no longer JSON.

    Raises ValueError if it says what can't be, since someone may have meant something by it.
    """
    file = folder / _NAME
    try:
        content = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    try:
        pointer = Pointer(content["step"], content["steps"])
        if content["format"] != _FORMAT or not 0 <= pointer.step < pointer.steps:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{file} is damaged: it says what can't be; delete it, and the newest intact step is "
            "used."
        ) from None
    return pointer


def rebuild_pointer(folder: Path) -> Pointer | None:
    """Point to the newest intact step, with a warning; None if there are no steps.

    Raises ValueError if there are steps and none of them is intact, or if there is nothing but a
    damaged ``current.json``.
    """
    numbers, file = step_numbers(folder), folder / _NAME
    problem = "is damaged" if file.exists() else "is missing"
    for step in reversed(numbers):
        if why_damaged(folder, step) is None:
            _warn(
                f"{file} {problem}, so the newest intact step, {step}, is taken for the current "
                f"one; `densekd undo {folder} --to N` goes to another."
            )
            return Pointer(step, numbers[-1] + 1)
    if not numbers and not file.exists():
        return None
    raise ValueError(
        f"{file} {problem}, and no step in {folder / 'steps'} is intact; bring back a copy of the "
        "folder, or give another one for a new model."
    )


def step_numbers(folder: Path) -> list[int]:
    """The numbers of all steps that are on the disk, in order, whether they count or not."""
    return sorted(
        int(place.name) for place in (folder / "steps").glob("[0-9]*") if place.name.isdigit()
    )


def step_path(folder: Path, step: int) -> Path:
    """The folder of a step."""
    return folder / "steps" / f"{step:03d}"


def why_damaged(folder: Path, step: int) -> str | None:
    """Read all that a step needs, also in other steps; say what is wrong with it, if anything."""
    try:
        for path in needed_states(folder, step):
            load_state(path)
    except (DamagedCheckpoint, FileNotFoundError) as error:
        return str(error)
    return None


def needed_states(folder: Path, step: int) -> list[Path]:
    """The paths of all saved states, as `load_state` takes them, that a step needs."""
    facts = load_facts(step_path(folder, step) / "state")
    needed = [step_path(folder, step) / "state"]
    if "backbone" in facts:
        needed.append(step_path(folder, facts["backbone"]) / "backbone")
        return needed + [step_path(folder, other) / "photos" for other in facts["photos"]]
    parent: Any = step
    while parent is not None:
        needed.append(step_path(folder, parent) / "kept")
        parent = load_facts(step_path(folder, parent) / "state")["parent"]
    return needed


@functools.cache
def _warn(text: str) -> None:
    """Warn once: a command asks for the pointer several times, a server all the time."""
    logger.warning("%s", text)
