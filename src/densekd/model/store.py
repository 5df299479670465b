"""The files of a model, and the records in them.

::

    MODEL/current.json         the current step and the number of steps that count
    MODEL/steps/000, 001, ...  one state per update, changed only to erase photos
    MODEL/pending/KEY/         the checkpoints of an unfinished update
    MODEL/set-aside/TIME/      files that were damaged or in the way; never read
    MODEL/erasing.json         what is being erased from all states
    MODEL/lock                 held by the process that changes the model; readers don't need it
"""

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from densekd.config.settings_tree import digest
from densekd.files import ASIDE, DamagedFile, remove_leftovers, set_aside, sync_folder
from densekd.model.pointer import (
    Pointer,
    read_pointer,
    rebuild_pointer,
    step_ancestors,
    step_numbers,
    step_path,
    why_damaged,
    write_pointer,
)
from densekd.training.checkpoint import load_facts

# The kind of a model on a frozen backbone, in its state; other models are trained by a method.
FROZEN = "frozen features"
# The folder in ``pending`` of an edit; it takes seconds, so an interrupted one starts over.
EDIT = "edit"
# Folders in ``pending`` that interrupted corrections of earlier versions may have left.
_LEFTOVERS = ("corrected", "replaced")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Accuracy:
    """Accuracy on the test images, from 0 to 1; None where there are no test images."""

    new: float | None  # on the classes that the update added
    old: float | None  # on the classes known before
    all: float | None


@dataclass(frozen=True)
class ClassChange:
    """The accuracy of a class before and after an update."""

    name: str
    tested: int  # test images
    before: float | None  # None if the class is new or has no test images
    after: float | None  # None if it has no test images


@dataclass(frozen=True)
class Edit:
    """A change to classes or photos that were taught before."""

    action: Literal["forgot", "erased", "renamed", "merged", "corrected", "fine-tuned on"]
    classes: tuple[str, ...]  # the classes that were forgotten, renamed or merged
    photos: int  # of these classes, or that were forgotten, erased, corrected or trained on
    into: str | None = None  # the new name, or the class that they were merged into

    def __str__(self) -> str:
        """Say what was done, such as ``renamed hat to cap``."""
        what = ", ".join(self.classes) or f"{self.photos:,} photo{'s' if self.photos != 1 else ''}"
        joint = {"renamed": " to ", "merged": " into "}.get(self.action, "")
        return f"{self.action} {what}{joint}{self.into or ''}"


@dataclass(frozen=True)
class Update:
    """The result of an update."""

    step: int  # the step that it made, counted from 0
    learned: tuple[str, ...]  # new classes
    replayed: tuple[str, ...]  # known classes that got more images
    images: int  # number of training images, without exemplars
    epochs: int  # of the first phase
    before: Accuracy | None  # of the previous model on the same images; None for the first step
    after: Accuracy
    classes: tuple[ClassChange, ...]  # all, in learning order
    seconds: float  # of training
    edit: Edit | None = None  # the change, if the update taught nothing

    @property
    def finetuned(self) -> bool:
        """Whether it trained the backbone on kept images, instead of teaching anything."""
        return self.edit is not None and self.edit.action == "fine-tuned on"


@dataclass(frozen=True)
class HistoryEntry:
    """A step in a model's history."""

    step: int
    parent: int | None  # the step that it was made from; None for the first
    when: str  # the time when it was finished, in ISO 8601
    current: bool  # whether it is the model's current step
    update: Update


