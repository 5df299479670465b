"""Run folders as runs leave them, with numbers that took no training."""

import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from densekd.config.schema import Config, as_toml, as_tree, resolve
from densekd.config.settings_tree import override
from densekd.data.scenario import task_sizes
from densekd.files import write_atomically, write_json
from densekd.metrics import Matrix, step_metrics
from densekd.runs.record import StepRecord, result_of, versions
from densekd.runs.run import run_folder
from densekd.training.checkpoint import Checkpoints, State

_PER_CLASS = 40


def made(out: Path, *assignments: str, tasks: int | None = None) -> Path:
    """A run of ten classes, whose accuracies depend on its method, seed and order alone.

    Args:
        out: where run folders are.
        assignments: its settings, as ``-o`` takes them.
        tasks: how many it has learned; all of them, and finished, unless given.
    """
    config = resolve(override({}, assignments))
    folder = run_folder(config, out)
    write_atomically(folder / "config.toml", as_toml(config))
    scenario = config.scenario
    sizes = task_sizes(10, steps=scenario.steps, base=scenario.base, increment=scenario.increment)
    records, last = _records(config, sizes[:tasks])
    if tasks is None:
        facts = {"config": as_tree(config), "versions": versions(), "folder": str(folder)}
        write_json(folder / "result.json", {**result_of(records, last), **facts})
    elif tasks:
        state = State({"steps": [asdict(record) for record in records]}, {})
        Checkpoints(folder / "learner").save(tasks - 1, state)
    return folder


def _records(config: Config, sizes: list[int]) -> tuple[list[StepRecord], Matrix]:
    drawn = f"{config.method.name} {config.seed} {config.scenario.order}"
    generator = np.random.default_rng(zlib.crc32(drawn.encode()))
    records, confusion = [], np.zeros((0, 0), np.int64)
    for number, size in enumerate(sizes):
        seen = sum(sizes[: number + 1])
        confusion = np.zeros((seen, seen), np.int64)
        right = generator.integers(_PER_CLASS // 2, _PER_CLASS, seen)
        confusion[np.arange(seen), np.arange(seen)] = right
        confusion[np.arange(seen), (np.arange(seen) + 1) % seen] += _PER_CLASS - right
        metrics = step_metrics(confusion, sizes[: number + 1])
        classes = tuple(f"class {i}" for i in range(seen - size, seen))
        extra: dict[str, Any] = {"head_accuracy": metrics.accuracy, "nme_accuracy": None}
        extra |= {"seconds": 1.5 + number, "images_per_second": 100.0, "notes": {}}
        records.append(StepRecord(number, classes, **asdict(metrics), **extra))
    return records, confusion


def sweep(out: Path, name: str, experiment: str, points: Mapping[Path, Mapping[str, Any]]) -> Path:
    """The record of a sweep whose runs are all finished, but for those without a folder."""
    folder = out / "sweeps" / name
    write_atomically(folder / "experiment.toml", experiment)
    runs = [
        {
            "folder": f"../../{run.name}",
            "point": dict(point),
            "state": "finished" if run.is_dir() else "failed",
            "reason": None if run.is_dir() else "the disk is full.",
            "seconds": 2.0,
        }
        for run, point in points.items()
    ]
    write_json(folder / "runs.json", {"scale": None, "settings": {}, "seconds": 9.0, "runs": runs})
    return folder
