"""Read runs, compressions and sweeps from their folders."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from densekd.config.settings_tree import CODE_FILE, digest, flat, read_toml
from densekd.files import DamagedFile, read_sealed_json
from densekd.json_checks import is_tree
from densekd.reports.labels import (
    FILE_KEY,
    FlatSettings,
    Protocol,
    data_words,
    shortened_schedule,
)
from densekd.runs.stored import (
    CONFIG,
    SWEEP_FILE,
    check_links,
    check_steps,
    load_flatness,
    load_sweep,
    read_or_warn,
    read_result,
)

logger = logging.getLogger(__name__)

AVERAGE = "average_incremental_accuracy"
# Measures that are read from the last step, not from the whole result.
_OF_LAST_STEP = (
    *("accuracy", "base_accuracy", "old_accuracy", "new_accuracy"),
    *("mean_task_accuracy", "mean_class_accuracy", "task_incremental_accuracy"),
)


@dataclass(frozen=True, eq=False)
class ReportedRun:
    """A run, finished or not."""

    folder: Path
    config: dict[str, Any]  # its settings as stored
    steps: Sequence[dict[str, Any]]  # the records of the tasks learned so far
    result: dict[str, Any] | None  # the content of result.json; None if unfinished

    @cached_property
    def flatness(self) -> dict[str, Any] | None:
        """The content of its flatness.json, if any."""
        consequence = "It is left out; `densekd flatness` measures it again."
        return read_or_warn(load_flatness, self.folder, consequence)

    @cached_property
    def settings(self) -> FlatSettings:
        """The settings by dotted key; settings that its densekd version lacked have defaults."""
        # Imported here because it takes seconds, and `compare` doesn't need it.
        from densekd.config.schema import resolve

        return {**_completed(self.config, resolve), **self.files}

    @cached_property
    def files(self) -> FlatSettings:
        """The checksums of the files that its settings name, such as custom code, as settings."""
        consequence = "Whether it was made with the same files as other runs is not compared."
        read = partial(read_sealed_json, unsealed=True)
        found = read_or_warn(read, self.folder / CODE_FILE, consequence) or {}
        return {f"{FILE_KEY}{name}": str(checksum)[:8] for name, checksum in found.items()}

    @property
    def method(self) -> str:
        """The name of its method."""
        return str(self.settings.get("method.name", "?"))

    @cached_property
    def protocol(self) -> Protocol:
        """What other runs must share with it to be compared."""
        return Protocol.of(self.settings)

    @property
    def replicate(self) -> tuple[str, str]:
        """The seed and class order, which can differ between runs that are averaged."""
        order, tasks = self.settings.get("scenario.order"), self.settings.get("scenario.tasks")
        if isinstance(tasks, list) and any(isinstance(task, list) for task in tasks):
            order = f"tasks {digest(tasks)[:6]}"  # named classes fix the order themselves
        return str(self.settings.get("seed")), str(order)

    @property
    def seconds(self) -> float:
        """The training time, without interruptions."""
        return float(sum(step["seconds"] for step in self.steps))

    @property
    def progress(self) -> str:
        """The progress: ``finished``, or a text such as ``2 of 6 tasks``."""
        if self.result:
            return "finished"
        steps = self.settings.get("scenario.steps")  # None if it depends on the data
        first = self.settings.get("scenario.first")
        tasks = self.settings.get("scenario.tasks")
        steps = len(tasks) - 1 if isinstance(tasks, list) else steps
        total = first or ("?" if steps is None else int(steps) + 1)
        return f"{len(self.steps)} of {total} tasks"

    @property
    def commit(self) -> str:
        """The first digits of its commit, with + if files were edited; empty if unknown."""
        commit = str((self.result or {}).get("commit") or "")
        return commit[:10] + ("+" if commit.endswith("+") else "")

    @property
    def own_metrics(self) -> dict[str, float]:
        """The custom metrics after the last task, by name."""
        return dict(self.steps[-1].get("metrics") or {}) if self.steps else {}

    def measured(self, measure: str) -> float | None:
        """A measure of a finished run: an entry of its result or last step, or the training time.

        ``validation`` is the average incremental accuracy on validation images; ``metrics.NAME`` a
        custom metric after the last task. None if the run is unfinished or lacks it.
        """
        if self.result is None:
            return None
        if measure == "seconds":
            return self.seconds
        if measure == "validation":
            held = self.result.get("validation")
            return None if held is None else float(held[AVERAGE])
        if measure.startswith("metrics."):
            return self.own_metrics.get(measure.removeprefix("metrics."))
        source = self.steps[-1] if measure in _OF_LAST_STEP else self.result
        return None if source.get(measure) is None else float(source[measure])


@dataclass(frozen=True, eq=False)
class ReportedCompression:
    """A finished compression of a large network into a small one."""

    folder: Path
    result: dict[str, Any]

    @cached_property
    def settings(self) -> FlatSettings:
        """The settings by dotted key; settings that its densekd version lacked have defaults."""
        # Imported here because it takes seconds, and `compare` doesn't need it.
        from densekd.compression.config import resolve_compression

        config = self.result.get("config")
        return _completed(config, resolve_compression) if config else {}

    @property
    def method(self) -> str:
        """How the student learned."""
        return str(self.result["method"])

    @property
    def protocol(self) -> str:
        """What other compressions must share with it to be compared."""
        networks = f"{self.result['teacher']} → {self.result['student']}"
        parts = networks, data_words(self.settings), shortened_schedule(self.settings)
        return " · ".join(filter(None, parts))

    @property
    def replicate(self) -> tuple[str, str]:
        """The seed and class order, which can differ between runs that are averaged."""
        seed = self.settings.get("seed", self.folder.name)  # without settings, all count
        return str(seed), str(self.settings.get("order"))

    def measured(self, measure: str) -> float | None:
        """A number of its result; None if it is unknown."""
        known = self.result.get(measure)
        return None if known is None else float(known)


AnyRun = ReportedRun | ReportedCompression


def edited_files(runs: Iterable[AnyRun | None]) -> list[str]:
    """The files, such as custom code, that differ between the runs made with them."""
    files = [run.files for run in runs if isinstance(run, ReportedRun)]
    names = dict.fromkeys(name for each in files for name in each)
    return [
        name.removeprefix(FILE_KEY)
        for name in names
        if len({each[name] for each in files if name in each}) > 1
    ]


def _completed(config: Mapping[str, Any], resolve: Callable[[Any], Any]) -> FlatSettings:
    from densekd.config.schema import as_tree

    try:
        return flat(as_tree(resolve(config)))
    except ValueError:  # written by a version with other settings
        return flat(config)


@dataclass(frozen=True)
class FoundRuns:
    """All that was found in some folders."""

    runs: tuple[ReportedRun, ...]
    compressions: tuple[ReportedCompression, ...]
    sweeps: tuple[Path, ...]  # their folders

    @property
    def every(self) -> tuple[AnyRun, ...]:
        """Runs, then compressions."""
        return (*self.runs, *self.compressions)


def find_runs(places: Sequence[Path]) -> FoundRuns:
    """All runs in run folders, folders of run folders, or sweep folders, each once.

    Runs that can't be read are left out, with a warning. Sweeps are listed even if they are
    damaged; `densekd.reports.experiments.read_sweep` checks them.

    Raises:
        ValueError: a folder doesn't exist, or none has a run that can be read.
    """
    folders: list[Path] = []
    sweeps: list[Path] = []
    damages: list[str] = []
    for place in places:
        if not place.is_dir():
            raise ValueError(f"There is no folder {place}; name one that `densekd run` made.")
        inside = [_with_name(place), *sorted(path for path in place.iterdir() if path.is_dir())]
        sweeps += filter(_is_sweep, sorted(place.glob("sweeps/*")))
        if _is_sweep(place):
            sweeps.append(place)
            try:
                check_links(place)
                inside += [folder_of(place, job) for job in load_sweep(place)["runs"]]
            except DamagedFile as error:
                damages.append(str(error))
        names = ("result.json", "config.toml")
        folders += [path for path in inside if any((path / name).is_file() for name in names)]
    unique = {os.path.realpath(folder): folder for folder in folders}.values()
    read: list[AnyRun | None] = []
    for folder in unique:
        try:
            read.append(_read(folder))
        except ValueError as error:
            logger.warning("%s The run is left out.", error)
            damages.append(str(error))
    runs = tuple(each for each in read if isinstance(each, ReportedRun))
    compressions = tuple(each for each in read if isinstance(each, ReportedCompression))
    if not (runs or compressions):
        where = ", ".join(map(str, places)) or "no folder"
        nothing = f"There is no run in {where}; `densekd run` makes some."
        raise ValueError(next(iter(damages), nothing))
    return FoundRuns(
        runs, compressions, tuple(dict.fromkeys(Path(os.path.realpath(path)) for path in sweeps))
    )


def _with_name(folder: Path) -> Path:
    """The folder as a path that ends with its name, because pages show the name: not ``.``."""
    return Path(os.path.abspath(folder)) if folder.name in ("", "..") else folder


def folder_of(sweep: Path, job: Mapping[str, Any]) -> Path:
    """The run folder of a job in a sweep's record: beside the folder of all sweeps."""
    # A path such as ``.`` has no parent.
    return Path(os.path.abspath(sweep)).parent.parent / Path(job["folder"]).name


