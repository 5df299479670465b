"""Pick the best trial of a search: by validation images, never by test images."""

import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Picks compare means over these settings, and hold for all their values.
REPLICATES = ("seed", "scenario.order", "order")
# Points have this key if their trials learn only the first tasks.
FIRST_TASKS = "scenario.first"


@dataclass(frozen=True)
class Trial:
    """A run with some values of the hyper-parameters."""

    point: Mapping[str, Any]  # its values on all axes, by dotted key
    validation: float | None  # average incremental accuracy; None if unfinished


@dataclass(frozen=True)
class Pick:
    """The values of the hyper-parameters that were best in one cell of the table."""

    cell: Mapping[str, Any]  # the values on the other axes, except seed and class order
    values: Mapping[str, Any]
    validation: float | None  # the mean over seeds and class orders; None if a file lacks it
    trials: int  # the number of candidate values, unfinished ones included

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "Pick":
        """Make the pick of an entry in a sweep's record."""
        return cls(entry["cell"], entry["values"], entry.get("validation"), entry.get("trials", 0))

    def is_of(self, point: Mapping[str, Any], keys: Collection[str]) -> bool:
        """Whether a point is in this cell, has the picked values and learns all tasks."""
        picked = all(point.get(key) == value for key, value in self.values.items())
        return picked and cell_of(point, keys) == self.cell and FIRST_TASKS not in point


def pick_best(trials: Iterable[Trial], keys: Collection[str]) -> list[Pick]:
    """The best values of the hyper-parameters ``keys``, for each cell that has a finished trial.

    Values count only if their runs finished for all seeds and class orders. Of equally good values,
    the first are picked.
    """
    cells: dict[str, dict[str, list[Trial]]] = {}
    for trial in trials:
        candidates = cells.setdefault(repr(cell_of(trial.point, keys)), {})
        tried = [trial.point.get(key) for key in keys]
        candidates.setdefault(repr(tried), []).append(trial)
    picks = []
    for candidates in cells.values():
        scores = {name: _score(runs) for name, runs in candidates.items()}
        known = {name: score for name, score in scores.items() if score is not None}
        if not known:
            continue
        best = max(known, key=known.__getitem__)
        point = candidates[best][0].point
        values = {key: point[key] for key in keys if key in point}
        picks.append(Pick(cell_of(point, keys), values, known[best], len(candidates)))
    return picks


def cell_of(point: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """A point without hyper-parameters, seed, class order and number of first tasks."""
    apart = {*keys, *REPLICATES, FIRST_TASKS}
    return {key: value for key, value in point.items() if key not in apart}


def _score(runs: Collection[Trial]) -> float | None:
    known = [run.validation for run in runs if run.validation is not None]
    return statistics.fmean(known) if len(known) == len(runs) else None
