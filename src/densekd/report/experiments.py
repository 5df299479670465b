"""Experiments: what a sweep's runs reached, laid out as its file says, beside the paper."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from densekd.report.groups import Group
from densekd.report.labels import schedule
from densekd.report.overview import AVERAGE
from densekd.report.runs import CompressionRun, FoundRuns, RunRecord, read_json
from densekd.report.statistics import Summary
from densekd.report.tables import Cell, CellKind, Column, Row, Table, filled
from densekd.sweeps.experiment_file import Experiment, Target, flat, read_experiment

GridPoint = Mapping[str, Any]
_Item = TypeVar("_Item")
# Of which a mean is taken, unless a table has a row or a column for each.
_DRAWN = ("seed", "scenario.order", "order")
# They change no result.
_INERT = ("data.dir", "engine.workers")
_KINDS: dict[str, CellKind] = {"seconds": "seconds", "variance": "variance"}
_TITLES = {AVERAGE: "", "accuracy": "", "seconds": "time", "forgetting": "forgetting"}


@dataclass(frozen=True)
class SweepEntry:
    """A point of a sweep's grid, and what became of it."""

    point: GridPoint
    state: str
    reason: str
    run: RunRecord | CompressionRun | None


@dataclass(frozen=True)
class SweepResults:
    """An experiment with its runs.

    Args:
        experiment: what it is about.
        changes: settings that were given besides the file's.
        seconds: how long it took by the clock, over all calls.
        entries: its runs, those that failed or are waiting too.
    """

    experiment: Experiment
    changes: GridPoint
    seconds: float
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
        """A sentence on what differs from the experiment as it is meant; empty if nothing does."""
        runs = [entry.run for entry in self.entries if entry.run is not None]
        how = sorted({schedule(run.settings) for run in runs} - {""})
        how += [f"{key} {value}" for key, value in self.changes.items()]
        if not how:
            return ""
        return f"Rehearsal: {', '.join(how)}; not comparable with the paper's numbers."


def read_sweep(folder: Path, found: FoundRuns) -> SweepResults:
    """The sweep in a folder, with those of its runs that were found."""
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
    changes = {key: value for key, value in given.items() if key not in _INERT}
    return SweepResults(experiment, changes, float(record.get("seconds") or 0), entries)


def experiment_tables(
    sweep: SweepResults, methods: Mapping[RunRecord | CompressionRun, str]
) -> list[Table]:
    """The tables of a sweep: one for each value of what is neither row, column nor drawn.

    Args:
        sweep: the runs.
        methods: what each run's method is called, so that rows can be found by it.
    """
    experiment = sweep.experiment
    placed = (experiment.rows, experiment.columns, *_DRAWN)
    # Of the points, not of the experiment's grid: more axes may have been given to the sweep.
    places = [_without(entry.point, placed) for entry in sweep.entries]
    tables = []
    for place in _distinct(places):
        entries = [e for e, other in zip(sweep.entries, places, strict=True) if other == place]
        layout = _Layout(experiment, place, entries, methods)
        tables.append(layout.table(sweep.rehearsal))
    return tables


def targets_of(sweeps: Sequence[SweepResults], groups: Sequence[Group]) -> dict[Group, float]:
    """The paper's average incremental accuracy, as a share, of groups that it has a number for.

    Runs with other settings than the experiment's, such as other data, are none of these, whether
    they were given to all runs of a sweep or to some.
    """
    found: dict[Group, float] = {}
    for sweep in sweeps:
        if sweep.changes:
            continue
        points = {entry.run: entry.point for entry in sweep.entries if entry.run is not None}
        targets = [each for each in sweep.experiment.targets if each.measure == AVERAGE]
        # The target that says most about a run comes last, and counts.
        for target in sorted(targets, key=lambda target: len(target.where)):
            for group in groups:
                known = [points[run] for run in group.all_runs if run in points]
                meant = [_meant(sweep.experiment, p) and _has(p, target.where) for p in known]
                if known and all(meant):
                    found[group] = target.value / 100
    return found


