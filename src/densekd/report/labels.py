"""What runs are called: the protocol that makes them comparable, and the method that differs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Leaves = Mapping[str, Any]

# What follows from other settings unless someone set it, and says little by itself.
_DERIVED = (
    "method.options.lambda_base",
    "augment.",
    "training.base.",
    "training.increment.",
    "training.finish.",
)
# What is no part of a method: what is learned, what is drawn, what can't change a result.
_SHARED = ("seed", "epochs", "data.", "scenario.", "memory.per_class", "memory.total")
_IRRELEVANT = ("data.dir", "engine.workers")


@dataclass(frozen=True)
class Protocol:
    """What runs must have in common to be compared, in words.

    Args:
        data: which images.
        tasks: which classes when, but for their order.
        memory: how many exemplars.
        schedule: how the epochs were shortened; empty if they weren't.
    """

    data: str
    tasks: str
    memory: str
    schedule: str

    @classmethod
    def of(cls, settings: Leaves) -> "Protocol":
        """The protocol of a run."""
        return cls(_data(settings), _tasks(settings), _memory(settings), schedule(settings))

    @property
    def label(self) -> str:
        """All of it in a line."""
        parts = (self.data, self.tasks, self.memory, self.schedule)
        return " · ".join(part for part in parts if part)


def _data(settings: Leaves) -> str:
    parts = [str(settings.get("data.source", "?"))]
    if size := settings.get("data.image_size"):
        parts.append(f"{size} pixels")
    if file := settings.get("data.classes_file"):
        parts.append(f"classes of {file}")
    if most := settings.get("data.per_class"):
        parts.append(f"{most} images a class")
    if settings.get("data.even"):
        parts.append("rare classes more often")
    return ", ".join(parts)


def _tasks(settings: Leaves) -> str:
    steps, base = settings.get("scenario.steps"), settings.get("scenario.base")
    if settings.get("scenario.equal"):
        return f"T = {steps}, equal tasks"
    what = f"T = {steps}" if steps is not None else f"{settings.get('scenario.increment')} a task"
    return what if base is None else f"{what} after {base} classes"


def _memory(settings: Leaves) -> str:
    total = settings.get("memory.total")
    each = settings.get("memory.per_class")
    word = f"exemplar{'s' * ((each if total is None else total) != 1)}"
    return f"{each} {word} a class" if total is None else f"{total} {word}"


def schedule(settings: Leaves) -> str:
    """How a run's epochs were shortened, in words; empty if they weren't."""
    epochs = settings.get("epochs")
    if epochs is None or (epochs == 1 and isinstance(epochs, float)):
        return ""
    if isinstance(epochs, float):
        return f"{100 * epochs:.3g} % of the epochs"
    return f"shortened to {epochs} epoch{'s' * (epochs != 1)}"


def slug(text: str) -> str:
    """A text as part of the name of a file."""
    return re.sub(r"[^a-z0-9+]+", "-", text.lower().replace("%", "percent")).strip("-")[:80]


def natural(text: str) -> list[tuple[int, str]]:
    """What to sort by so that 5 comes before 20."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", text)]


def telling(several: Sequence[Leaves], keys: Sequence[str]) -> list[str]:
    """Those of ``keys`` in which settings differ, but for what follows from the others of them."""

    def kinds(chosen: Sequence[str]) -> int:
        return len({tuple(repr(each.get(key)) for key in chosen) for each in several})

    different = [key for key in keys if kinds([key]) > 1]
    whole = kinds(different)
    for key in [key for key in different if key.startswith(_DERIVED)]:
        rest = [other for other in different if other != key]
        if kinds(rest) == whole:
            different = rest
    return different


def described(name: str, settings: Leaves, keys: Sequence[str]) -> str:
    """A method's name with some of its settings."""
    return ", ".join([name, *(f"{key.rpartition('.')[2]} {settings.get(key)}" for key in keys)])


def method_labels(several: Sequence[Leaves]) -> list[str]:
    """Each run's method, and what distinguishes it from others of that name and protocol."""
    rivals = [(each.get("method.name", "?"), Protocol.of(each)) for each in several]
    alike: dict[tuple[str, Protocol], list[Leaves]] = {}
    for rival, settings in zip(rivals, several, strict=True):
        alike.setdefault(rival, []).append(settings)
    keys = [key for key in _all_keys(several) if not key.startswith((*_SHARED, *_IRRELEVANT))]
    different = {rival: telling(group, keys) for rival, group in alike.items()}
    return [
        described(rival[0], settings, different[rival])
        for rival, settings in zip(rivals, several, strict=True)
    ]


def run_labels(several: Sequence[Leaves]) -> list[str]:
    """Each run's method, and what of all its settings distinguishes it from the others."""
    # Other methods have settings of their own, which say nothing.
    own = {key for key in _all_keys(several) if all(key in settings for settings in several)}
    keys = [key for key in several[0] if key in own and not key.startswith(_IRRELEVANT)]
    different = telling(several, [key for key in keys if key != "method.name"])
    return [described(settings["method.name"], settings, different) for settings in several]


def _all_keys(several: Sequence[Leaves]) -> list[str]:
    return list(dict.fromkeys(key for settings in several for key in settings))