@dataclass(frozen=True)
class Store:
    """The files of a model."""

    folder: Path

    def pointer(self) -> Pointer | None:
        """The current step, or None if there is no model yet.

        If ``current.json`` is lost, this is the newest intact step; the next process that changes
        the model writes the file again.
        """
        found = read_pointer(self.folder)
        return rebuild_pointer(self.folder) if found is None else found

    def require_pointer(self) -> Pointer:
        """The current step; raises ValueError if there is no model."""
        pointer = self.pointer()
        if pointer is None:
            raise ValueError(
                f"There is no model in {self.folder}; check its name. `densekd learn {self.folder} "
                "FOLDER` makes one from a folder with a sub-folder of images for each class."
            )
        return pointer

    def path(self, step: int) -> Path:
        """The folder of a step."""
        return step_path(self.folder, step)

    def steps(self, pointer: Pointer) -> list[int]:
        """The numbers of the committed steps, without those whose state was set aside."""
        return [
            step
            for step in step_numbers(self.folder)
            if step < pointer.steps and (self.path(step) / "state.json").exists()
        ]

    def facts(self, step: int) -> dict[str, Any]:
        """The record of a step, without its tensors; raises what `damaged_error` makes."""
        try:
            return load_facts(self.path(step) / "state")
        except (DamagedFile, FileNotFoundError) as error:
            raise self.damaged_error(error) from error

    def entry(self, step: int, pointer: Pointer) -> HistoryEntry:
        """The history entry of a step."""
        facts, current = self.facts(step), step == pointer.step
        parent, when, update = facts.get("parent"), str(facts.get("when")), facts.get("update")
        try:
            if parent is not None and type(parent) is not int:
                raise ValueError(f"{parent!r} can't be the number of a step.")
            return HistoryEntry(step, parent, when, current, update_from_json(update))
        except ValueError as error:
            raise self.damaged_error(
                f"{self.path(step)} doesn't say what its update did."
            ) from error

    def damaged_error(self, problem: object) -> DamagedFile:
        """Make the error that says what is damaged, and the way out."""
        return DamagedFile(
            f"{problem} `densekd check {self.folder}` says which steps are intact, and "
            f"`densekd undo {self.folder} --to N` goes to one of them."
        )

    def verify(self, step: int) -> None:
        """Raise ValueError unless all files that a step needs are intact, also in other steps."""
        reason = why_damaged(self.folder, step)
        if reason is not None:
            raise self.damaged_error(reason)

    def before_finetuning(self, step: int) -> int:
        """The nearest step, back from this one, that isn't fine-tuned; this one if that is lost."""
        with suppress(DamagedFile, FileNotFoundError):
            for each in step_ancestors(self.folder, step):
                if not update_from_json(self.facts(each)["update"]).finetuned:
                    return each
        return step

    def commit(self, prepared: Path, step: int) -> None:
        """Make the state in ``prepared`` a step, and make this step the current one."""
        place = self.path(step)
        if place.exists():  # left by an update that was killed before it wrote the pointer
            self._clear(place, prepared)
        place.parent.mkdir(exist_ok=True)
        os.replace(prepared, place)
        sync_folder(place.parent)
        write_pointer(self.folder, Pointer(step, step + 1))
        shutil.rmtree(self.pending, ignore_errors=True)

    @property
    def pending(self) -> Path:
        """The folder for unfinished updates and edits."""
        return self.folder / "pending"

    def pending_update(self, asked: str, parent: int | None) -> Path:
        """The folder of an unfinished update with the digest ``asked``, made from ``parent``."""
        return self.pending / digest([asked, parent])

    @property
    def aside(self) -> Path:
        """The folder for files that were set aside."""
        return self.folder / ASIDE

    def _clear(self, place: Path, prepared: Path) -> None:
        """Make room for a step: replace what the same update left, set anything else aside."""
        if _same_update(place, prepared):
            replaced = prepared.with_name("replaced")
            shutil.rmtree(replaced, ignore_errors=True)
            os.replace(place, replaced)
        else:
            aside = set_aside(self.folder, place)
            logger.warning("%s was not a step of the model; it is now in %s.", place, aside)

    def _finish_commit(self, pointer: Pointer) -> None:
        """Remove what was left by an edit, or by an update that was killed after its commit."""
        if not self.pending.exists():
            return
        done = [self.pending / name for name in (EDIT, *_LEFTOVERS)]
        with suppress(DamagedFile, FileNotFoundError):
            facts = self.facts(pointer.step)
            done.append(self.pending_update(facts["asked"], facts["parent"]))
        for place in done:
            shutil.rmtree(place, ignore_errors=True)
        with suppress(OSError):  # not empty: another update can still be continued
            self.pending.rmdir()

    @property
    def erasing(self) -> Path:
        """The file that says what is being erased; it exists until the erasure is done."""
        return self.folder / "erasing.json"

    @contextmanager
    def locked(self, *, to_erase: bool = False) -> Iterator[None]:
        """Hold the model's lock, and first tidy up; raises what `held` raises.

        Also raises ValueError if an erasure was interrupted, unless this is ``to_erase``.
        """
        with self.held():
            remove_leftovers(self.folder)
            pointer = self.pointer()
            if pointer is not None:
                if read_pointer(self.folder) is None:
                    write_pointer(self.folder, pointer)
                self._finish_commit(pointer)
            if self.erasing.exists() and not to_erase:
                raise ValueError(
                    f"Erasing photos from {self.folder} was interrupted; "
                    f"`densekd forget {self.folder} --everywhere` finishes it."
                )
            yield

    def tidy(self) -> None:
        """Remove what a killed command left, unless the model is in use or read-only."""
        with suppress(ValueError, OSError), self.locked():
            pass

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the model's lock; raises ValueError if another process does, or the disk is full."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(
                f"Another process is changing {self.folder}; wait for it, or stop it first."
            ) from None
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ValueError(
                f"There is no space left on the disk of {self.folder}; the model in it is intact. "
                "Free some space and repeat the command to continue."
            ) from error
        finally:
            lock.release()


def _same_update(place: Path, other: Path) -> bool:
    """Whether two states were made by the same update, so that only their times differ."""
    try:
        facts = [load_facts(each / "state") for each in (place, other)]
    except (DamagedFile, FileNotFoundError):
        return False
    same = [{**each, "when": "", "update": {**each["update"], "seconds": 0}} for each in facts]
    return same[0] == same[1]


def unequal_error(prepared: Path) -> RuntimeError:
    """Make the error for a state that isn't read back as it was saved."""
    return RuntimeError(
        f"The state saved in {prepared} differs from what was learned, so the model was not "
        "changed."
    )


def update_from_json(facts: object) -> Update:
    """Rebuild an update from its JSON; raises ValueError if the JSON doesn't fit."""
    # Imported only here: it takes a tenth of a second, and predictions don't need it.
    from pydantic import TypeAdapter

    return TypeAdapter(Update).validate_python(facts)
