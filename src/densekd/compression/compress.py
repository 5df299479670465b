"""Compression: a small network learns all classes from a large one, by dense distillation.

The teacher is given, or trained once for all compressions with the same teacher settings.
"""

import dataclasses
import logging
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from densekd.compression.config import CompressionConfig, compression_folder, teacher_settings
from densekd.config.file_checksums import named_files, write_files
from densekd.config.schema import as_toml, as_tree
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario
from densekd.files import DamagedFile, expand_home, write_sealed_text
from densekd.methods.method import Method
from densekd.metrics import accuracy
from densekd.runs.build import limit_per_class, load_dataset, make_settings
from densekd.runs.epochs import EpochLog, read_epochs
from densekd.runs.observer import RunObserver, RunObservers
from densekd.runs.ranks import check_same_images
from densekd.runs.record import StepRecord, store_result
from densekd.runs.run import in_folder
from densekd.runs.shared import SharedTraining
from densekd.runs.stored import read_result
from densekd.training.checkpoint import (
    Checkpoints,
    State,
    load_state,
    save_state,
    sound_content,
)
from densekd.training.engine import Engine
from densekd.training.evaluate import evaluate
from densekd.training.learner import Learner
from densekd.training.phases import ExternalTeacher
from densekd.training.settings import draw_backbone

logger = logging.getLogger(__name__)


