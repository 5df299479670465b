"""A model in a folder: open it, teach it, see its history, undo. All that other packages need."""

from pathlib import Path

from densekd.model.images import Known
from densekd.model.model import Guess, Model, PhotoInput
from densekd.model.records import Accuracy, ClassChange, HistoryEntry, Plan, Update
from densekd.model.settings import TeachOptions
from densekd.model.store import Pointer, Store
from densekd.model.teach import TeachObserver, preview, teach

__all__ = [
    "Accuracy",
    "ClassChange",
    "Guess",
    "HistoryEntry",
    "Known",
    "Model",
    "PhotoInput",
    "Plan",
    "TeachObserver",
    "TeachOptions",
    "Update",
    "history",
    "preview",
    "teach",
    "undo",
]


def history(folder: Path) -> list[HistoryEntry]:
    """All states of a model, in the order in which they were made."""
    store = Store(folder)
    pointer = store.existing()
    return [store.entry(step, step == pointer.step) for step in range(pointer.steps)]


def undo(folder: Path, to: int | None = None) -> HistoryEntry:
    """Go back to the state before, or to any other; nothing is deleted.

    Args:
        folder: of the model.
        to: the number of the state, which may also be one that was undone.

    Returns:
        The state that the model is in now.
    """
    store = Store(folder)
    store.existing()
    with store.changing():
        pointer = store.existing()
        if to is None:
            to = store.facts(pointer.step)["parent"]
        if to is None:
            raise ValueError(
                f"{folder} was taught only once, so there is nothing to go back to; "
                "delete the folder to begin anew."
            )
        Model.open(folder, to)  # which raises if it is damaged, or isn't there
        store.point(Pointer(to, pointer.steps))
        return store.entry(to, current=True)
