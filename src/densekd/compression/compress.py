"""Compression: a small network learns all classes from a large one, by dense distillation."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from densekd.compression.config import CompressionConfig, compression_folder
from densekd.compression.teacher import TrainedTeacher, get_teacher, teacher_path
from densekd.compression.trainer import Trainer
from densekd.config.schema import as_toml, as_tree
from densekd.files import write_atomically
from densekd.runs.observer import RunObserver
from densekd.runs.record import store_result
from densekd.runs.run import in_folder
from densekd.training.checkpoint import save_state
from densekd.training.engine import Engine
from densekd.training.learner import Learner
from densekd.training.phases import ExternalTeacher


def compress(
    config: CompressionConfig, out: Path, observer: RunObserver | None = None
) -> dict[str, Any]:
    """Train a student with a teacher, which is trained first or given.

    The result of a finished compression is only read; an interrupted one is resumed.

    Args:
        config: the settings, from `densekd.compression.config.resolve_compression`.
        out: the folder for compressions, and for the ``teachers`` that they share.
        observer: receives progress. Task 0 is the teacher's, task 1 the student's.

    Returns:
        The content of ``result.json``.
    """
    folder = compression_folder(config, out)
    return in_folder(config, folder, observer, partial(_finish, config, folder))


def group_sizes(classes: int, groups: int) -> tuple[int, ...]:
    """Divide classes into ``groups`` blocks of nearly equal size."""
    if groups > classes:
        raise ValueError(f"{classes} classes can't be divided into {groups} groups; take fewer.")
    return tuple(len(part) for part in np.array_split(np.arange(classes), groups))


def _finish(
    config: CompressionConfig, folder: Path, engine: Engine, observer: RunObserver
) -> dict[str, Any]:
    trainer = Trainer(config, engine, observer)
    sizes = group_sizes(len(trainer.tasks[1].classes), config.groups)
    student = trainer.new_learner(config.student, config.make())
    if engine.first:
        write_atomically(folder / "compression.toml", as_toml(config))
    path = None if config.method == "alone" else teacher_path(trainer, folder.parent)
    teacher_ready = path is None or path.with_suffix(".json").exists()
    observer.started(folder, trainer.tasks, int(teacher_ready))
    teacher, external_teacher = None, None
    if path is not None:
        teacher = get_teacher(trainer, path)
        _check_normalisation(teacher.learner, student)
        external_teacher = ExternalTeacher(teacher.learner.network, sizes)
    record, epochs = trainer.train(student, 1, folder, external_teacher)
    if engine.first:
        save_state(folder / "student", student.state())
    reached = {
        "kind": "compression",
        "teacher": config.teacher,
        "student": config.student,
        "method": config.method,
        "accuracy": record.accuracy,
        **_teacher_facts(teacher),
        "seconds": record.seconds,
        "images_per_second": record.images_per_second,
        "epochs": epochs,
        "groups": sizes,
        "teacher_file": None if path is None else str(path.with_suffix(".json").resolve()),
    }
    result = store_result(folder, reached, as_tree(config), engine)
    trainer.clear_checkpoints(folder)
    return result


def _teacher_facts(teacher: TrainedTeacher | None) -> dict[str, float | None]:
    if teacher is None:
        return {"teacher_accuracy": None, "teacher_seconds": None}
    return {"teacher_accuracy": teacher.accuracy, "teacher_seconds": teacher.seconds}


def _check_normalisation(teacher: Learner, student: Learner) -> None:
    """Refuse two networks that expect differently normalised images."""
    one, other = teacher.settings.augment, student.settings.augment
    if not all(torch.equal(one.get_buffer(b), other.get_buffer(b)) for b in ("scale", "shift")):
        raise ValueError(
            "Teacher and student normalise images differently, because a pretrained network brings "
            "its own mean and deviation; choose two networks that agree."
        )
