"""Write the ledger of runs at the paper's full schedule into ``docs/results.md`` and ``README.md``.

    python benchmarks/ledger.py [RUN ...] [--log FILE]

Every number is computed from the run folders in ``docs/results/``, of which ``densekd report
docs/results`` makes a page, too. The results and losses of finished runs that are given are copied
there first; ``--log``, what ``densekd run`` printed over all its stretches, says how often a run
was resumed. A damaged file ends in an error, and nothing is written.
"""

import argparse
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from densekd import metrics
from densekd.files import to_json, write_atomically, write_sealed_json
from densekd.reports.labels import shortened_schedule
from densekd.reports.runs import AVERAGE, ReportedRun
from densekd.runs.epochs import EPOCHS_FILE
from densekd.runs.record import StepRecord
from densekd.runs.stored import RESULT_FILE, load_result
from densekd.sweeps.experiment_file import read_experiment
from densekd.sweeps.library import find_experiment

_ROOT = Path(__file__).parents[1]
_RESULTS = Path("docs/results")
_FIGURE = Path("docs/images/ledger.png")
_BEGIN = "<!-- the ledger: written by benchmarks/ledger.py -->"
_END = "<!-- the end of the ledger -->"
_TABLES = "table1-cifar100", "table4-distillations"  # experiments that have the paper's numbers
_STARTED = "Run folder:"  # what `densekd run` prints when it starts or goes on
_MARKERS = "osD^vPX*<>"
_STRIDE, _FEW = 5, 12  # the list has every fifth task of a run of more than a few
_NONE = "\N{EN DASH}"


@dataclass(frozen=True)
class Entry:
    """A finished run of the ledger."""

    run: ReportedRun
    result: Mapping[str, Any]

    @property
    def method(self) -> str:
        return str(self.run.settings["method.name"])

    @property
    def steps(self) -> int:
        return int(self.run.settings["scenario.steps"])

    @property
    def name(self) -> str:
        return f"`{self.method}`, T = {self.steps}"

    @property
    def parent(self) -> str | None:
        """The run that it goes on from, with the step: ``RUN@2``."""
        start = self.result["config"].get("start")
        return start and f"{start['run']}@{start['after']}"

    @property
    def curve(self) -> list[tuple[int, float]]:
        """Classes seen and accuracy in percent after each task."""
        return [(step["classes_seen"], 100 * step["accuracy"]) for step in self.run.steps]

    @property
    def average(self) -> float:
        """The average incremental accuracy in percent."""
        return float(np.mean([y for _, y in self.curve]))

    @property
    def paper(self) -> float | None:
        return published().get((self.method, self.steps))

    def row(self) -> dict[str, str]:
        """Its cells by their column's title."""
        steps = [StepRecord.from_json(step) for step in self.run.steps]
        decay, resumed = self.run.settings["training.base.weight_decay"], self.result.get("resumed")
        return {
            "method": f"`{self.method}`",
            "T": str(self.steps),
            "paper": _number(self.paper, 2),
            "ours": f"**{self.average:.2f}**",
            "gap": _NONE if self.paper is None else f"{self.average - self.paper:+.2f}",
            "base, first": _percent(steps[:1], "accuracy"),
            "base, last": _percent(steps, "base_accuracy"),
            "old, last": _percent(steps, "old_accuracy"),
            "new, last": _percent(steps, "new_accuracy"),
            "forgetting": _number(100 * metrics.forgetting(steps), 1),
            "weight decay": f"{decay:.0e}".replace("e-0", "e-"),
            "seed": str(self.run.settings["seed"]),
            "hours": _number(self.run.seconds / 3600, 1),
            "resumed": _NONE if resumed is None else str(resumed),
            "commit": self.run.commit or _NONE,
        }


@cache
def published() -> Mapping[tuple[str, int], float]:
    """The paper's average incremental accuracies on CIFAR-100, by method and T."""
    targets = (
        target for name in _TABLES for target in read_experiment(find_experiment(name)).targets
    )
    return {
        (target.where["method.name"], target.where["scenario.steps"]): target.value
        for target in targets
        if target.measure == AVERAGE
    }


def read_entry(folder: Path) -> Entry:
    """Read the result of a run; raise ValueError if it is damaged or not at the full schedule."""
    result = load_result(folder)
    run = ReportedRun(folder, result["config"], result["steps"], result)
    if shortened_schedule(run.settings):
        raise ValueError(
            f"{folder} has a shortened schedule, which the ledger doesn't take; remove it."
        )
    entry = Entry(run, result)
    try:
        entry.row()
        _check(folder, result)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder} is damaged: it lacks {error}; copy the run again.") from error
    return entry


def _check(folder: Path, result: Mapping[str, Any]) -> None:
    """Raise unless the summary of a run follows from its steps and its confusion matrix."""
    steps = [StepRecord.from_json(step) for step in result["steps"]]
    confusion = np.array(result["confusion_matrix"])
    computed = {
        AVERAGE: metrics.average_incremental_accuracy(steps),
        "forgetting": metrics.forgetting(steps),
        "last_accuracy": float(np.trace(confusion) / confusion.sum()),
    }
    for name, value in computed.items():
        stored = math.nan if result[name] is None else result[name]
        if not np.isclose(stored, value, rtol=0, atol=1e-9, equal_nan=True):
            raise ValueError(
                f"{folder} is damaged: {name} is {stored}, but its steps give {value}."
            )


