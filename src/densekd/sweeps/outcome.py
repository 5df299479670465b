"""The outcome of a sweep: the results of its runs, and why runs failed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

from densekd.runs.result import Result
from densekd.sweeps.sweep import SweepRecord
from densekd.text import html_table


class SweepOutcome(Sequence[Result]):
    """The results of the finished runs of a sweep, in the order of its grid.

    ``points`` has the values of each run on the axes, by dotted key; ``failures`` has the reason of
    each failed run, by label; ``folder`` holds the sweep's record. After a search, there are only
    the runs with the values picked by validation images; ``picks`` has these values for each cell
    of the grid.
    """

    def __init__(self, record: SweepRecord) -> None:
        jobs = record.sweep.jobs
        ended = [job for job in jobs if record.entry(job)["state"] == "finished"]
        done = [job for job in ended if record.is_pick(job)]
        self._results = [Result.open(job.folder) for job in done]
        self.points: list[dict[str, Any]] = [dict(job.point) for job in done]
        self.labels = [job.label for job in done]
        self.failures: dict[str, str] = {
            job.label: str(record.entry(job)["reason"])
            for job in jobs
            if record.entry(job)["state"] == "failed"
        }
        self.picks = [{**pick.cell, **pick.values} for pick in record.picks]
        self.folder: Path = record.sweep.folder

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...
    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        return self._results[index]

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        lines = [f"{label}: {result!r}" for label, result in zip(self.labels, self, strict=True)]
        lines += [f"{label}: failed: {reason}" for label, reason in self.failures.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """A table with a row for each run, for notebooks."""
        cells = [(label, _reached(result)) for label, result in zip(self.labels, self, strict=True)]
        cells += [(label, f"failed: {reason}") for label, reason in self.failures.items()]
        return html_table(("run", "accuracy"), cells)


def _reached(result: Result) -> str:
    if not result.steps:
        return f"{result.accuracy:.1%}"
    return f"average {result.average_incremental_accuracy:.1%}, last {result.accuracy:.1%}"
