"""Write a report about runs: a page, tables and figures."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from densekd.files import write_atomically
from densekd.reports.charts import Chart, HeatMap, draw_figures
from densekd.reports.experiments import ReportedSweep, experiment_tables, read_sweep, targets_of
from densekd.reports.figures import charts, compression_charts, heat_maps
from densekd.reports.groups import group_compressions, group_runs
from densekd.reports.labels import (
    file_name_part,
    many,
    natural_order,
    shortened_schedule,
    unused_name,
)
from densekd.reports.overview import (
    comparison,
    compression_table,
    differences_table,
    metrics_table,
    orders_table,
    runs_table,
)
from densekd.reports.page import Contents, Section, render_page
from densekd.reports.runs import AnyRun, FoundRuns, find_runs
from densekd.reports.statistics import group_by
from densekd.reports.tables import Table, short_duration, to_csv, to_latex, to_markdown

logger = logging.getLogger(__name__)

_WRITERS = {"csv": to_csv, "md": to_markdown, "tex": to_latex}
# The titles and explanations of sections, in the order of the page.
_SECTIONS = {
    "comparison": ("Comparison", ""),
    "metrics": ("Further metrics", ""),
    "differences": ("Differences in pairs", ""),
    "curves": ("Accuracy after each task", ""),
    "stability": ("Old and new classes", "What was kept, and what was learned last."),
    "matrices": (
        "Accuracy by task",
        "Rows: after which task. Columns: the task whose test images are classified.",
    ),
    "memory": ("Memory", "What fewer exemplars cost."),
    "orders": ("Class orders", "The same classes, learned in other orders."),
    "flatness": ("Flatness", "How fast the loss on training images grows with noise on weights."),
    "losses": ("Losses over time", "The terms of the loss, each the mean over an epoch."),
    "compression": ("Model compression", "A small network learns from a large one."),
    "runs": ("Runs", "Every run with its progress, code and machine."),
}
# Sections whose lines can have a band: the deviation over runs.
_BANDED = ("curves", "stability", "memory")


@dataclass(frozen=True)
class Report:
    """The page that was written, and how many runs, tables and figures it has."""

    page: Path
    runs: int
    finished: int
    tables: int
    figures: int


def write_report(
    places: Sequence[Path], out: Path, on_progress: Callable[[int, int], None] | None = None
) -> Report:
    """Write ``index.html``, ``tables/`` and ``figures/`` about some runs.

    Args:
        places: run folders, sweep folders, or folders that hold run folders.
        out: the folder of the report; files of an earlier one are replaced.
        on_progress: called with the number of figures drawn and the number of all figures.
    """
    found = find_runs(places)
    contents = contents_of(found)
    tables = [table for section in contents.sections for table in section.tables]
    for table in tables:
        for ending, to_text in _WRITERS.items():
            content = to_text(table).encode(errors="backslashreplace")
            write_atomically(out / "tables" / f"{table.name}.{ending}", content)
    figures = [item for section in contents.sections for item in section.figures().items()]
    colours = {method: place for place, method in enumerate(contents.methods)}
    for number, (name, (_, drawn)) in enumerate(figures):
        for ending, image in draw_figures(drawn, colours).items():
            write_atomically(out / "figures" / f"{name}.{ending}", image)
        if on_progress is not None:
            on_progress(number + 1, len(figures))
    # The page comes last, so that all files it links to exist.
    write_atomically(out / "index.html", render_page(contents))
    finished = sum(run.result is not None for run in found.every)
    return Report(out / "index.html", len(found.every), finished, len(tables), len(figures))


def contents_of(found: FoundRuns) -> Contents:
    """Collect the contents of a page. Trials that a search didn't pick are left out."""
    sweeps, damaged = _read_sweeps(found)
    found, trials = _without_trials(found, sweeps)
    groups, repeated = group_runs(found.runs)
    compressions = group_compressions(found.compressions)
    runs = {**{run: group.method for group in groups for run in group.all_runs}, **repeated}
    small = ((each, method) for (_, method), own in compressions.items() for each in own)
    named: dict[AnyRun, str] = dict([*runs.items(), *small])
    methods = sorted(set(named.values()))
    protocols = {group.protocol.label for group in groups}
    protocols |= {protocol for protocol, _ in compressions}
    tables = (
        comparison(groups, targets_of(sweeps, groups)),
        metrics_table(groups),
        differences_table(groups),
        orders_table(groups),
        compression_table(compressions),
        runs_table(groups, repeated),
    )
    own = {table.name: (table,) for table in tables if table.rows}
    drawn: list[Chart | HeatMap] = [*charts(groups), *heat_maps(groups)]
    drawn += compression_charts(compressions)
    charts_of = group_by(drawn, lambda chart: chart.section)
    return Contents(
        title=_title(sweeps, found),
        lead=_lead(len(methods), len(protocols), found, trials),
        shortened=_shortened(found),
        damaged=tuple(damaged),
        methods=tuple(methods),
        protocols=tuple(sorted(protocols, key=natural_order)),
        sections=(
            *_numbered([_experiment(sweep, named) for sweep in sweeps], own),
            *(
                _section(name, own.get(name, ()), charts_of.get(name, []))
                for name in _SECTIONS
                if name in own or name in charts_of
            ),
        ),
        runs=tuple(runs.items()),
    )


