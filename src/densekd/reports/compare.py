"""Finished runs side by side."""

from collections.abc import Sequence
from pathlib import Path

from densekd.config.settings_tree import flat
from densekd.files import write_atomically
from densekd.reports.charts import Chart, Series, draw_figures
from densekd.reports.figures import curve
from densekd.reports.labels import run_labels
from densekd.reports.runs import AVERAGE, RunRecord, find_runs


def finished_runs(folder: Path) -> list[tuple[str, RunRecord]]:
    """The finished runs in a folder, or the run that it is, each with a label; the best first."""
    files = [folder / "result.json", *sorted(folder.glob("*/result.json"))]
    places = [file.parent for file in files if file.is_file()]
    runs = [run for run in find_runs(places).runs if run.result is not None] if places else []
    if not runs:
        raise ValueError(f"There is no finished run in {folder}; `densekd run` makes some.")
    runs.sort(key=lambda run: run.measured(AVERAGE) or 0.0, reverse=True)
    # The settings as stored: completing them takes seconds of imports.
    return list(zip(run_labels([flat(run.config) for run in runs]), runs, strict=True))


def plot_runs(runs: Sequence[tuple[str, RunRecord]], file: Path) -> None:
    """Plot the accuracy on all classes seen, and on those of earlier tasks, after each task."""
    titles = {"accuracy": "All classes seen", "old_accuracy": "Classes of earlier tasks"}
    charts = []
    for measure, title in titles.items():
        series = tuple(Series(label, curve([run], measure)) for label, run in runs)
        charts.append(Chart("", title, "", "classes seen", "accuracy on test images, %", series))
    places = {label: place for place, (label, _) in enumerate(runs)}
    ending = file.suffix.removeprefix(".") or "png"
    write_atomically(file, draw_figures(charts, places, [ending])[ending])
