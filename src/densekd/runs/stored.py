"""Read the files of a run folder, and check them: someone else may have written them.

Nothing here imports PyTorch, because listing and comparing runs doesn't need it.
"""

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from densekd.files import ASIDE, DamagedFile, is_inside, read_sealed_json
from densekd.json_checks import (
    JsonCheck,
    is_count,
    is_measure,
    is_real,
    is_text,
    is_tree,
    list_of,
    optional,
    record,
    table_of,
    wrong_entry,
)

logger = logging.getLogger(__name__)

RESULT_FILE = "result.json"
FLATNESS_FILE = "flatness.json"
SWEEP_FILE = "runs.json"
STUDY_FILE = "study.db"  # the database of a search by Optuna

_METRICS = {
    "classes_seen": is_count,
    **{f"{which}accuracy": is_measure for which in ("", "base_", "old_", "new_")},
    "task_accuracies": list_of(is_measure),
}
# Metrics that earlier versions lacked.
_LATER_METRICS = {
    "class_accuracies": list_of(is_measure),
    "mean_task_accuracy": is_measure,
    "mean_class_accuracy": is_measure,
    "task_incremental_accuracy": is_measure,
    "task_incremental_accuracies": list_of(is_measure),
}
_STEP = record(
    {
        **_METRICS,
        "number": is_count,
        "classes": list_of(is_text),
        "head_accuracy": is_measure,
        "nme_accuracy": is_measure,
        "seconds": is_real,
        "images_per_second": is_real,
        "notes": table_of(is_measure),
    },
    {
        **_LATER_METRICS,
        "validation": optional(record(_METRICS, _LATER_METRICS)),
        "metrics": table_of(is_measure),
        "forward_transfer": is_measure,
    },
)
_STEPS = list_of(_STEP, least=1)  # the records of the tasks that were learned

# The entries that are read from stored settings, even if this version would refuse the settings.
CONFIG = record(
    {
        "method": record({"name": is_text}),
        "data": record({"source": is_text}, {"validation": is_measure}),
    },
    {
        "epochs": optional(is_real),
        "scenario": record(
            {},
            {
                **{name: optional(is_count) for name in ("steps", "first")},
                "tasks": lambda value: is_text(value) or optional(list_of(_is_task))(value),
            },
        ),
    },
)
_AVERAGES = (
    *("average_incremental_accuracy", "average_incremental_accuracy_nme"),
    *("average_mean_task_accuracy", "average_mean_class_accuracy"),
    *("average_task_incremental_accuracy", "last_accuracy", "learning_accuracy"),
    *("forgetting", "backward_transfer", "forward_transfer"),
)
_TOTALS = {name: is_measure for name in _AVERAGES}
_RUN = {
    "config": lambda value: is_tree(value) and CONFIG(value),
    "average_incremental_accuracy": is_measure,
    "forgetting": is_measure,
}
_COMPRESSION = {
    **{name: is_text for name in ("teacher", "student", "method")},
    "epochs": list_of(record({"epoch": is_count}, {"loss": is_measure})),
    "accuracy": is_measure,
}
_MORE_OF_COMPRESSION = {
    "config": is_tree,
    **{name: is_measure for name in ("teacher_accuracy", "teacher_seconds")},
    **{name: is_real for name in ("seconds", "images_per_second")},
    "groups": list_of(is_count),
    "teacher_file": optional(is_text),
}
_ORIGIN = {
    **{name: optional(is_tree) for name in ("engine", "versions")},
    "machine": optional(
        record(
            {},
            {
                **{name: optional(is_text) for name in ("processor", "accelerator")},
                **{name: optional(is_count) for name in ("cores", "memory")},
            },
        )
    ),
    **{name: optional(is_text) for name in ("commit", "combination", "folder", "precision")},
    "validation": optional(record({"average_incremental_accuracy": is_measure}, _TOTALS)),
    "accuracy_matrix": list_of(list_of(is_measure)),
    "confusion_matrix": list_of(list_of(is_count)),
}
_FLATNESS = {
    "sigmas": list_of(is_real, least=1),
    "losses": list_of(list_of(is_measure, least=1), least=1),
    **{name: is_count for name in ("draws", "images")},
}
_SWEEP = {
    "runs": list_of(
        record(
            {"folder": is_text, "point": is_tree},
            {"state": is_text, "reason": optional(is_text), "seconds": is_real},
        )
    )
}
_MORE_OF_SWEEP = {
    "settings": optional(is_tree),
    "seconds": is_measure,
    "left_out": list_of(record({"point": is_tree, "reason": is_text})),
    "search": record(
        {
            "keys": list_of(is_text),
            "picks": list_of(
                record(
                    {"cell": is_tree, "values": is_tree},
                    {"validation": is_measure, "trials": is_count},
                )
            ),
        }
    ),
}


