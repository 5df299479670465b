"""Finished runs side by side."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from densekd.config.settings_tree import flat
from densekd.files import expand_home, write_atomically
from densekd.reports.charts import Chart, Series, draw_figures
from densekd.reports.figures import curve
from densekd.reports.labels import run_labels
from densekd.reports.runs import AVERAGE, ReportedRun, find_runs
from densekd.text import escape_controls, html_table

# The measures that are compared, with their titles.
COMPARED = {
    AVERAGE: "average %",
    "accuracy": "last %",
    "base_accuracy": "base %",
    "old_accuracy": "old %",
    "new_accuracy": "new %",
}
_TITLES = ["run", *COMPARED.values(), "minutes"]


def compare(*folders: Path | str) -> "Comparison":
    """Compare finished runs: accuracies side by side, the best run first.

    Does what ``densekd compare`` does.

    Args:
        folders: run folders, or folders that hold run folders; by default ``runs``.

    Raises:
        ValueError: there is no finished run.

    Example:
        >>> import densekd
        >>> for method in ("finetune", "gkd"):
        ...     _ = densekd.run(data="digits", method=method, steps=1, epochs=1, quiet=True)
        >>> table = densekd.compare("runs")
        >>> [row["run"] for row in table]
        ['finetune', 'gkd']
        >>> print(table)
        run       average %  last %  base %  old %  new %  minutes
        finetune ...
        gkd ...
    """
    return Comparison(finished_runs(*map(expand_home, folders or ("runs",))))


class Comparison(Sequence[Mapping[str, Any]]):
    """Finished runs side by side: one row per run, accuracies from 0 to 1, the best run first."""

    def __init__(self, runs: Sequence[tuple[str, ReportedRun]]) -> None:
        self.runs = tuple(runs)
        self._rows: list[Mapping[str, Any]] = [
            {
                "run": label,
                **{key: run.measured(key) for key in COMPARED},
                "minutes": run.seconds / 60,
                "folder": run.folder,
            }
            for label, run in self.runs
        ]

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Mapping[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | list[Mapping[str, Any]]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        lines = [_TITLES, *map(_texts, self._rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if place == 0 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        )

    def _repr_html_(self) -> str:
        """The table for notebooks."""
        return html_table(_TITLES, map(_texts, self._rows))

    def plot(self, file: Path | str) -> None:
        """Draw the accuracy after each task, on all classes seen and on those of earlier tasks.

        The suffix of the file selects PNG, PDF or SVG.
        """
        titles = {"accuracy": "All classes seen", "old_accuracy": "Classes of earlier tasks"}
        charts = []
        for measure, title in titles.items():
            series = tuple(Series(label, curve([run], measure)) for label, run in self.runs)
            charts.append(
                Chart("", title, "", "classes seen", "accuracy on test images, %", series)
            )
        places = {label: place for place, (label, _) in enumerate(self.runs)}
        file = expand_home(file)
        ending = file.suffix.removeprefix(".") or "png"
        write_atomically(file, draw_figures(charts, places, [ending])[ending])


def _texts(row: Mapping[str, Any]) -> list[str]:
    shares = ["-" if row[key] is None else f"{100 * row[key]:.1f}" for key in COMPARED]
    return [escape_controls(row["run"]), *shares, f"{row['minutes']:.1f}"]


def finished_runs(*folders: Path) -> list[tuple[str, ReportedRun]]:
    """The finished runs in run folders, or in folders of them, each with a label; best first."""
    files = [
        file
        for folder in folders
        for file in (folder / "result.json", *sorted(folder.glob("*/result.json")))
    ]
    places = [file.parent for file in files if file.is_file()]
    runs = [run for run in find_runs(places).runs if run.result is not None] if places else []
    if not runs:
        where = ", ".join(map(str, folders))
        raise ValueError(f"There is no finished run in {where}; `densekd run` makes some.")
    runs.sort(key=lambda run: run.measured(AVERAGE) or 0.0, reverse=True)
    # The settings as stored: completing them takes seconds of imports.
    settings = [{**flat(run.config), **run.files} for run in runs]
    return list(zip(run_labels(settings), runs, strict=True))
