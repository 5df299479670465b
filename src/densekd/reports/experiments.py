"""Tables of a sweep's results, laid out as its experiment file says, beside the paper's numbers."""

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from densekd.config.settings_tree import INERT_KEYS, flat, merge, nested
from densekd.reports.groups import RunGroup
from densekd.reports.labels import (
    impossible_lines,
    many,
    shortened_schedule,
    state_words,
    table_file_name,
)
from densekd.reports.runs import AVERAGE, AnyRun, FoundRuns, edited_files, folder_of
from densekd.reports.statistics import Summary, gaps
from densekd.reports.tables import CellKind, Column, FilledColumn, Table
from densekd.runs.stored import check_links, load_sweep
from densekd.sweeps.experiment_file import Experiment, label, read_experiment, short_value
from densekd.sweeps.pick import REPLICATES, Pick, cell_of
from densekd.sweeps.search import distinct

GridPoint = Mapping[str, Any]
_SCALES = {"seconds": 1.0, "variance": 1e4}  # the paper's units; others are in percent
_KINDS: dict[str, CellKind] = {"seconds": "seconds", "variance": "variance"}
_TITLES = {AVERAGE: "", "accuracy": "", "seconds": "time"}
_READING = "Percent of test images; ± is the sample standard deviation over runs."


@dataclass(frozen=True)
class SweepEntry:
    """A point of a sweep's grid, its state, and its run if there is one."""

    point: GridPoint
    state: str
    reason: str
    run: AnyRun | None
    # Settings, by dotted key, in which it differs from the file; if there are any, it isn't
    # compared with the paper's numbers.
    differs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ReportedSweep:
    """An experiment with all its runs, also those that failed or are waiting."""

    experiment: Experiment
    changes: GridPoint  # settings given besides the file's
    seconds: float  # wall-clock time over all calls
    entries: tuple[SweepEntry, ...]  # without trials that were not picked
    trials: tuple[SweepEntry, ...] = ()  # trials that were not picked
    picks: tuple[Pick, ...] = ()  # what a search picked
    left_out: tuple[tuple[GridPoint, str], ...] = ()  # points that were impossible, and why

    @property
    def remarks(self) -> list[str]:
        """Sentences on failed runs, points left out, edited files, and changes from the file."""
        failed = [e for e in self.entries if e.state == "failed"]
        lines = [f"Failed: {', '.join(map(str, e.point.values()))}: {e.reason}" for e in failed]
        lines += impossible_lines((label(point), reason) for point, reason in self.left_out)
        edited = edited_files(entry.run for entry in (*self.trials, *self.entries))
        lines += [f"{file} differs between these runs." for file in edited]
        return lines + ([self.deviation] if self.deviation else [])

    @property
    def progress(self) -> str:
        """How many runs are finished, pruned, failed, running or waiting, in words."""
        states = Counter(entry.state for entry in (*self.trials, *self.entries))
        return ", ".join(state_words(states, many(states.total(), "run")))

    @property
    def deviation(self) -> str:
        """A sentence on how the runs differ from the planned ones; empty if they don't."""
        how = _shortened(entry.run for entry in self.entries if entry.run is not None)
        different = {key for entry in self.entries for key in entry.differs}
        how += [f"{key} {value}" for key, value in self.changes.items() if key in different]
        if not how:
            return ""
        return f"Changed settings: {', '.join(how)}; not comparable with the paper's numbers."


