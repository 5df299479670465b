"""Check all files of a run, a compression or a sweep, and set aside those that can't be read."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from densekd.config.settings_tree import CODE_FILE, read_toml
from densekd.files import (
    DamagedFile,
    read_sealed_json,
    remove_leftovers,
    sealed_line,
    set_aside,
    write_atomically,
)
from densekd.runs.epochs import EPOCHS_FILE, epoch_lines
from densekd.runs.locks import exclusive
from densekd.runs.loggers import LOGGERS_FILE, load_loggers
from densekd.runs.predictions import read_predictions
from densekd.runs.stored import (
    FLATNESS_FILE,
    RESULT_FILE,
    STUDY_FILE,
    SWEEP_FILE,
    broken_links,
    check_steps,
    check_study,
    links_out,
    load_flatness,
    load_result,
    load_sweep,
)
from densekd.training.checkpoint import load_state

_SETTINGS = ("config.toml", "compression.toml", "experiment.toml")
_RECORDS = ("trained.json", CODE_FILE, "flatness-unfinished.json")
_STATES = (
    *("[0-9]*.json", "learner/*.json", "student.json", "network.json"),
    # Not "epochs/**/*.json", which would walk through everything behind a link called epochs.
    *("epochs/*.json", "epochs/*/*.json"),
)


@dataclass(frozen=True)
class RunCheck:
    """Which files of a run can be read, and which can't."""

    problems: tuple[str, ...]  # one sentence each
    unreadable: tuple[Path, ...]  # files
    intact: int  # the number of files that can be read
    # "missing" until the run is finished; None for a sweep or a base, which have no result.
    result: Literal["intact", "damaged", "missing"] | None


def is_run_folder(folder: Path) -> bool:
    """Whether a folder belongs to a run, a compression, a sweep, or a base that runs share."""
    names = (*_SETTINGS, "trained.json", RESULT_FILE, "learner")
    return any((folder / name).exists() for name in names)


def check_run(folder: Path) -> RunCheck:
    """Read every file of a run, a compression, a sweep, or a base that runs share.

    Raises ValueError if the folder belongs to none of these.
    """
    if not is_run_folder(folder):
        raise ValueError(f"{folder} is not the folder of a run; `densekd run` makes such folders.")
    wrong = _wrong_places(folder)
    problems, unreadable, intact = [*wrong.values()], [*wrong], 0
    for part in _parts(folder):
        if any(place in wrong for file in part.files for place in (file, *file.parents)):
            continue
        try:
            part.read()
            intact += 1
        except (ValueError, FileNotFoundError) as error:
            problems.append(str(error))
            unreadable += [file for file in part.files if file.exists()]
    result: Literal["intact", "damaged", "missing"] = "missing"
    if os.path.lexists(folder / RESULT_FILE):
        result = "damaged" if folder / RESULT_FILE in unreadable else "intact"
    shared = any((folder / name).exists() for name in ("experiment.toml", "trained.json"))
    return RunCheck(tuple(problems), tuple(unreadable), intact, None if shared else result)


def repair_run(folder: Path) -> tuple[RunCheck, Path | None]:
    """Move what can't be read to a dated folder in ``set-aside``, so that the run makes it again.

    Only temporary files of killed processes are deleted. Lines of ``epochs.jsonl`` that can be read
    are kept.

    Returns:
        What was found before the repair, and the dated folder; None if nothing was moved.

    Raises:
        Busy: another process works in the folder.
        ValueError: it isn't the folder of a run.
    """
    check_run(folder)  # raises before a lock file is made in a folder without a run
    with exclusive(folder):
        remove_leftovers(folder)
        found = check_run(folder)
        if not found.unreadable:
            return found, None
        epochs = folder / EPOCHS_FILE
        lines, _ = ([], None) if epochs.is_symlink() else epoch_lines(folder)
        place = set_aside(folder, *found.unreadable)
        if epochs in found.unreadable and lines:
            write_atomically(epochs, b"".join(sealed_line(line) + b"\n" for line in lines))
    return found, place


def _wrong_places(folder: Path) -> dict[Path, str]:
    """Links, or files in place of folders, that can't be read safely, with a sentence each."""
    epochs = folder / "epochs"
    inner = epochs.iterdir() if epochs.is_dir() and not epochs.is_symlink() else ()
    folders = [folder / "learner", folder / "predictions", epochs, *sorted(inner)]
    others = [x for x in folders if os.path.lexists(x) and not x.is_dir()]
    return {
        **{x: f"{x} is damaged: it isn't a folder." for x in others},
        **{x: f"{x} is a link to nothing." for x in broken_links(folder)},
        **{x: f"{x} is a link out of {folder}." for x in links_out(folder)},
    }


class _Part(NamedTuple):
    """Files that are read together; ``read`` raises ValueError if they are damaged."""

    read: Callable[[], object]
    files: list[Path]


def _parts(folder: Path) -> Iterator[_Part]:
    """Everything in a folder that can be checked."""
    readers: dict[str, Callable[[Path], object]] = {
        **dict.fromkeys(_SETTINGS, partial(read_toml, sealed=True)),
        **dict.fromkeys(_RECORDS, partial(read_sealed_json, unsealed=True)),
        RESULT_FILE: lambda file: load_result(file.parent),
        FLATNESS_FILE: lambda file: load_flatness(file.parent),
        SWEEP_FILE: lambda file: load_sweep(file.parent),
        STUDY_FILE: check_study,
        EPOCHS_FILE: _read_lines,
        LOGGERS_FILE: lambda file: load_loggers(file.parent),
        **{f"predictions/{x.name}": read_predictions for x in folder.glob("predictions/*.npz")},
    }
    for name, read in readers.items():
        if (folder / name).exists():
            yield _Part(partial(read, folder / name), [folder / name])
    for file in sorted(file for pattern in _STATES for file in folder.glob(pattern)):
        path = file.with_suffix("")
        tensors = sorted(path.parent.glob(f"{path.name}-*.safetensors"))
        yield _Part(partial(_load, path), [file, *tensors])


def _load(path: Path) -> None:
    state = load_state(path)
    if path.parent.name == "learner":
        check_steps(path, state.facts.get("steps"))


def _read_lines(file: Path) -> None:
    _, problem = epoch_lines(file.parent)
    if problem is not None:
        raise DamagedFile(problem)
