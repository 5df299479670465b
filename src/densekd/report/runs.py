"""Runs as they are found in folders: finished, unfinished, or of another kind."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from densekd.config.settings_tree import read_toml
from densekd.report.labels import Leaves, Protocol, schedule
from densekd.sweeps.experiment_file import flat


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A run, finished or not.

    Args:
        folder: where it is.
        config: its settings as they are stored with it.
        steps: the records of the tasks that it learned so far.
        result: the content of its ``result.json``; None if it isn't finished.
        flatness: the content of its ``flatness.json``, if there is one.
    """

    folder: Path
    config: dict[str, Any]
    steps: Sequence[dict[str, Any]]
    result: dict[str, Any] | None
    flatness: dict[str, Any] | None

    @cached_property
    def settings(self) -> Leaves:
        """Its settings by dotted names, with those that its version didn't have yet."""
        # Imported here, as below: it takes seconds, and finished runs can be read without.
        from densekd.config.schema import as_tree, resolve

        try:
            return flat(as_tree(resolve(self.config)))
        except ValueError:  # of a version whose settings were others
            return flat(self.config)

    @cached_property
    def protocol(self) -> Protocol:
        """What it can be compared within."""
        return Protocol.of(self.settings)

    @property
    def drawn(self) -> tuple[str, str]:
        """What may differ between runs of which a mean is taken: seed and class order."""
        return str(self.settings.get("seed")), str(self.settings.get("scenario.order"))

    @property
    def seconds(self) -> float:
        """How long it was trained, interruptions left out."""
        return float(sum(step["seconds"] for step in self.steps))

    @property
    def tasks(self) -> int | None:
        """How many tasks it has; None if that depends on data which aren't here."""
        steps = self.settings.get("scenario.steps")
        return len(self.steps) if self.result else None if steps is None else int(steps) + 1

    @property
    def progress(self) -> str:
        """How far it is, in words."""
        if self.result:
            return "finished"
        return f"{len(self.steps)} of {self.tasks or '?'} tasks"

    def measured(self, measure: str) -> float | None:
        """A number of a finished run: of its result, of its last step, or the training time."""
        if self.result is None:
            return None
        if measure == "seconds":
            return self.seconds
        known = self.steps[-1].get(measure) if measure in _LAST else self.result.get(measure)
        return None if known is None else float(known)


_LAST = ("accuracy", "base_accuracy", "old_accuracy", "new_accuracy")


@dataclass(frozen=True, eq=False)
class CompressionRun:
    """A finished compression of a large network into a small one.

    Args:
        folder: where it is.
        result: the content of its ``result.json``.
    """

    folder: Path
    result: dict[str, Any]

    @cached_property
    def settings(self) -> Leaves:
        """Its settings by dotted names."""
        return flat(self.result.get("config", {}))

    @property
    def method(self) -> str:
        """How the student learned."""
        return str(self.result["method"])

    @property
    def networks(self) -> str:
        """What was compressed into what."""
        return f"{self.result['teacher']} → {self.result['student']}"

    @property
    def protocol(self) -> str:
        """What it can be compared within."""
        parts = self.networks, str(self.settings.get("data.source", "?")), self.shortened
        return " · ".join(part for part in parts if part)

    @property
    def shortened(self) -> str:
        """How its epochs were shortened, in words; empty if they weren't."""
        return schedule(self.settings)

    def measured(self, measure: str) -> float | None:
        """One of its numbers."""
        known = self.result.get(measure)
        return None if known is None else float(known)


@dataclass(frozen=True)
class FoundRuns:
    """What there is in some folders.

    Args:
        runs: the class-incremental runs.
        compressions: those of another kind.
        sweeps: the folders of sweeps.
    """

    runs: tuple[RunRecord, ...]
    compressions: tuple[CompressionRun, ...]
    sweeps: tuple[Path, ...]


def find(places: Iterable[Path]) -> FoundRuns:
    """All runs in some places, each once.

    Args:
        places: run folders, folders of them, or folders of sweeps.

    Raises:
        ValueError: there is no such folder, or no run in any of them.
    """
    folders: list[Path] = []
    sweeps: list[Path] = []
    places = list(places)
    for place in places:
        if not place.is_dir():
            raise ValueError(f"There is no folder {place}; name one that `densekd run` made.")
        inside = [place, *sorted(path for path in place.iterdir() if path.is_dir())]
        sweeps += [path.parent for path in sorted(place.glob("sweeps/*/experiment.toml"))]
        if (place / "experiment.toml").is_file():
            sweeps.append(place)
            inside += [place.parent.parent / name for name in names_of(place)]
        folders += [path for path in inside if _is_run(path)]
    unique = {folder.resolve(): folder for folder in folders}.values()
    read = [_read(folder) for folder in unique]
    runs = tuple(each for each in read if isinstance(each, RunRecord))
    compressions = tuple(each for each in read if isinstance(each, CompressionRun))
    if not (runs or compressions):
        where = ", ".join(map(str, places)) or "no folder"
        raise ValueError(f"There is no run in {where}; `densekd run` makes some.")
    return FoundRuns(runs, compressions, tuple(dict.fromkeys(path.resolve() for path in sweeps)))


def read_json(file: Path) -> dict[str, Any]:
    """The content of a JSON file of ours."""
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} can't be read ({error}); was it cut off?") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} isn't what was written; was it changed?")
    return content


def names_of(sweep: Path) -> list[str]:
    """The names of the run folders of a sweep, which are beside the folder of all sweeps."""
    return [Path(each["folder"]).name for each in read_json(sweep / "runs.json")["runs"]]


def _is_run(folder: Path) -> bool:
    return (folder / "result.json").is_file() or (folder / "config.toml").is_file()


def _read(folder: Path) -> RunRecord | CompressionRun | None:
    """A run or a compression; None if it is an unfinished one of the latter."""
    result = _result(folder)
    if result.get("kind") == "compression":
        return CompressionRun(folder, result)
    flatness = folder / "flatness.json"
    flat = read_json(flatness) if flatness.is_file() else None
    if "steps" in result and "config" in result:
        return RunRecord(folder, result["config"], result["steps"], result, flat)
    try:
        config = read_toml(folder / "config.toml")
    except ValueError:
        return None
    if "method" not in config:
        return None
    from densekd.training.checkpoint import Checkpoints

    state = Checkpoints(folder / "learner").newest()
    return RunRecord(folder, config, [] if state is None else state.facts["steps"], None, flat)


def _result(folder: Path) -> dict[str, Any]:
    """The result of a run; empty if there is none yet, or if it has to be made again."""
    try:
        return read_json(folder / "result.json")
    except ValueError:
        return {}
