"""Check all files of a model, and set aside those that can't be read."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from densekd.files import DamagedFile, set_aside
from densekd.model.frozen.erase import read_erasure
from densekd.model.model import read_model
from densekd.model.pointer import (
    POINTER_FILE,
    Pointer,
    read_pointer,
    step_numbers,
    step_path,
    why_damaged,
    write_pointer,
)
from densekd.model.store import Store
from densekd.training.checkpoint import load_facts, load_state

_PARTS = ("state", "backbone", "photos", "kept")


@dataclass(frozen=True)
class ModelCheck:
    """The result of checking the files of a model."""

    problems: tuple[str, ...]  # a sentence each
    current: int | None  # the current step; None if ``current.json`` can't be read
    opens: tuple[int, ...]  # steps that can predict
    intact: tuple[int, ...]  # steps that can predict and be taught more
    unreadable: tuple[Path, ...]  # damaged files

    @property
    def best(self) -> int | None:
        """The newest intact step, or else the newest that opens; the current one if as good."""
        best = self.intact or self.opens
        return self.current if self.current in best else max(best, default=None)


def check_model(folder: Path) -> ModelCheck:
    """Read every file of a model: which steps can predict, which can be taught, what is damaged.

    Raises ValueError if there is no model.
    """
    numbers = step_numbers(folder)
    if not numbers:
        Store(folder).require_pointer()  # raises, unless another process is just making a model
    current, problems, unreadable = _check_notes(folder)
    if current is not None and current not in numbers:
        problems.append(f"The current step, {current}, is missing.")
    steps = [_check_step(folder, step) for step in numbers if not _is_aside(folder, step)]
    return ModelCheck(
        (*problems, *(problem for each in steps for problem in each.problems)),
        current,
        tuple(each.step for each in steps if each.opens),
        tuple(each.step for each in steps if each.intact),
        (*unreadable, *(file for each in steps for file in each.unreadable)),
    )


def repair_model(folder: Path) -> tuple[ModelCheck, Path | None]:
    """Move damaged files to a dated folder in ``set-aside``, and make the best step current.

    Nothing is deleted.

    Returns:
        The check before the repair, and the folder of the moved files; None if none were moved.
    """
    if not step_numbers(folder):
        # Raises if there is no model, before making a lock file there.
        Store(folder).require_pointer()
    with Store(folder).held():
        found = check_model(folder)
        place = set_aside(folder, *found.unreadable) if found.unreadable else None
        if found.best is not None and (found.best != found.current or place is not None):
            pointer = None if found.current is None else read_pointer(folder)
            steps = max(step_numbers(folder)[-1] + 1, 0 if pointer is None else pointer.steps)
            write_pointer(folder, Pointer(found.best, steps))
    return found, place


class _StepCheck(NamedTuple):
    step: int
    opens: bool
    intact: bool
    problems: list[str]
    unreadable: list[Path]


def _check_step(folder: Path, step: int) -> _StepCheck:
    try:
        place = step_path(folder, step)
    except DamagedFile as error:
        return _StepCheck(step, False, False, [str(error)], [folder / "steps" / f"{step:03d}"])
    damaged, lacks = _damaged_parts(place), why_damaged(folder, step)
    problems, empty, closed = [*damaged.values()], False, None
    try:
        # A step without classes is sound: all of its photos were erased.
        empty = load_facts(place / "state").get("classes") == []
        if not empty:
            read_model(folder, step, place)
    except (ValueError, FileNotFoundError) as error:
        closed = str(error)
    opens = closed is None and not empty
    if closed is not None and not damaged:
        damaged["state"] = closed
        problems.append(f"Step {step} can't be opened: {closed}")
    elif lacks is not None and not damaged:
        can = f"Step {step} can predict, but" if opens else f"Step {step} has no class left, and"
        problems.append(f"{can} can't be taught: {lacks}")
    unreadable = [file for part in damaged for file in sorted(place.glob(f"{part}[.-]*"))]
    return _StepCheck(step, opens, opens and lacks is None, problems, unreadable)


def _check_notes(folder: Path) -> tuple[int | None, list[str], list[Path]]:
    """The current step, and the problems and damaged files among those beside the steps."""
    pointer, problems, unreadable = None, list[str](), list[Path]()
    current, erasing = folder / POINTER_FILE, Store(folder).erasing
    try:
        pointer = read_pointer(folder)
        if pointer is None:
            problems.append(f"{current} is missing or unreadable.")
    except ValueError as error:
        problems.append(str(error))
    try:
        if erasing.exists():
            read_erasure(erasing)
    except DamagedFile:
        problems.append(
            f"{erasing} doesn't say what is being erased; once it is set aside, erase the same "
            "classes and photos again."
        )
        unreadable.append(erasing)
    if pointer is None and current.exists():
        unreadable.append(current)
    return None if pointer is None else pointer.step, problems, unreadable


def _is_aside(folder: Path, step: int) -> bool:
    """Whether a repair set a step's state aside; its other files stay for steps that need them."""
    name = Path("steps", f"{step:03d}", "state.json")
    here = (folder / name).exists()
    return not here and any((place / name).exists() for place in Store(folder).aside.glob("*"))


def _damaged_parts(place: Path) -> dict[str, str]:
    """The parts of a step that can't be read, and why; ignores the files of other steps."""
    found = {}
    for part in _PARTS:
        if (place / f"{part}.json").exists():
            try:
                load_state(place / part)
            except DamagedFile as error:
                found[part] = str(error)
    return found