def _is_task(value: Any) -> bool:
    return is_count(value) or list_of(is_text)(value)


def load_result(folder: Path) -> dict[str, Any]:
    """Read a folder's ``result.json``, of a run or of a compression.

    Raises:
        DamagedFile: it isn't what was written.
        FileNotFoundError: there is none, because the run isn't finished.
    """
    file = folder / RESULT_FILE
    result = read_sealed_json(file, unsealed=True)
    if result.get("kind") == "compression":
        check_entries(file, result, _COMPRESSION, {**_ORIGIN, **_MORE_OF_COMPRESSION})
    else:
        check_entries(file, result, _RUN, {**_ORIGIN, **_TOTALS})
        check_steps(file, result.get("steps"))
    return result


def read_result(folder: Path) -> dict[str, Any] | None:
    """Read a folder's ``result.json``; None if it is missing, or, with a warning, if damaged."""
    consequence = "The run counts as unfinished; repeat it to write the file again."
    return read_or_warn(load_result, folder, consequence)


def read_or_warn(
    load: Callable[[Path], dict[str, Any]], path: Path, consequence: str
) -> dict[str, Any] | None:
    """Return what ``load`` reads; None if the file is missing, or, with a warning, if damaged.

    The warning ends with a sentence about the ``consequence``.
    """
    try:
        return load(path)
    except FileNotFoundError:
        return None
    except DamagedFile as error:
        logger.warning("%s %s", error, consequence)
        return None


def load_flatness(folder: Path) -> dict[str, Any]:
    """Read a folder's ``flatness.json``; raises the errors of `load_result`."""
    file = folder / FLATNESS_FILE
    content = read_sealed_json(file, unsealed=True)
    check_entries(file, content, _FLATNESS)
    rows, draws = content["losses"], content["draws"]
    if len(rows) != len(content["sigmas"]) or any(len(row) != draws for row in rows):
        raise DamagedFile(f"{file} is damaged: it doesn't have a loss for each sigma and draw.")
    return content


def check_links(folder: Path) -> None:
    """Raise `DamagedFile` if a link in a folder leads out of it.

    Otherwise, a folder made by someone else could make us read or write any file of this computer.
    """
    for link in links_out(folder)[:1]:
        raise DamagedFile(f"{link} is a link out of {folder}; put a copy in its place.")


def links_out(folder: Path) -> list[Path]:
    """The links in a folder that lead out of it, except those that were set aside."""
    return [link for link in _links(folder) if not is_inside(link, folder)]


def broken_links(folder: Path) -> list[Path]:
    """The links in a folder that lead to nothing, except those that were set aside."""
    return [link for link in _links(folder) if not link.exists()]


def _links(folder: Path) -> Iterator[Path]:
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != ASIDE]
        yield from (x for name in (*folders, *files) if (x := Path(path, name)).is_symlink())


def load_sweep(folder: Path) -> dict[str, Any]:
    """Read the ``runs.json`` of a sweep's folder; raises the errors of `load_result`."""
    file = folder / SWEEP_FILE
    content = read_sealed_json(file, unsealed=True)
    check_entries(file, content, _SWEEP, _MORE_OF_SWEEP)
    return content


def check_study(file: Path) -> None:
    """Raise `DamagedFile` if the file isn't an SQLite database, or is an inconsistent one."""
    try:
        with closing(sqlite3.connect(file)) as database:
            found = str(database.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:  # a sweep is writing to it now
            return
        found = str(error)
    if found != "ok":
        raise DamagedFile(f"{file} is damaged: {' '.join(found.split())}.")


def check_steps(file: Path, steps: Any) -> None:
    """Raise `DamagedFile` unless these are the records of consecutive tasks from the first on."""
    if not _STEPS(steps) or any(
        step["number"] != number or len(step["task_accuracies"]) != number + 1
        for number, step in enumerate(steps)
    ):
        raise DamagedFile(f"{file} is damaged: its steps aren't what was saved.")


def check_entries(
    file: Path,
    content: Mapping[str, Any],
    needed: Mapping[str, JsonCheck],
    more: Mapping[str, JsonCheck] | None = None,
) -> None:
    """Raise `DamagedFile` unless a file's content is a `json_checks.record` of these entries."""
    wrong = wrong_entry(content, needed, more)
    if wrong is not None:
        raise DamagedFile(f"{file} is damaged: its entry {wrong!r} isn't what was saved.")
