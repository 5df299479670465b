"""Finished runs side by side."""

from collections.abc import Sequence
from pathlib import Path

from densekd.report.labels import run_labels
from densekd.report.runs import AVERAGE, RunRecord, find_runs
from densekd.sweeps.experiment_file import flat


def finished_runs(folder: Path) -> list[tuple[str, RunRecord]]:
    """The finished runs in a folder, or the run that it is, each with a label; the best last."""
    files = [folder / "result.json", *sorted(folder.glob("*/result.json"))]
    places = [file.parent for file in files if file.is_file()]
    runs = [run for run in find_runs(places).runs if run.result is not None] if places else []
    if not runs:
        raise ValueError(f"There is no finished run in {folder}; `densekd run` makes some.")
    runs.sort(key=lambda run: run.measured(AVERAGE) or 0.0)
    # The settings as stored: completing them takes seconds of imports.
    return list(zip(run_labels([flat(run.config) for run in runs]), runs, strict=True))


def plot_runs(runs: Sequence[tuple[str, RunRecord]], file: Path) -> None:
    """Plot the accuracy on all classes seen, and on those of earlier tasks, after each task."""
    # Imported here because it takes a second.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharex=True)
    titles = {"accuracy": "all classes seen", "old_accuracy": "the classes of earlier tasks"}
    for panel, (name, title) in zip(panels, titles.items(), strict=True):
        for label, run in runs:
            known = [(s["classes_seen"], 100 * s[name]) for s in run.steps if s[name] is not None]
            panel.plot(*zip(*known, strict=True), marker="o", label=label)
        panel.set_title(f"Accuracy on {title}")
        panel.set_xlabel("classes seen")
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("% of test images")
    handles, labels = panels[0].get_legend_handles_labels()
    panels[1].legend(handles[::-1], labels[::-1], frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
