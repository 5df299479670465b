"""Teachers: given, or trained once for all compressions that agree in the teacher's settings."""

import logging
from pathlib import Path
from typing import NamedTuple

from densekd.compression.config import teacher_settings
from densekd.compression.trainer import Trainer
from densekd.runs.record import read_result
from densekd.runs.shared import SharedTraining
from densekd.training.checkpoint import DamagedCheckpoint, State, load_state, save_state
from densekd.training.evaluate import evaluate
from densekd.training.learner import Learner

logger = logging.getLogger(__name__)


class TrainedTeacher(NamedTuple):
    """A learner that has learned all classes, its test accuracy, and its training time."""

    learner: Learner
    accuracy: float
    seconds: float


def teacher_path(trainer: Trainer, out: Path) -> Path:
    """Where the trained teacher is, or will be: the path of its state, without suffix.

    Raises:
        ValueError: if the settings name a teacher that isn't there.
    """
    if trainer.config.teacher_file is not None:
        return _given(trainer.config.teacher_file.expanduser())
    return _shared(trainer, out / "teachers").folder / "network"


def get_teacher(trainer: Trainer, path: Path) -> TrainedTeacher:
    """Load the teacher at a path given by `teacher_path`, or train it there."""
    if trainer.config.teacher_file is not None:
        teacher = _load(trainer, path)
        # It may have been tested on other images.
        confusion = evaluate(teacher.learner, trainer.tasks[0].test).head
        return teacher._replace(accuracy=float(confusion.trace() / confusion.sum()))
    shared = _shared(trainer, path.parent.parent)
    with shared.locked("teacher", trainer.observer):
        try:
            teacher = _load(trainer, path)
        except FileNotFoundError:
            return _train(trainer, path)
        except DamagedCheckpoint as error:
            logger.warning("%s The teacher is trained again.", error)
            return _train(trainer, path)
        trainer.observer.shared_base(waiting=False)
        return teacher


def _shared(trainer: Trainer, teachers: Path) -> SharedTraining:
    settings = teacher_settings(trainer.config)
    return SharedTraining.of(teachers, settings, trainer.tasks[0].train, trainer.engine)


def _given(file: Path) -> Path:
    """Find the state in a ``network.json``, in its folder, or in a compression's folder."""
    if file.name == "network.json" and file.is_file():
        return file.with_suffix("")
    if (file / "network.json").is_file():
        return file / "network"
    had = (read_result(file) or {}).get("teacher_file") if file.is_dir() else None
    if had is None:
        raise ValueError(
            f"There is no trained teacher in {file}; "
            "name the folder of an earlier `densekd compress`, or one in its folder teachers."
        )
    return Path(had).with_suffix("")


def _new_teacher(trainer: Trainer) -> Learner:
    return trainer.new_learner(trainer.config.teacher, trainer.config.make_teacher())


def _load(trainer: Trainer, path: Path) -> TrainedTeacher:
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
    learner = _new_teacher(trainer)
    learner.load_state(State(state.facts["learner"], state.tensors))
    return TrainedTeacher(learner, state.facts["accuracy"], state.facts["seconds"])


def _train(trainer: Trainer, path: Path) -> TrainedTeacher:
    learner = _new_teacher(trainer)
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
    return TrainedTeacher(learner, record.accuracy, record.seconds)
