"""Tables of a sweep's results, laid out as its experiment file says, beside the paper's numbers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from densekd.config.settings_tree import INERT_KEYS
from densekd.report.groups import Group
from densekd.report.labels import shortened_schedule
from densekd.report.runs import AVERAGE, CompressionRun, FoundRuns, RunRecord, read_json
from densekd.report.statistics import Summary
from densekd.report.tables import Cell, CellKind, Column, Row, Table
from densekd.sweeps.experiment_file import Experiment, Target, flat, read_experiment

GridPoint = Mapping[str, Any]
_Item = TypeVar("_Item")
# Settings that a mean is taken over, unless a table has a row or a column for each value.
_REPLICATE = ("seed", "scenario.order", "order")
_KINDS: dict[str, CellKind] = {"seconds": "seconds", "variance": "variance"}
_TITLES = {AVERAGE: "", "accuracy": "", "seconds": "time", "forgetting": "forgetting"}


@dataclass(frozen=True)
class SweepEntry:
    """A point of a sweep's grid, its state, and its run if there is one."""

    point: GridPoint
    state: str
    reason: str
    run: RunRecord | CompressionRun | None


@dataclass(frozen=True)
class SweepResults:
    """An experiment with all its runs, also those that failed or are waiting."""

    experiment: Experiment
    changes: GridPoint  # settings given besides the file's
    seconds: float  # over all calls, by the clock
    entries: tuple[SweepEntry, ...]

    @property
    def progress(self) -> str:
        """How far it is, in words."""
        states = [entry.state for entry in self.entries]
        parts = [f"{states.count('finished')} of {len(states)} runs finished"]
        parts += [f"{n} {s}" for s in ("failed", "running", "waiting") if (n := states.count(s))]
        return ", ".join(parts)

    @property
    def rehearsal(self) -> str:
        """A sentence on how the runs differ from the planned ones; empty if they don't."""
        runs = [entry.run for entry in self.entries if entry.run is not None]
        how = sorted({shortened_schedule(run.settings) for run in runs} - {""})
        how += [f"{key} {value}" for key, value in self.changes.items()]
        if not how:
            return ""
        return f"Rehearsal: {', '.join(how)}; not comparable with the paper's numbers."


def read_sweep(folder: Path, found: FoundRuns) -> SweepResults:
    """The sweep in a folder, with its runs as far as they were found."""
    experiment = read_experiment(folder / "experiment.toml")
    record = read_json(folder / "runs.json")
    known: dict[str, RunRecord | CompressionRun] = {run.folder.name: run for run in found.runs}
    known |= {each.folder.name: each for each in found.compressions}
    entries = tuple(
        SweepEntry(
            {str(key): value for key, value in each["point"].items()},
            str(each.get("state", "waiting")),
            str(each.get("reason") or ""),
            known.get(Path(each["folder"]).name),
        )
        for each in record["runs"]
    )
    given = flat(record.get("settings") or {})
    changes = {key: value for key, value in given.items() if key not in INERT_KEYS}
    return SweepResults(experiment, changes, float(record.get("seconds") or 0), entries)


def experiment_tables(
    sweep: SweepResults, methods: Mapping[RunRecord | CompressionRun, str]
) -> list[Table]:
    """The tables of a sweep: one for each value of settings that are not rows, columns or seeds.

    Args:
        sweep: the runs.
        methods: the label of each run's method, by which the page filters rows.
    """
    experiment = sweep.experiment
    placed = (experiment.rows, experiment.columns, *_REPLICATE)
    # Taken from the points, because a sweep may have more axes than its file.
    places = [_without(entry.point, placed) for entry in sweep.entries]
    tables = []
    for place in _distinct(places):
        entries = [e for e, other in zip(sweep.entries, places, strict=True) if other == place]
        layout = _Layout(experiment, place, entries, methods)
        tables.append(layout.table(sweep.rehearsal))
    return tables


def targets_of(sweeps: Sequence[SweepResults], groups: Sequence[Group]) -> dict[Group, float]:
    """The paper's average incremental accuracy, as a share, of groups that it has a number for.

    Groups with other settings than the experiment's, such as other data, get none.
    """
    found: dict[Group, float] = {}
    for sweep in sweeps:
        if sweep.changes:
            continue
        points = {entry.run: entry.point for entry in sweep.entries if entry.run is not None}
        targets = [each for each in sweep.experiment.targets if each.measure == AVERAGE]
        # The most specific target comes last and wins.
        for target in sorted(targets, key=lambda target: len(target.where)):
            for group in groups:
                known = [points[run] for run in group.all_runs if run in points]
                planned = [_planned(sweep.experiment, p) and _has(p, target.where) for p in known]
                if known and all(planned):
                    found[group] = target.value / 100
    return found