def read_sweep(folder: Path, found: FoundRuns) -> ReportedSweep:
    """Read the sweep in a folder, with those of its runs that were found.

    A failed run is left out if another run of its point has finished.

    Raises:
        ValueError: its experiment or its record can't be read, or a link leads out of the folder.
    """
    check_links(folder)
    experiment = read_experiment(folder / "experiment.toml", sealed=True)
    record = load_sweep(folder)
    given = flat(record.get("settings") or {})
    changes = {key: value for key, value in given.items() if key not in INERT_KEYS}
    # Look up by path, else by name, because the folder of the sweep may have been moved.
    known = {run.folder.name: run for run in found.every}
    known |= {os.path.realpath(run.folder): run for run in found.every}
    entries = []
    for each in record["runs"]:
        place = folder_of(folder, each)
        run = known.get(os.path.realpath(place), known.get(place.name))
        state, reason = each.get("state", "waiting"), each.get("reason") or ""
        if _is_finished(run, experiment):
            state, reason = "finished", ""
        differs = _differences(experiment, changes, each["point"])
        entries.append(SweepEntry(each["point"], state, reason, run, differs))
    done = [entry.point for entry in entries if entry.state == "finished"]
    left = tuple(e for e in entries if e.state != "failed" or e.point not in done)
    left_out = tuple((each["point"], each["reason"]) for each in record.get("left_out", ()))
    seconds = record.get("seconds") or 0
    results = ReportedSweep(experiment, changes, seconds, left, left_out=left_out)
    return results if "search" not in record else _picked(results, record["search"])


def _is_finished(run: AnyRun | None, experiment: Experiment) -> bool:
    done = run is not None and run.result is not None
    return done and (not experiment.flatness or getattr(run, "flatness", None) is not None)


def _differences(experiment: Experiment, changes: GridPoint, point: GridPoint) -> frozenset[str]:
    """The settings of a run that differ from the experiment's file because of ``changes``.

    Engine settings, epochs and the path of ImageNet don't count; nor do seed and class order,
    unless the file gives them.
    """
    if not changes:
        return frozenset()
    from densekd.compression.config import resolve_compression  # here, because it takes seconds
    from densekd.config.schema import as_tree, resolve

    resolve_any = resolve if experiment.kind == "runs" else resolve_compression
    planned, done = (
        merge(experiment.settings, nested(more), nested(point)) for more in ({}, changes)
    )
    try:
        before, after = flat(as_tree(resolve_any(planned))), flat(as_tree(resolve_any(done)))
    except ValueError:  # written by a version with other settings
        return frozenset(changes)
    own = {*experiment.grid, *flat(experiment.settings)}
    free = {"epochs", *(key for key in REPLICATES if key not in own)}
    sources = [str(each.get("data.source")).partition(":")[0] for each in (before, after)]
    if sources[0] == sources[1] and sources[0].startswith("imagenet"):
        free.add("data.source")
    keys = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    return frozenset(key for key in keys - free if not key.startswith("engine."))


def _picked(sweep: ReportedSweep, search: Mapping[str, Any]) -> ReportedSweep:
    """Separate trials that weren't picked, and drop the searched keys from the picked points."""
    keys, picks = search["keys"], tuple(map(Pick.of, search["picks"]))
    chosen = [e for e in sweep.entries if any(pick.is_of(e.point, keys) for pick in picks)]
    trials = tuple(entry for entry in sweep.entries if entry not in chosen)
    entries = tuple(replace(entry, point=_without(entry.point, keys)) for entry in chosen)
    return replace(sweep, entries=entries, trials=trials, picks=picks)


def experiment_tables(sweep: ReportedSweep, methods: Mapping[AnyRun, str]) -> tuple[Table, ...]:
    """The tables of a sweep: one for each value of axes that aren't rows, columns or replicates.

    Rows and columns that ``--grid`` added to the file's have separate tables, and so have the
    picks of a search. ``methods`` labels each run's method, by which the page filters rows.
    """
    placed = (sweep.experiment.rows, sweep.experiment.columns, *REPLICATES)

    def place(entry: SweepEntry) -> tuple[bool, GridPoint]:
        # Read from the points, because a sweep can have more axes than its file.
        within = {key: entry.point[key] for key in placed if key in entry.point}
        return not _planned(sweep.experiment, within), _without(entry.point, placed)

    tables = []
    for added, where in distinct([place(entry) for entry in sweep.entries]):
        entries = [entry for entry in sweep.entries if place(entry) == (added, where)]
        layout = _Layout(sweep.experiment, where, added, entries)
        tables.append(layout.table(sweep.deviation, methods))
    return (*tables, *([_picks_table(sweep, methods)] if sweep.picks else []))


