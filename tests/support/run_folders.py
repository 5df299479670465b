"""Run folders and sweep records with made-up results, written without training."""

import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from densekd.config.schema import Config, as_toml, as_tree, resolve
from densekd.config.settings_tree import override
from densekd.data.scenario import task_sizes
from densekd.files import write_sealed_json, write_sealed_text
from densekd.metrics import Matrix, step_metrics
from densekd.runs.record import StepRecord, result_of, versions
from densekd.runs.run import run_folder
from densekd.training.checkpoint import Checkpoints, State

_PER_CLASS = 40


def write_run(out: Path, *assignments: str, classes: int = 10, tasks: int | None = None) -> Path:
    """Write the folder of a run, with accuracies drawn from its method and seeds.

    Args:
        out: the folder of run folders.
        assignments: settings as ``-o`` takes them.
        classes: how many classes its data has.
        tasks: write an unfinished run that has learned this many tasks.
    """
    config = resolve(override({}, assignments))
    folder = run_folder(config, out)
    write_sealed_text(folder / "config.toml", as_toml(config))
    scenario = config.scenario
    steps, base, increment = scenario.steps, scenario.base, scenario.increment
    sizes = task_sizes(classes, steps=steps, base=base, increment=increment)
    records, last = _records(config, sizes[:tasks])
    if tasks is None:
        facts = {"config": as_tree(config), "versions": versions(), "folder": str(folder)}
        write_sealed_json(folder / "result.json", {**result_of(records, last), **facts})
    elif tasks:
        state = State({"steps": [asdict(record) for record in records]}, {})
        Checkpoints(folder / "learner").save(tasks - 1, state)
    return folder


def made_up_result(average: float) -> dict[str, Any]:
    """The result of a run of one task that reached an average incremental accuracy."""
    config = resolve({})
    records, last = _records(config, [2])
    result = {**result_of(records, last), "config": as_tree(config)}
    return {**result, "average_incremental_accuracy": average}


def rewrite(file: Path, content: Mapping[str, Any]) -> None:
    """Write the changed content of a JSON file, with a checksum that is right."""
    write_sealed_json(file, {name: value for name, value in content.items() if name != "sha256"})


def _records(config: Config, sizes: list[int]) -> tuple[list[StepRecord], Matrix]:
    identity = f"{config.method.name} {config.seed} {config.scenario.order}"
    generator = np.random.default_rng(zlib.crc32(identity.encode()))
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
        records.append(StepRecord(number=number, classes=classes, **asdict(metrics), **extra))
    return records, confusion


def write_sweep(
    out: Path, name: str, experiment: str, points: Mapping[Path, Mapping[str, Any]]
) -> Path:
    """Write the record of a finished sweep; runs whose folder doesn't exist count as failed."""
    folder = out / "sweeps" / name
    write_sealed_text(folder / "experiment.toml", experiment)
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
    record: dict[str, Any] = {"scale": None, "settings": {}, "seconds": 9.0, "runs": runs}
    write_sealed_json(folder / "runs.json", record)
    return folder
