"""The result of a finished run, as an object to read, to plot and to show in a notebook."""

import copy
import html
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from densekd.config.settings_tree import given
from densekd.files import expand_home
from densekd.runs.record import StepRecord
from densekd.runs.stored import check_links, load_result
from densekd.text import escape_controls, html_table

_COLUMNS = {
    "all %": "accuracy",
    "base %": "base_accuracy",
    "old %": "old_accuracy",
    "new %": "new_accuracy",
}


class Result(Mapping[str, Any]):
    """The result of a finished run or compression; it can't be changed.

    It is a mapping with the content of ``result.json``: ``result["accuracy_matrix"]``,
    ``dict(result)``. Accuracies go from 0 to 1.

    Example:
        >>> import densekd
        >>> result = densekd.run(data="digits", method="finetune", steps=1, epochs=1, quiet=True)
        >>> [classes for classes, accuracy in result.curve]
        [5, 10]
        >>> result == densekd.Result.open(result.folder)
        True
    """

    def __init__(self, record: Mapping[str, Any], folder: Path | str | None = None) -> None:
        self._record = dict(record)
        self._folder = Path(record["folder"] if folder is None else folder)

    @classmethod
    def open(cls, folder: Path | str) -> "Result":
        """Read the result of the run in a folder, without running any code that the folder has."""
        folder = expand_home(folder)
        check_links(folder)
        try:
            return cls(load_result(folder), folder)
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(f"{folder} has no result.json; repeat its run to finish it.") from None

    @property
    def record(self) -> dict[str, Any]:
        """A copy of the content of ``result.json``."""
        return copy.deepcopy(self._record)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._folder

    @property
    def settings(self) -> dict[str, Any]:
        """All settings of the run, as nested sections."""
        settings: dict[str, Any] = copy.deepcopy(self._record["config"])
        return settings

    @cached_property
    def steps(self) -> tuple[StepRecord, ...]:
        """The records after each task; empty for a compression."""
        return tuple(StepRecord.from_json(step) for step in self._record.get("steps", ()))

    @property
    def curve(self) -> list[tuple[int, float]]:
        """The number of classes seen and the accuracy on all of them, after each task."""
        return [(step.classes_seen, step.accuracy) for step in self.steps]

    @property
    def average_incremental_accuracy(self) -> float:
        """The mean of the accuracies after each task; NaN if one is unknown or there is none."""
        return self._number("average_incremental_accuracy")

    @property
    def accuracy(self) -> float:
        """The accuracy on all classes after the last task."""
        return self.steps[-1].accuracy if self.steps else self._number("accuracy")

    @property
    def forgetting(self) -> float | None:
        """The mean drop of earlier tasks from their best accuracy; None without earlier tasks."""
        lost: float | None = self._record.get("forgetting")
        return lost

    def _number(self, name: str) -> float:
        value = self._record.get(name)
        return math.nan if value is None else float(value)

    def __getitem__(self, key: str) -> Any:
        return self._record[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._record)

    def __len__(self) -> int:
        return len(self._record)

    def __repr__(self) -> str:
        return escape_controls(f"<Result: {self._headline()}; folder {self.folder}>")

    def _repr_html_(self) -> str:
        """A table of the tasks, for notebooks."""
        caption = html.escape(self._headline())
        where = f"<p>{caption}.<br>Folder: <code>{html.escape(str(self.folder))}</code></p>"
        titles = ("task", "classes", *_COLUMNS, "seconds")
        return where + html_table(titles, map(_row, self.steps))

    def _headline(self) -> str:
        steps, source = self.steps, given(self._record, "config", "data", "source")
        if not steps:
            return f"compression on {source}, accuracy {self.accuracy:.1%}"
        lost = "" if self.forgetting is None else f", forgetting {100 * self.forgetting:.1f} points"
        return (
            f"{self._record['config']['method']['name']} on {source}, "
            f"{len(steps)} task{'s' if len(steps) > 1 else ''}: average incremental accuracy "
            f"{self.average_incremental_accuracy:.1%}, last {self.accuracy:.1%}{lost}"
        )


def _row(step: StepRecord) -> list[str]:
    shares = [getattr(step, name) for name in _COLUMNS.values()]
    # NaN means unknown.
    numbers = ["-" if share != share else f"{100 * share:.1f}" for share in shares]
    return [str(step.number + 1), str(step.classes_seen), *numbers, f"{step.seconds:.1f}"]
