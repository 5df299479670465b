"""Labels of runs: their protocol, and what distinguishes their methods within it."""

import itertools
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import PurePath
from typing import Any

from densekd.config.settings_tree import INERT_KEYS
from densekd.reports.statistics import group_by

FlatSettings = Mapping[str, Any]  # by dotted names

# Settings that usually follow from others, and say little alone.
_DERIVED = (
    "method.options.lambda_base",
    "augment.",
    "training.base.",
    "training.increment.",
    "training.finish.",
    "start.settings",
)
# Prefix of a setting's key that holds the checksum of a custom file, such as code.
FILE_KEY = "file "
# Settings that belong to the protocol or the replicate rather than to the method.
_SHARED = (
    *("seed", "epochs", "data.", "scenario.", "memory.per_class", "memory.total"),
    "order",  # of a compression
)
_REPLICATE = ("seed", "scenario.order")


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
        first = settings.get("scenario.first")
        tasks = _division(settings) + (f", first {many(first, 'task')}" if first else "")
        return cls(data_words(settings), tasks, _memory(settings), shortened_schedule(settings))

    @property
    def label(self) -> str:
        """All parts in one line."""
        return " · ".join(filter(None, astuple(self)))


def data_words(settings: FlatSettings) -> str:
    """The data of a run in words, with the settings that select or change images."""
    words = {
        "data.image_size": "{} pixels",
        "data.classes_file": "classes of {}",
        "data.image_column": "images in {}",
        "data.label_column": "labels in {}",
        "data.per_class": "{} images a class",
        "data.test_per_class": "{} test images a class",
    }
    source = str(settings.get("data.source", "?"))
    if source.startswith("folder:") and not settings.get("data.image_size"):
        # Imported here because it imports PyTorch, which `compare` doesn't need.
        from densekd.data.folder_images import FOLDER_IMAGE_SIZE

        settings = {**settings, "data.image_size": FOLDER_IMAGE_SIZE}
    known = [text.format(value) for key, text in words.items() if (value := settings.get(key))]
    if settings.get("data.oversample_rare") or settings.get("data.even"):
        known.append("rare classes more often")
    if held := settings.get("data.validation"):
        known.append(f"{100 * held:.3g} % held out")
    return ", ".join([source, *known])


def _division(settings: FlatSettings) -> str:
    steps, base = settings.get("scenario.steps"), settings.get("scenario.base")
    if given := settings.get("scenario.tasks"):
        if isinstance(given, str):
            return f"tasks of {given}"
        sizes = (str(task if isinstance(task, int) else len(task)) for task in given)
        return f"tasks of {', '.join(sizes)} classes"
    if settings.get("scenario.equal"):
        return f"T = {steps}, equal tasks"
    tasks = f"T = {steps}" if steps is not None else f"{settings.get('scenario.increment')} a task"
    return tasks if base is None else f"{tasks} after {base} classes"


def _memory(settings: FlatSettings) -> str:
    if (total := settings.get("memory.total")) is not None:
        return many(total, "exemplar")
    return f"{many(settings.get('memory.per_class'), 'exemplar')} a class"


def shortened_schedule(settings: FlatSettings) -> str:
    """How the epochs of a run were shortened; empty if they weren't."""
    epochs = settings.get("epochs")
    if epochs is None or (epochs == 1 and isinstance(epochs, float)):
        return ""
    if isinstance(epochs, float):
        return f"{100 * epochs:.3g} % of the epochs"
    return f"shortened to {many(epochs, 'epoch')}"


def many(count: int | None, noun: str) -> str:
    """A count with its noun: ``1 run``, ``2 runs``, or ``None runs`` for an unknown number."""
    return f"{count} {noun}{'s' * (count != 1)}"


def file_name_part(text: str) -> str:
    """Turn a text into a part of a file name."""
    return re.sub(r"[^a-z0-9+]+", "-", text.lower().replace("%", "percent")).strip("-")[:80]


def table_file_name(text: str) -> str:
    """Turn a text, which can have paths and long lists in it, into a file name without suffix."""
    # File systems take 255 bytes, and the suffix and a number need some of them.
    return re.sub(r"[^\w.+-]+", "-", text).encode()[:200].decode(errors="ignore")