@dataclass(frozen=True)
class _Layout:
    """A table of an experiment, at fixed values of what is not a row or a column."""

    experiment: Experiment
    place: GridPoint
    entries: Sequence[SweepEntry]
    methods: Mapping[RunRecord | CompressionRun, str]

    def table(self, rehearsal: str) -> Table:
        experiment = self.experiment
        columns = _values(self.entries, experiment.columns)
        measures, summary = self._measures(), self._summarised()
        heads = [Column(experiment.rows, _last(experiment.rows))]
        heads += [head for value in columns for m in measures for head in self._heads(value, m)]
        heads += _SUMMARY_HEADS if summary else []
        heads.append(Column("schedule", "schedule"))
        rows = []
        for row in _values(self.entries, experiment.rows):
            cells = [c for value in columns for m in measures for c in self._cells(row, value, m)]
            cells += self._summary(row, columns) if summary else []
            rows.append(self._row(row, cells))
        suffix = "".join(f"-{_last(key)}-{value}" for key, value in self.place.items())
        where = ", ".join(_named(key, value) for key, value in self.place.items())
        title = experiment.title + (f" ({where})" if where else "")
        note = " ".join(part for part in (_READING, rehearsal) if part)
        # It becomes a file name, and a value may be a path.
        name = re.sub(r"[^\w.+-]+", "-", experiment.name + suffix)
        return Table(name, title, note, tuple(heads), tuple(rows)).without_empty_columns()

    def _measures(self) -> list[str]:
        """What each column shows: the experiment's measure, and others that the paper reports."""
        told = [t.measure for t in self.experiment.targets if self.experiment.columns in t.where]
        return list(dict.fromkeys([self.experiment.measure, *told]))

    def _heads(self, value: Any, measure: str) -> list[Column]:
        group, kind = _named(self.experiment.columns, value), _KINDS.get(measure, "percent")
        key, word = f"{_last(self.experiment.columns)}_{value}_{measure}", _TITLES.get(measure)
        word = measure.replace("_", " ") if word is None else word
        heads = [
            Column(key, word or "ours", kind, group),
            Column(f"{key}_paper", f"{word} paper".strip(), kind, group),
        ]
        # Times have no gap, because the paper's machine was another.
        gap = Column(f"{key}_gap", f"{word} gap".strip(), "points", group)
        return heads if kind == "seconds" else [*heads, gap]

    def _cells(self, row: Any, column: Any, measure: str) -> list[Cell]:
        where = {self.experiment.rows: row, self.experiment.columns: column}
        ours = self._ours(where, measure)
        paper = self._paper(where, measure)
        gap = None if ours is None or paper is None else ours.mean - paper
        return [ours, paper] if measure == "seconds" else [ours, paper, gap]

    def _ours(self, where: GridPoint, measure: str) -> Summary | None:
        return Summary.of([run.measured(measure) for run in self._runs(where)])

    def _runs(self, where: GridPoint) -> list[RunRecord | CompressionRun]:
        return [e.run for e in self.entries if e.run is not None and _has(e.point, where)]

    def _paper(self, where: GridPoint, measure: str) -> float | None:
        """The paper's number for these values, as a share or in seconds."""
        point, column = {**self.place, **where}, self.experiment.columns
        if not _planned(self.experiment, point):
            return None
        for target in self.experiment.targets:
            exact = (column in target.where) == (column in where)
            if target.measure == measure and exact and _agrees(target.where, point):
                return _share(target)
        return None

    def _summarised(self) -> bool:
        """Whether rows have a mean and a variance, such as over several class orders."""
        whole = any(self.experiment.columns not in t.where for t in self.experiment.targets)
        return whole or self.experiment.columns in _REPLICATE

    def _summary(self, row: Any, columns: Sequence[Any]) -> list[Cell]:
        """Mean and variance over the columns, ours and the paper's."""
        where = {self.experiment.rows: row}
        measure = self.experiment.measure
        cells = [self._ours({**where, self.experiment.columns: c}, measure) for c in columns]
        over = Summary.of([cell.mean for cell in cells if cell is not None])
        ours = (None, None) if over is None else (over.mean, over.variance)
        return [ours[0], self._paper(where, measure), ours[1], self._paper(where, "variance")]

    def _row(self, value: Any, cells: list[Cell]) -> Row:
        runs = self._runs({self.experiment.rows: value})
        how = ", ".join(sorted({shortened_schedule(run.settings) for run in runs} - {""}))
        methods = tuple(dict.fromkeys(self.methods[run] for run in runs if run in self.methods))
        return Row((str(value), *cells, how), methods)


_READING = "Percent of test images; ± is the sample standard deviation over runs."
_SUMMARY_HEADS = [
    Column("mean", "ours", "percent", "mean"),
    Column("mean_paper", "paper", "percent", "mean"),
    Column("variance", "ours", "variance", "variance"),
    Column("variance_paper", "paper", "variance", "variance"),
]


def _share(target: Target) -> float:
    scales = {"seconds": 1.0, "variance": 1e4}
    return target.value / scales.get(target.measure, 100.0)


def _planned(experiment: Experiment, point: GridPoint) -> bool:
    """Whether all values of a point, seeds and orders aside, are in the experiment's file."""
    settings = flat(experiment.settings)
    own = {**{key: (value,) for key, value in settings.items()}, **experiment.grid}
    return all(value in own.get(key, ()) for key, value in _without(point, _REPLICATE).items())


def _without(point: GridPoint, keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in point.items() if key not in keys}


def _has(point: GridPoint, where: GridPoint) -> bool:
    """Whether a point has all of these values."""
    return all(key in point and point[key] == value for key, value in where.items())


def _agrees(where: GridPoint, point: GridPoint) -> bool:
    """Whether a point contradicts none of these values; it may lack keys."""
    return all(point.get(key, value) == value for key, value in where.items())


def _values(entries: Sequence[SweepEntry], key: str) -> list[Any]:
    """The values of a key, in the order of the runs."""
    return _distinct([entry.point[key] for entry in entries if key in entry.point])


def _distinct(several: Sequence[_Item]) -> list[_Item]:
    """The items without repetitions, in order. They may be unhashable, such as lists."""
    return [item for i, item in enumerate(several) if item not in several[:i]]


def _named(key: str, value: Any) -> str:
    words = {"scenario.steps": f"T = {value}", "memory.per_class": f"{value} a class"}
    return words.get(key, f"{_last(key)} {value}")


def _last(key: str) -> str:
    return "method" if key == "method.name" else key.rpartition(".")[2]