def _read_sweeps(found: FoundRuns) -> tuple[list[ReportedSweep], list[str]]:
    """Read the sweeps; also return the names of damaged ones, and log a warning for each."""
    sweeps, damaged = [], []
    for folder in found.sweeps:
        try:
            sweeps.append(read_sweep(folder, found))
        except ValueError as error:
            logger.warning("%s The sweep is left out.", error)
            damaged.append(folder.name)
    return sweeps, damaged


def _section(name: str, tables: tuple[Table, ...], drawn: Sequence[Chart | HeatMap]) -> Section:
    title, about = _SECTIONS[name]
    if name in _BANDED and any(chart.has_band for chart in drawn if isinstance(chart, Chart)):
        about = f"{about} The band is one standard deviation over runs.".strip()
    return Section(name, title, about, (), tables, tuple(drawn))


def _numbered(sections: Sequence[Section], taken: Collection[str]) -> list[Section]:
    """Number sections and tables whose names are used already or ``taken``.

    Without numbers, two sweeps of one name in two folders would overwrite each other's files.
    """
    anchors, files = set[str](), set(taken)
    return [
        replace(
            section,
            name=unused_name(section.name, anchors),
            tables=tuple(replace(t, name=unused_name(t.name, files)) for t in section.tables),
        )
        for section in sections
    ]


def _without_trials(found: FoundRuns, sweeps: Sequence[ReportedSweep]) -> tuple[FoundRuns, int]:
    """Drop the trials that a search didn't pick; also return how many."""
    trials = {entry.run for sweep in sweeps for entry in sweep.trials}
    trials -= {entry.run for sweep in sweeps for entry in sweep.entries}
    runs = tuple(run for run in found.runs if run not in trials)
    return replace(found, runs=runs), len(found.runs) - len(runs)


def _experiment(sweep: ReportedSweep, named: Mapping[AnyRun, str]) -> Section:
    experiment = sweep.experiment
    took = f", {short_duration(sweep.seconds)} by the clock" if sweep.seconds else ""
    about = f"{experiment.about} {sweep.progress}{took}."
    name, tables = f"experiment-{file_name_part(experiment.name)}", experiment_tables(sweep, named)
    return Section(name, experiment.title, about, tuple(sweep.remarks), tables)


def _title(sweeps: Sequence[ReportedSweep], found: FoundRuns) -> str:
    if len(sweeps) == 1:
        return sweeps[0].experiment.title
    data = sorted({str(run.settings.get("data.source", "?")) for run in found.every})
    count = len(found.every)
    return f"{'One run' if count == 1 else f'{count} runs'} on {', '.join(data)}"


def _lead(methods: int, protocols: int, found: FoundRuns, trials: int) -> str:
    words = [f"{many(methods, 'method')} in {many(protocols, 'protocol')}"]
    left = sum(run.result is None for run in found.runs)
    if left:
        words.append(f"{many(left, 'run')} not finished and left out of all means")
    if trials:
        words.append(f"{many(trials, 'trial')} of a search not picked and not shown")
    return "; ".join(words) + "."


def _shortened(found: FoundRuns) -> str:
    how = [shortened_schedule(run.settings) for run in found.every]
    if not any(how):
        return ""
    kinds = ", ".join(sorted({*how} - {""}))
    some = f"{sum(map(bool, how))} of {len(how)} runs were not trained for their full schedules"
    which = "No run was trained for its full schedule" if all(how) else some
    return f"{which}: {kinds}."