def unused_name(name: str, used: set[str]) -> str:
    """The name, with a number if it is used already; adds it to the ``used`` ones."""
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    found = next(each for each in itertools.chain([name], numbered) if each not in used)
    used.add(found)
    return found


def natural_order(text: str) -> list[tuple[int, str]]:
    """A sort key by which 5 comes before 20."""
    parts = re.split(r"0*(\d+)", text)  # numbers, of any length, are at odd places
    return [(len(part) if i % 2 else 0, part) for i, part in enumerate(parts)]


def method_labels(runs: Sequence[tuple[str, Hashable, FlatSettings]]) -> list[str]:
    """Label each run by its method, and by what distinguishes it within its method and protocol.

    A run is given as the name of its method, its protocol, and its settings.
    """
    keys = _keys([settings for _, _, settings in runs], (*_SHARED, *INERT_KEYS))
    rivals = group_by(runs, lambda run: run[:2])
    different = {
        rival: _distinguishing([settings for _, _, settings in group], keys)
        for rival, group in rivals.items()
    }
    return [_described(name, each, different[name, protocol]) for name, protocol, each in runs]


def run_labels(several: Sequence[FlatSettings]) -> list[str]:
    """Label each run by its method and by the settings that distinguish it from the others."""
    every = _keys(several, ("method.name", *INERT_KEYS))
    # Try settings that all runs have first, because most others belong to one method.
    shared = [key for key in every if all(key in settings for settings in several)]
    different = _distinguishing(several, shared)
    labels = [_described(each.get("method.name", "?"), each, different) for each in several]
    for alike in group_by(range(len(several)), labels.__getitem__).values():
        different = _distinguishing([several[place] for place in alike], every)
        for place in alike:
            labels[place] = _described(labels[place], several[place], different)
    return labels


def _keys(several: Sequence[FlatSettings], left_out: tuple[str, ...]) -> list[str]:
    every = dict.fromkeys(key for settings in several for key in settings)
    return [key for key in every if not key.startswith(left_out)]


def _distinguishing(several: Sequence[FlatSettings], keys: Sequence[str]) -> list[str]:
    """The keys whose values differ, without derived ones that the others imply."""

    def kinds(chosen: Sequence[str]) -> int:
        return len({tuple(repr(each.get(key)) for key in chosen) for each in several})

    different = [key for key in keys if kinds([key]) > 1 and not _unknown(several, key)]
    for key in [key for key in different if key.startswith(_DERIVED)]:
        rest = [other for other in different if other != key]
        # The digest of a parent's settings covers seed and order, which its branch shares.
        more = _REPLICATE if key == "start.settings" else ()
        if kinds([*rest, *more]) == kinds([*different, *more]):
            different = rest
    return different


def _unknown(several: Sequence[FlatSettings], key: str) -> bool:
    """Whether a key is a file's checksum on which all runs that have it agree."""
    known = {each[key] for each in several if key in each}
    return key.startswith(FILE_KEY) and len(known) == 1


def _described(name: str, settings: FlatSettings, keys: Sequence[str]) -> str:
    words = (f"{_short(key)} {settings[key]}" for key in keys if key in settings)
    return ", ".join([name, *words])


def _short(key: str) -> str:
    file = key.removeprefix(FILE_KEY)
    return key.rpartition(".")[2] if file == key else PurePath(file).name


def state_words(states: Counter[str], total: str) -> list[str]:
    """The number of runs in each state, in words: ``3 of 4 runs finished``, ``1 failed``."""
    others = [s for s in ("pruned", "failed", "running", "waiting") if states[s]]
    return [f"{states['finished']} of {total} finished", *(f"{states[s]} {s}" for s in others)]


def impossible_lines(points: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each reason why points can't be run; each is given by its label and reason."""
    return [
        f"Impossible: {', '.join(name for name, _ in alike)}: {reason}"
        for reason, alike in group_by([*points], lambda each: each[1]).items()
    ]
