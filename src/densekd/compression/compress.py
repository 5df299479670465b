"""Compression: a small network learns all classes from a large one, by dense distillation."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from densekd.compression.config import CompressionConfig, compression_folder
from densekd.compression.teacher import TrainedTeacher, take_teacher, teacher_file
from densekd.compression.trainer import Taught, Trainer
from densekd.config.schema import as_toml, as_tree
from densekd.files import write_atomically, write_json
from densekd.runs.build import make_engine
from densekd.runs.locks import exclusive
from densekd.runs.record import commit, machine, versions
from densekd.runs.run import RunObserver, read_result
from densekd.training.checkpoint import Checkpoints, save_state
from densekd.training.engine import Engine
from densekd.training.learner import Learner
from densekd.training.phases import ExternalTeacher


def compress(
    config: CompressionConfig, out: Path, observer: RunObserver | None = None
) -> dict[str, Any]:
    """Train a student by a teacher, which is trained before or given; what is done is only read.

    Args:
        config: what to do, as `densekd.compression.config.resolve_compression` makes it of
            a tree of settings.
        out: where the folders of compressions are, and ``teachers``, which they share.
        observer: whom to tell. There are two tasks: 0 is the teacher's, 1 the student's.

    Returns:
        The content of ``result.json``.
    """
    engine = make_engine(config)
    engine.launch()
    observer = observer if observer is not None and engine.first else RunObserver()
    folder = compression_folder(config, out)
    with exclusive(folder, engine):
        finished = read_result(folder)
        return _finish(config, folder, engine, observer) if finished is None else finished


def group_sizes(classes: int, groups: int) -> tuple[int, ...]:
    """The sizes of ``groups`` blocks that classes are divided into, nearly equal."""
    if groups > classes:
        raise ValueError(f"{classes} classes can't be divided into {groups} groups; take fewer.")
    return tuple(len(part) for part in np.array_split(np.arange(classes), groups))


def _finish(
    config: CompressionConfig, folder: Path, engine: Engine, observer: RunObserver
) -> dict[str, Any]:
    commit()  # asked now, before the source is worked on
    trainer = Trainer(config, engine, observer)
    sizes = group_sizes(len(trainer.tasks[1].classes), config.groups)
    student = trainer.pupil(config.student, config.make())
    if engine.first:
        write_atomically(folder / "compression.toml", as_toml(config))
    # Alone, there is nothing to wait for.
    file = None if config.method == "alone" else teacher_file(trainer, folder.parent)
    ready = file is None or file.with_suffix(".json").exists()
    observer.started(folder, trainer.tasks, int(ready))
    teacher, external_teacher = None, None
    if file is not None:
        teacher = take_teacher(trainer, file)
        _check_alike(teacher.learner, student)
        external_teacher = ExternalTeacher(teacher.learner.network, sizes)
    taught = trainer.train(student, 1, folder, external_teacher)
    result = {
        **_reached(config, taught, teacher),
        "groups": sizes,
        "teacher_file": None if file is None else str(file.with_suffix(".json").resolve()),
        "config": as_tree(config),
        "precision": engine.precision,
        "engine": engine.describe(),
        "versions": versions(),
        "commit": commit(),
        "machine": machine(engine.device),
        "folder": str(folder),
    }
    if engine.first:
        save_state(folder / "student", student.state())
        write_json(folder / "result.json", result)
        Checkpoints(folder / "epochs").clear()
    engine.broadcast(True)
    return read_result(folder) or result


def _reached(
    config: CompressionConfig, taught: Taught, teacher: TrainedTeacher | None
) -> dict[str, Any]:
    return {
        "kind": "compression",
        "teacher": config.teacher,
        "student": config.student,
        "method": config.method,
        "accuracy": taught.record.accuracy,
        "teacher_accuracy": None if teacher is None else teacher.accuracy,
        "seconds": taught.record.seconds,
        "teacher_seconds": None if teacher is None else teacher.seconds,
        "images_per_second": taught.record.images_per_second,
        "epochs": taught.epochs,
    }


def _check_alike(teacher: Learner, student: Learner) -> None:
    """Refuse a pretrained network beside one that takes images normalised in another way."""
    one, other = teacher.settings.augment, student.settings.augment
    if not all(torch.equal(one.get_buffer(b), other.get_buffer(b)) for b in ("scale", "shift")):
        raise ValueError(
            "Teacher and student normalise images differently, because a pretrained network brings "
            "its own mean and deviation; choose two networks that agree."
        )