@dataclass(frozen=True)
class _Layout:
    """A table of an experiment, at one place of what isn't a row or a column."""

    experiment: Experiment
    place: GridPoint
    entries: Sequence[SweepEntry]
    methods: Mapping[RunRecord | CompressionRun, str]

    def table(self, shortened: str) -> Table:
        experiment = self.experiment
        rows = _values(self.entries, experiment.rows)
        columns = _values(self.entries, experiment.columns)
        measures = self._measures()
        heads = [Column(experiment.rows, _last(experiment.rows))]
        heads += [head for value in columns for m in measures for head in self._heads(value, m)]
        summary = self._summarised()
        heads += _SUMMARY_HEADS if summary else []
        heads.append(Column("schedule", "schedule"))
        made = []
        for row in rows:
            cells = [c for value in columns for m in measures for c in self._cells(row, value, m)]
            cells += self._summary(row, columns) if summary else []
            made.append(self._row(row, [*cells]))
        kept, fewer = filled(heads, made)
        suffix = "".join(f"-{_last(key)}-{value}" for key, value in self.place.items())
        where = ", ".join(_named(key, value) for key, value in self.place.items())
        title = experiment.title + (f" ({where})" if where else "")
        note = " ".join(part for part in (_READING, shortened) if part)
        # Files are named so, and a value may be a path.
        name = re.sub(r"[^\w.+-]+", "-", experiment.name + suffix)
        return Table(name, title, note, tuple(kept), tuple(fewer))

    def _measures(self) -> list[str]:
        """What is shown in each column: the experiment's measure, and what else the paper has."""
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
        # Whoever measured time had another machine, so a gap would say nothing.
        gap = Column(f"{key}_gap", f"{word} gap".strip(), "points", group)
        return heads if kind == "seconds" else [*heads, gap]

    def _cells(self, row: Any, column: Any, measure: str) -> list[Cell]:
        where = {self.experiment.rows: row, self.experiment.columns: column}
        ours = self._ours(where, measure)
        paper = self._paper(where, measure)
        gap = None if ours is None or paper is None else ours.mean - paper
        return [ours, paper] if measure == "seconds" else [ours, paper, gap]

    def _ours(self, where: GridPoint, measure: str) -> Summary | None:
        runs = [entry.run for entry in self.entries if _has(entry.point, where)]
        values = [run.measured(measure) for run in runs if run is not None]
        return Summary.of([value for value in values if value is not None])

    def _paper(self, where: GridPoint, measure: str) -> float | None:
        """The paper's number for these values, as a share or in seconds."""
        point, column = {**self.place, **where}, self.experiment.columns
        if not _meant(self.experiment, point):
            return None
        for target in self.experiment.targets:
            exact = (column in target.where) == (column in where)
            if target.measure == measure and exact and _agrees(target.where, point):
                return _share(target)
        return None

    def _summarised(self) -> bool:
        """Whether there is something to say of a row as a whole, as of several class orders."""
        whole = any(self.experiment.columns not in t.where for t in self.experiment.targets)
        return whole or self.experiment.columns in _DRAWN

    def _summary(self, row: Any, columns: Sequence[Any]) -> list[Cell]:
        """Mean and variance over the columns, and the paper's."""
        where = {self.experiment.rows: row}
        measure = self.experiment.measure
        cells = [self._ours({**where, self.experiment.columns: c}, measure) for c in columns]
        over = Summary.of([cell.mean for cell in cells if cell is not None])
        ours = (None, None) if over is None else (over.mean, over.variance)
        return [ours[0], self._paper(where, measure), ours[1], self._paper(where, "variance")]

    def _row(self, value: Any, cells: list[Cell]) -> Row:
        where = {self.experiment.rows: value}
        runs = [e.run for e in self.entries if e.run is not None and _has(e.point, where)]
        how = ", ".join(sorted({schedule(run.settings) for run in runs} - {""}))
        methods = tuple(dict.fromkeys(self.methods[run] for run in runs if run in self.methods))
        return Row((str(value), *cells, how), methods)


_READING = "Percent of test images; ± is the standard deviation of the sample over runs."
_SUMMARY_HEADS = [
    Column("mean", "ours", "percent", "mean"),
    Column("mean_paper", "paper", "percent", "mean"),
    Column("variance", "ours", "variance", "variance"),
    Column("variance_paper", "paper", "variance", "variance"),
]


def _share(target: Target) -> float:
    scales = {"seconds": 1.0, "variance": 1e4}
    return target.value / scales.get(target.measure, 100.0)


def _meant(experiment: Experiment, point: GridPoint) -> bool:
    """Whether a point has only values that the experiment's file has, but for what is drawn."""
    settings = flat(experiment.settings)
    own = {**{key: (value,) for key, value in settings.items()}, **experiment.grid}
    return all(value in own.get(key, ()) for key, value in _without(point, _DRAWN).items())


def _without(point: GridPoint, keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in point.items() if key not in keys}


def _has(point: GridPoint, where: GridPoint) -> bool:
    """Whether a point has all these values."""
    return all(key in point and point[key] == value for key, value in where.items())


def _agrees(where: GridPoint, point: GridPoint) -> bool:
    """Whether a point has these values where it has those keys at all."""
    return all(point.get(key, value) == value for key, value in where.items())


def _values(entries: Sequence[SweepEntry], key: str) -> list[Any]:
    """The values of a key, in the order of the runs."""
    return _distinct([entry.point[key] for entry in entries if key in entry.point])


def _distinct(several: Sequence[_Item]) -> list[_Item]:
    """Each once, in their order; they may be lists, which no set holds."""
    return [item for i, item in enumerate(several) if item not in several[:i]]


def _named(key: str, value: Any) -> str:
    words = {"scenario.steps": f"T = {value}", "memory.per_class": f"{value} a class"}
    return words.get(key, f"{_last(key)} {value}")


def _last(key: str) -> str:
    return "method" if key == "method.name" else key.rpartition(".")[2]
