"""The names of runs: their protocol, and what distinguishes their methods within it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from densekd.config.settings_tree import INERT_KEYS

FlatSettings = Mapping[str, Any]  # by dotted names

# Settings that usually follow from others, and say little by themselves.
_DERIVED = (
    "method.options.lambda_base",
    "augment.",
    "training.base.",
    "training.increment.",
    "training.finish.",
)
# Settings that belong to the protocol or the replicate rather than to the method.
_SHARED = ("seed", "epochs", "data.", "scenario.", "memory.per_class", "memory.total")


@dataclass(frozen=True)
class Protocol:
    """What runs must share to be compared, in words."""

    data: str
    tasks: str
    memory: str
    schedule: str  # how the epochs were shortened; empty if they weren't

    @classmethod
    def of(cls, settings: FlatSettings) -> "Protocol":
        """The protocol of a run."""
        parts = _data(settings), _tasks(settings), _memory(settings), shortened_schedule(settings)
        return cls(*parts)

    @property
    def label(self) -> str:
        """All parts in a line."""
        parts = (self.data, self.tasks, self.memory, self.schedule)
        return " · ".join(part for part in parts if part)


def _data(settings: FlatSettings) -> str:
    parts = [str(settings.get("data.source", "?"))]
    if size := settings.get("data.image_size"):
        parts.append(f"{size} pixels")
    if file := settings.get("data.classes_file"):
        parts.append(f"classes of {file}")
    if most := settings.get("data.per_class"):
        parts.append(f"{most} images a class")
    if settings.get("data.oversample_rare") or settings.get("data.even"):
        parts.append("rare classes more often")
    return ", ".join(parts)


def _tasks(settings: FlatSettings) -> str:
    steps, base = settings.get("scenario.steps"), settings.get("scenario.base")
    if settings.get("scenario.equal"):
        return f"T = {steps}, equal tasks"
    tasks = f"T = {steps}" if steps is not None else f"{settings.get('scenario.increment')} a task"
    return tasks if base is None else f"{tasks} after {base} classes"


def _memory(settings: FlatSettings) -> str:
    total, each = settings.get("memory.total"), settings.get("memory.per_class")
    word = f"exemplar{'s' * ((each if total is None else total) != 1)}"
    return f"{each} {word} a class" if total is None else f"{total} {word}"


def shortened_schedule(settings: FlatSettings) -> str:
    """How the epochs of a run were shortened; empty if they weren't."""
    epochs = settings.get("epochs")
    if epochs is None or (epochs == 1 and isinstance(epochs, float)):
        return ""
    if isinstance(epochs, float):
        return f"{100 * epochs:.3g} % of the epochs"
    return f"shortened to {epochs} epoch{'s' * (epochs != 1)}"


def file_name_part(text: str) -> str:
    """A text as part of a file name."""
    return re.sub(r"[^a-z0-9+]+", "-", text.lower().replace("%", "percent")).strip("-")[:80]


def natural_order(text: str) -> list[tuple[int, str]]:
    """A sort key by which 5 comes before 20."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", text)]


def method_labels(several: Sequence[FlatSettings]) -> list[str]:
    """The method of each run, and what distinguishes it from others of that name and protocol."""
    rivals = [(each.get("method.name", "?"), Protocol.of(each)) for each in several]
    alike: dict[tuple[str, Protocol], list[FlatSettings]] = {}
    for rival, settings in zip(rivals, several, strict=True):
        alike.setdefault(rival, []).append(settings)
    every = dict.fromkeys(key for settings in several for key in settings)
    keys = [key for key in every if not key.startswith((*_SHARED, *INERT_KEYS))]
    different = {rival: _distinguishing(group, keys) for rival, group in alike.items()}
    return [
        _described(rival[0], settings, different[rival])
        for rival, settings in zip(rivals, several, strict=True)
    ]


def run_labels(several: Sequence[FlatSettings]) -> list[str]:
    """The method of each run, and which of all its settings distinguish it from the others."""
    # Only settings that all runs have: others belong to one method and distinguish nothing.
    shared = [key for key in several[0] if all(key in settings for settings in several)]
    keys = [key for key in shared if key != "method.name" and not key.startswith(INERT_KEYS)]
    different = _distinguishing(several, keys)
    return [_described(settings["method.name"], settings, different) for settings in several]


def _distinguishing(several: Sequence[FlatSettings], keys: Sequence[str]) -> list[str]:
    """The keys whose values differ, without derived ones that the others imply."""

    def kinds(chosen: Sequence[str]) -> int:
        return len({tuple(repr(each.get(key)) for key in chosen) for each in several})

    different = [key for key in keys if kinds([key]) > 1]
    whole = kinds(different)
    for key in [key for key in different if key.startswith(_DERIVED)]:
        rest = [other for other in different if other != key]
        if kinds(rest) == whole:
            different = rest
    return different


def _described(name: str, settings: FlatSettings, keys: Sequence[str]) -> str:
    return ", ".join([name, *(f"{key.rpartition('.')[2]} {settings.get(key)}" for key in keys)])