def compress(
    config: CompressionConfig, out: Path, observer: RunObserver | None = None
) -> dict[str, Any]:
    """Train a student with a teacher, which is given or trained first.

    If the compression is finished, only its result is read; an interrupted one is resumed.

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
        write_sealed_text(folder / "compression.toml", as_toml(config))
        write_files(folder, named_files(config))
    file, teacher, external_teacher = None, None, None
    if config.method != "alone":
        _check_normalisation(trainer.new_teacher(), student)
        file = _teacher_file(trainer, folder.parent / "teachers")
    observer.started(folder, trainer.tasks, int(file is None or file.exists()))
    if file is not None:
        teacher = _get_teacher(trainer, file)
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
        "teacher_accuracy": None if teacher is None else teacher.accuracy,
        "teacher_seconds": None if teacher is None else teacher.seconds,
        "seconds": record.seconds,
        "images_per_second": record.images_per_second,
        "epochs": epochs,
        "groups": sizes,
        "teacher_file": None if file is None else str(file.resolve()),
    }
    result = store_result(folder, reached, as_tree(config), engine)
    trainer.clear_checkpoints(folder)
    return result


def _check_normalisation(teacher: Learner, student: Learner) -> None:
    """Refuse two networks that expect differently normalised images."""
    one, other = teacher.settings.augment, student.settings.augment
    if not all(torch.equal(one.get_buffer(b), other.get_buffer(b)) for b in ("scale", "shift")):
        raise ValueError(
            "Teacher and student normalise images differently, because a pretrained network brings "
            "its own mean and deviation; choose two networks that agree."
        )


class Trainer:
    """Makes, trains and tests teacher (task 0) and student (task 1) on the same data."""

    def __init__(self, config: CompressionConfig, engine: Engine, observer: RunObserver) -> None:
        self.config, self.engine, self.observer = config, engine, observer
        whole = load_dataset(config, observer.loading)
        # One task with all classes, in the order in which they are divided into groups.
        scenario = Scenario.of(whole, base=len(whole.classes), steps=0, order=config.order)
        # Only now, since the order ``icarl`` depends on the number of images.
        self.dataset = limit_per_class(whole, config.data.per_class, config.data.test_per_class)
        scenario = dataclasses.replace(scenario, dataset=self.dataset)
        # Task numbers differ, so that teacher and student draw different batches, augmentations and
        # heads. Backbones don't depend on them: two of the same architecture begin alike.
        self.tasks = scenario[0], dataclasses.replace(scenario[0], number=1)
        check_same_images(engine, self.tasks[:1])

    def new_learner(self, network: str, method: Method) -> Learner:
        """Make an untrained learner that keeps no exemplars."""
        backbone = draw_backbone(network, self.config.seed)
        normalisation = self.dataset.mean, self.dataset.std
        settings = make_settings(self.config, normalisation, backbone, self.engine)
        return Learner(backbone, method, ExemplarMemory(Quota(0)), settings)

    def new_teacher(self) -> Learner:
        """Make an untrained teacher."""
        return self.new_learner(self.config.teacher, self.config.make_teacher())

    def train(
        self,
        learner: Learner,
        number: int,
        folder: Path,
        external_teacher: ExternalTeacher | None = None,
    ) -> tuple[StepRecord, list[dict[str, Any]]]:
        """Train a learner on task ``number``, or resume it from ``folder``, and test it.

        Returns:
            The test record, and ``epoch``, ``loss`` and ``losses`` of each epoch.
        """
        task = self.tasks[number]
        self.observer.training(number, task.classes)
        writers = [EpochLog(None, folder)] if self.engine.first else []
        learned = learner.learn(
            task,
            callback=RunObservers(self.observer, *writers),
            checkpoints=Checkpoints(folder / "epochs"),
            external_teacher=external_teacher,
        )
        record = StepRecord.of(task, evaluate(learner, task.test), learner, learned)
        self.observer.evaluated(record)
        epochs = [
            {"epoch": e["epoch"], "loss": sum(e["losses"].values()), "losses": e["losses"]}
            for e in read_epochs(folder)
        ]
        return record, epochs

    def clear_checkpoints(self, folder: Path) -> None:
        """Remove the checkpoints of a learner that is trained and saved."""
        if self.engine.first:
            Checkpoints(folder / "epochs").clear()


class _TrainedTeacher(NamedTuple):
    """A learner that has learned all classes, its test accuracy, and its training time."""

    learner: Learner
    accuracy: float
    seconds: float


def _teacher_file(trainer: Trainer, teachers: Path) -> Path:
    """Where the trained teacher is, or will be: the ``network.json`` of its state."""
    given = trainer.config.teacher_file
    if given is None:
        return _shared(trainer, teachers).folder / "network.json"
    given = expand_home(given)
    for file in (given, given / "network.json"):
        if file.name == "network.json" and file.is_file():
            return file
    had = (read_result(given) or {}).get("teacher_file") if given.is_dir() else None
    if had is not None:
        # The folder with all compressions and teachers might have been moved.
        for file in (Path(had), given.parent.joinpath(*Path(had).parts[-3:])):
            if file.is_file():
                return file
    raise ValueError(
        f"There is no trained teacher in {given}; "
        "name the folder of an earlier `densekd compress`, or one in its folder teachers."
    )


def _get_teacher(trainer: Trainer, file: Path) -> _TrainedTeacher:
    """Load the teacher in a file given by `_teacher_file`, or train it there."""
    path = file.with_suffix("")
    if trainer.config.teacher_file is not None:
        with sound_content(file):
            teacher = _load_teacher(trainer, path)
        # Its saved accuracy might be on other test images.
        confusion = evaluate(teacher.learner, trainer.tasks[0].test).head
        return teacher._replace(accuracy=accuracy(confusion))
    with _shared(trainer, path.parent.parent).locked("teacher", trainer.observer):
        try:
            teacher = _load_teacher(trainer, path)
        except FileNotFoundError:
            return _train_teacher(trainer, path)
        except DamagedFile as error:
            logger.warning("%s The teacher is trained again.", error)
            return _train_teacher(trainer, path)
        trainer.observer.shared_base(waiting=False)
        return teacher


def _shared(trainer: Trainer, teachers: Path) -> SharedTraining:
    settings = teacher_settings(trainer.config)
    return SharedTraining(teachers, settings, trainer.tasks[0].train, trainer.engine)


def _load_teacher(trainer: Trainer, path: Path) -> _TrainedTeacher:
    state, wanted = load_state(path), trainer.config.teacher
    if state.facts["network"] != wanted:
        raise ValueError(
            f"The teacher in {path.parent} is a {state.facts['network']}, not a {wanted}."
        )
    if state.facts["learner"]["classes"] != list(trainer.tasks[0].classes):
        raise ValueError(
            f"The teacher in {path.parent} has learned other classes than {trainer.dataset.name} "
            "has, or in another order."
        )
    learner = trainer.new_teacher()
    learner.load_state(State(state.facts["learner"], state.tensors))
    return _TrainedTeacher(learner, state.facts["accuracy"], state.facts["seconds"])


def _train_teacher(trainer: Trainer, path: Path) -> _TrainedTeacher:
    learner = trainer.new_teacher()
    record, epochs = trainer.train(learner, 0, path.parent)
    if trainer.engine.first:
        state = learner.state()
        facts = {
            "network": trainer.config.teacher,
            "learner": state.facts,
            "accuracy": record.accuracy,
            "seconds": record.seconds,
            "epochs": epochs,
        }
        save_state(path, State(facts, state.tensors))
    trainer.clear_checkpoints(path.parent)
    return _TrainedTeacher(learner, record.accuracy, record.seconds)