def _picks_table(sweep: ReportedSweep, methods: Mapping[AnyRun, str]) -> Table:
    """What a search picked for each cell of the table, and from how many trials."""
    picks = sweep.picks
    keys = dict.fromkeys(key for pick in picks for key in (*pick.cell, *pick.values))
    columns: list[FilledColumn] = []
    for key in keys:
        values = [{**pick.cell, **pick.values}.get(key) for pick in picks]
        columns.append(
            (Column(key, _last(key)), ["" if v is None else str(short_value(v)) for v in values])
        )
    columns += [
        (Column("validation", "validation", "percent"), [pick.validation for pick in picks]),
        (Column("trials", "trials", "count"), [pick.trials for pick in picks]),
    ]
    title = f"{sweep.experiment.title}: what was picked"
    note = (
        "The values with the best average incremental accuracy on validation images, as a mean "
        "over seeds and class orders, and the number of trials that they were picked from."
    )
    name = table_file_name(f"{sweep.experiment.name}-picks")
    runs = [[e.run for e in sweep.entries if cell_of(e.point, ()) == p.cell] for p in picks]
    return Table.of(name, title, note, columns, _labels(runs, methods))


def targets_of(
    sweeps: Sequence[ReportedSweep], groups: Sequence[RunGroup]
) -> dict[RunGroup, float]:
    """The paper's average incremental accuracy, as a share, for the groups that it covers.

    Groups whose settings differ from the experiment's, such as other data, get none.
    """
    found: dict[RunGroup, float] = {}
    for sweep in sweeps:
        same = [e for e in sweep.entries if e.run is not None and not e.differs]
        points = {entry.run: entry.point for entry in same}
        targets = [each for each in sweep.experiment.targets if each.measure == AVERAGE]
        # The most specific target comes last and wins.
        targets.sort(key=lambda target: len(target.where))
        for group in groups:
            known = [points[run] for run in group.all_runs if run in points]
            if known and all(_planned(sweep.experiment, point) for point in known):
                for target in targets:
                    if all(target.where.items() <= point.items() for point in known):
                        found[group] = target.value / 100
    return found


