"""Runs side by side: what each reached, step by step."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from densekd.experiment.grid import flat
from densekd.report.labels import run_labels


@dataclass(frozen=True)
class Outcome:
    """What a finished run reached.

    Args:
        label: what distinguishes it from the others.
        result: the content of its ``result.json``.
    """

    label: str
    result: dict[str, Any]

    @property
    def final(self) -> dict[str, Any]:
        """The record of its last step."""
        last: dict[str, Any] = self.result["steps"][-1]
        return last

    @property
    def average(self) -> float:
        """Its average incremental accuracy."""
        return float(self.result["average_incremental_accuracy"])


def read_outcomes(folder: Path) -> list[Outcome]:
    """All finished runs in a folder of runs, or the one that it is; the best last."""
    files = [folder / "result.json", *sorted(folder.glob("*/result.json"))]
    every = [json.loads(file.read_text("utf-8")) for file in files if file.is_file()]
    results = [result for result in every if "steps" in result]  # a compression has none
    if not results:
        raise ValueError(f"There is no finished run in {folder}; `densekd run` makes some.")
    labels = run_labels([flat(result["config"]) for result in results])
    outcomes = [Outcome(label, result) for label, result in zip(labels, results, strict=True)]
    return sorted(outcomes, key=lambda outcome: outcome.average)


def plot_outcomes(outcomes: Sequence[Outcome], file: Path) -> None:
    """Draw the accuracy on all classes seen, and on those of earlier tasks, after each step."""
    # Imported here: it takes a second, and a figure needs no screen.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharex=True)
    titles = {"accuracy": "all classes seen", "old_accuracy": "the classes of earlier tasks"}
    for panel, (name, title) in zip(panels, titles.items(), strict=True):
        for outcome in outcomes:
            steps = outcome.result["steps"]
            known = [(s["classes_seen"], 100 * s[name]) for s in steps if s[name] is not None]
            panel.plot(*zip(*known, strict=True), marker="o", label=outcome.label)
        panel.set_title(f"Accuracy on {title}")
        panel.set_xlabel("classes seen")
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("% of test images")
    handles, labels = panels[0].get_legend_handles_labels()
    panels[1].legend(handles[::-1], labels[::-1], frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