def copy_run(folder: Path, results: Path, log: Path | None) -> None:
    """Copy the result of a finished run and the losses of its epochs into the ledger."""
    result = load_result(folder)
    del result["folder"]  # where it was on somebody's machine
    if start := result["config"].get("start"):
        start["run"] = Path(start["run"]).name
    result["resumed"] = None
    if log is not None:
        result["resumed"] = max(0, log.read_text("utf-8").count(_STARTED) - 1)
    write_sealed_json(results / folder.name / RESULT_FILE, result)
    if (folder / EPOCHS_FILE).exists():
        shutil.copy(folder / EPOCHS_FILE, results / folder.name)


def read_ledger(results: Path) -> list[Entry]:
    """All runs of a folder, by T and method."""
    entries = [read_entry(file.parent) for file in sorted(results.glob(f"*/{RESULT_FILE}"))]
    return sorted(entries, key=lambda entry: (entry.steps, entry.method, entry.run.folder))


def table(entries: Sequence[Entry], columns: Sequence[str] = ()) -> str:
    """A table with these columns, or all."""
    if not entries:
        return "No run at the full schedule has results yet."
    rows = [entry.row() for entry in entries]
    titles = list(columns or rows[0])
    lines = [titles, ["---"] * len(titles), *([row[title] for title in titles] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |".replace("| --- ", "|---") for line in lines)


def document(entries: Sequence[Entry]) -> str:
    """The block of docs/results.md."""
    if not entries:
        return table(entries)
    curves = []
    for entry in entries:
        seen, accuracies = zip(*entry.curve, strict=True)
        taken = f" (goes on from `{entry.parent}`)" if entry.parent else ""
        stride = 1 if len(seen) <= _FEW else _STRIDE
        every = "" if stride == 1 else f", every {stride}th task"
        listed = ", ".join(f"{accuracy:.1f}" for accuracy in accuracies[::stride])
        curves.append(f"- {entry.name}, {seen[0]} to {seen[-1]} classes{every}{taken}: {listed}")
    figure = f"![Accuracy after each task](images/{_FIGURE.name})"
    return "\n\n".join([table(entries), "Accuracy after each task:", "\n".join(curves), figure])


def readme(entries: Sequence[Entry]) -> str:
    """The block of README.md."""
    columns = ("method", "T", "paper", "ours", "gap", "base, first", "forgetting", "weight decay")
    figure = [f"![Accuracy after each task]({_FIGURE})"] if entries else []
    return "\n\n".join([table(entries, columns), *figure])


def fill(text: str, block: str) -> str:
    """A document with its marked block replaced."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"The document lacks the lines {_BEGIN} and {_END}.")
    return f"{before}{_BEGIN}\n\n{block}\n\n{_END}{after}"


def fingerprint(entries: Sequence[Entry]) -> str:
    """A hash of what the figure shows, which is kept in it."""
    facts = [[entry.name, entry.paper, entry.curve] for entry in entries]
    return sha256(to_json(facts)).hexdigest()


def draw(entries: Sequence[Entry], file: Path) -> None:
    """Draw the curves, a panel for each T, with the paper's averages as dotted lines."""
    from matplotlib.figure import Figure

    panels = {steps: list(group) for steps, group in groupby(entries, lambda entry: entry.steps)}
    methods = sorted({entry.method for entry in entries})
    figure = Figure((2 + 4.4 * len(panels), 3.6), layout="constrained")
    (row,) = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    for axes, (steps, group) in zip(row, panels.items(), strict=True):
        for entry in group:
            number = methods.index(entry.method)  # a method looks alike in all panels
            seen, accuracies = zip(*entry.curve, strict=True)
            axes.plot(
                seen,
                accuracies,
                color=f"C{number}",
                marker=_MARKERS[number % len(_MARKERS)],
                markersize=3,
                lw=1.2,
                label=entry.method,
            )
            if entry.paper is not None:
                axes.axhline(entry.paper, color=f"C{number}", lw=0.8, ls=":")
        axes.set(xlabel="classes seen", title=f"T = {steps}")
        axes.legend(fontsize=8)
    row[0].set_ylabel("% of test images")
    figure.suptitle("Accuracy after each task; dotted: the paper's averages", fontsize=9)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110, metadata={"Description": fingerprint(entries)})


def write(root: Path) -> None:
    """Write both documents and the figure from the results."""
    entries = read_ledger(root / _RESULTS)
    blocks = {"docs/results.md": document(entries), "README.md": readme(entries)}
    filled = {name: fill((root / name).read_text("utf-8"), blocks[name]) for name in blocks}
    if entries:
        draw(entries, root / _FIGURE)
    for name, text in filled.items():
        write_atomically(root / name, text)


def _number(value: float | None, digits: int) -> str:
    return _NONE if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _percent(steps: Sequence[StepRecord], measure: str) -> str:
    """A measure after the last of some steps."""
    return _number(100 * getattr(steps[-1], measure), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, help="finished run folders to copy first")
    parser.add_argument("--log", type=Path, help="what one run printed")
    given = parser.parse_args()
    if given.log and len(given.runs) != 1:
        parser.error("--log goes with one run")
    for folder in given.runs:
        copy_run(folder, _ROOT / _RESULTS, given.log)
    write(_ROOT)


if __name__ == "__main__":
    main()