@dataclass(frozen=True)
class _Layout:
    """One table of an experiment, at fixed values of the axes that aren't rows or columns."""

    experiment: Experiment
    place: GridPoint
    added: bool  # whether ``--grid`` added its rows or columns
    entries: Sequence[SweepEntry]

    def table(self, deviation: str, methods: Mapping[AnyRun, str]) -> Table:
        experiment = self.experiment
        rows = self._values(experiment.rows)
        runs = [self._runs({experiment.rows: row}) for row in rows]
        columns: list[FilledColumn] = [
            (Column(experiment.rows, _last(experiment.rows)), [str(row) for row in rows]),
            *self._results(rows),
            *self._summary(rows),
            (Column("schedule", "schedule"), [", ".join(_shortened(each)) for each in runs]),
        ]
        suffix = "".join(f"-{_last(key)}-{value}" for key, value in self.place.items())
        words = [_named(key, value) for key, value in self.place.items()]
        if self.added:
            suffix, words = f"{suffix}-added", [*words, "added by --grid"]
        title = experiment.title + (f" ({', '.join(words)})" if words else "")
        name = table_file_name(experiment.name + suffix)
        note = f"{_READING} {deviation}".strip()
        return Table.of(name, title, note, columns, _labels(runs, methods))

    def _results(self, rows: Sequence[Any]) -> Iterator[FilledColumn]:
        """Our number, the paper's and the gap, for each column and measure of the paper."""
        experiment, axis = self.experiment, self.experiment.columns
        told = [target.measure for target in experiment.targets if axis in target.where]
        measures = dict.fromkeys([experiment.measure, *told])
        for value, measure in itertools.product(self._values(axis), measures):
            ours = [self._ours(row, value, measure) for row in rows]
            paper = [self._paper({experiment.rows: row, axis: value}, measure) for row in rows]
            key, group = f"{_last(axis)}_{value}_{measure}", _named(axis, value)
            word = _TITLES.get(measure, measure.replace("_", " "))
            kind = _KINDS.get(measure, "percent")
            yield Column(key, word or "ours", kind, group), ours
            yield Column(f"{key}_paper", f"{word} paper".strip(), kind, group), paper
            # Times have no gap, because the paper used another machine.
            if kind != "seconds":
                gap = Column(f"{key}_gap", f"{word} gap".strip(), "points", group)
                yield gap, gaps(ours, paper)

    def _summary(self, rows: Sequence[Any]) -> Iterator[FilledColumn]:
        """Mean and variance over the columns, if they are replicates or the paper has these."""
        experiment, axis = self.experiment, self.experiment.columns
        told = any(axis not in target.where for target in experiment.targets)
        if not told and axis not in REPLICATES:
            return
        over = []
        for row in rows:
            cells = [self._ours(row, value, experiment.measure) for value in self._values(axis)]
            over.append(Summary.of(cell.mean for cell in cells if cell is not None))
        summaries = [("mean", experiment.measure, [each and each.mean for each in over])]
        if experiment.measure != "seconds":  # the variance column is for shares
            summaries.append(("variance", "variance", [each and each.variance for each in over]))
        for name, measure, ours in summaries:
            paper = [self._paper({experiment.rows: row}, measure) for row in rows]
            kind = _KINDS.get(measure, "percent")
            yield Column(name, "ours", kind, name), ours
            yield Column(f"{name}_paper", "paper", kind, name), paper

    def _values(self, key: str) -> tuple[Any, ...]:
        """The values of a key, in the order of the runs."""
        return distinct([entry.point[key] for entry in self.entries if key in entry.point])

    def _runs(self, where: GridPoint) -> list[AnyRun]:
        own = [entry.run for entry in self.entries if where.items() <= entry.point.items()]
        return [run for run in own if run is not None]

    def _ours(self, row: Any, column: Any, measure: str) -> Summary | None:
        where = {self.experiment.rows: row, self.experiment.columns: column}
        return Summary.of(run.measured(measure) for run in self._runs(where))

    def _paper(self, where: GridPoint, measure: str) -> float | None:
        """The paper's number for these values, as a share or in seconds."""
        point, axis = {**self.place, **where}, self.experiment.columns
        other = self.added or any(entry.differs for entry in self.entries)
        if other or not _planned(self.experiment, point):
            return None
        for target in self.experiment.targets:
            exact = (axis in target.where) == (axis in where)
            agrees = all(point.get(key, value) == value for key, value in target.where.items())
            if target.measure == measure and exact and agrees:
                return target.value / _SCALES.get(measure, 100.0)
        return None


def _labels(
    rows: Iterable[Iterable[AnyRun | None]], methods: Mapping[AnyRun, str]
) -> list[tuple[str, ...]]:
    """The method labels in each row; runs without a label are skipped."""
    known = ((methods[run] for run in runs if run is not None and run in methods) for runs in rows)
    return [tuple(dict.fromkeys(labels)) for labels in known]


def _shortened(runs: Iterable[AnyRun]) -> list[str]:
    return sorted({shortened_schedule(run.settings) for run in runs} - {""})


def _planned(experiment: Experiment, point: GridPoint) -> bool:
    """Whether all values of a point, except seed and class order, are in the experiment's file."""
    fixed = {key: (value,) for key, value in flat(experiment.settings).items()}
    own = {**fixed, **experiment.grid}
    return all(value in own.get(key, ()) for key, value in _without(point, REPLICATES).items())


def _without(point: GridPoint, keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in point.items() if key not in keys}


def _named(key: str, value: Any) -> str:
    words = {"scenario.steps": f"T = {value}", "memory.per_class": f"{value} a class"}
    return words.get(key, f"{_last(key)} {value}")


def _last(key: str) -> str:
    return "method" if key == "method.name" else key.rpartition(".")[2]