def _is_sweep(folder: Path) -> bool:
    """Whether a folder has a sweep's record; a sweep that has just begun has none yet."""
    return all((folder / name).is_file() for name in ("experiment.toml", SWEEP_FILE))


def _read(folder: Path) -> AnyRun | None:
    """A run or a compression; None for an unfinished compression.

    Raises:
        ValueError: it can't be read, or a link leads out of its folder.
    """
    check_links(folder)
    file = folder / "config.toml"
    if (run := finished_run(folder)) is not None or not file.exists():
        return run
    config = read_toml(file, sealed=True)
    if not (is_tree(config) and CONFIG(config)):
        raise DamagedFile(f"{file} doesn't have the settings of a run.")
    return ReportedRun(folder, config, _steps(folder), None)


def finished_run(folder: Path) -> AnyRun | None:
    """The run or compression in a folder; None if it isn't finished."""
    result = read_result(folder)
    if result is None:
        return None
    if result.get("kind") == "compression":
        return ReportedCompression(folder, result)
    return ReportedRun(folder, result["config"], result["steps"], result)


def _steps(folder: Path) -> Sequence[dict[str, Any]]:
    """The step records of an unfinished run so far."""
    # Imported here because it imports PyTorch, which finished runs don't need.
    from densekd.training.checkpoint import Checkpoints

    state = Checkpoints(folder / "learner").newest()
    if state is None:
        return []
    steps: Sequence[dict[str, Any]] = state.facts.get("steps", ())
    check_steps(folder / "learner", steps)
    return steps
