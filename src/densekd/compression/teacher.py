"""Teachers: trained once for all compressions that agree in what matters to them, or given."""

import logging
from pathlib import Path
from typing import NamedTuple

from densekd.compression.config import teacher_settings
from densekd.compression.trainer import Trainer
from densekd.config.settings_tree import digest
from densekd.data.dataset import fingerprint
from densekd.runs.locks import wait
from densekd.runs.record import versions
from densekd.runs.run import read_result
from densekd.training.checkpoint import (
    Checkpoints,
    DamagedCheckpoint,
    State,
    load_state,
    save_state,
)
from densekd.training.evaluate import evaluate
from densekd.training.learner import Learner

logger = logging.getLogger(__name__)


class TrainedTeacher(NamedTuple):
    """A network that has learned all classes.

    Args:
        learner: has the network.
        accuracy: the share of test images that it gets right.
        seconds: that its training took.
    """

    learner: Learner
    accuracy: float
    seconds: float


def teacher_file(trainer: Trainer, out: Path) -> Path:
    """Where the trained teacher is, or will be: the path of its state, without an ending.

    Args:
        trainer: knows the settings, which may name a given one.
        out: the folder with ``teachers``.
    """
    if trainer.config.teacher_file is not None:
        return _given(trainer.config.teacher_file.expanduser())
    how = {
        "settings": teacher_settings(trainer.config),
        "versions": versions(),
        "engine": trainer.engine.describe(),
        "images": fingerprint(trainer.tasks[0].train),
    }
    return out / "teachers" / digest(how) / "network"


def take_teacher(trainer: Trainer, file: Path) -> TrainedTeacher:
    """The teacher of a file: loaded if it is there, else trained.

    Args:
        trainer: where it is trained.
        file: as `teacher_file` gives it.
    """
    if trainer.config.teacher_file is not None:
        teacher = _loaded(trainer, file)
        # It may have been tested on other images.
        confusion = evaluate(teacher.learner, trainer.tasks[0].test).head
        return teacher._replace(accuracy=float(confusion.trace() / confusion.sum()))
    observer = trainer.observer
    with wait(
        file.parent, trainer.engine, observer.stop, lambda: observer.shared_base(waiting=True)
    ):
        try:
            teacher = _loaded(trainer, file)
        except FileNotFoundError:
            return _trained(trainer, file)
        except DamagedCheckpoint as error:
            logger.warning("%s The teacher is trained again.", error)
            return _trained(trainer, file)
        observer.shared_base(waiting=False)
        return teacher


def _given(file: Path) -> Path:
    """The state that is meant by a ``network.json``, its folder, or a compression's folder."""
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


def _pupil(trainer: Trainer) -> Learner:
    return trainer.pupil(trainer.config.teacher, trainer.config.make_teacher())


def _loaded(trainer: Trainer, file: Path) -> TrainedTeacher:
    state, wanted = load_state(file), trainer.config.teacher
    if state.facts["network"] != wanted:
        raise ValueError(
            f"The teacher in {file.parent} is a {state.facts['network']}, no {wanted}."
        )
    classes = trainer.tasks[0].classes
    if state.facts["learner"]["classes"] != list(classes):
        raise ValueError(
            f"The teacher in {file.parent} has learned other classes than {trainer.dataset.name} "
            "has, or in another order."
        )
    learner = _pupil(trainer)
    learner.load_state(State(state.facts["learner"], state.tensors))
    return TrainedTeacher(learner, state.facts["accuracy"], state.facts["seconds"])


def _trained(trainer: Trainer, file: Path) -> TrainedTeacher:
    learner = _pupil(trainer)
    record, epochs = trainer.train(learner, 0, file.parent)
    teacher = TrainedTeacher(learner, record.accuracy, record.seconds)
    if trainer.engine.first:
        state = learner.state()
        facts = {
            "network": trainer.config.teacher,
            "learner": state.facts,
            "accuracy": teacher.accuracy,
            "seconds": teacher.seconds,
            "epochs": epochs,
        }
        save_state(file, State(facts, state.tensors))
        Checkpoints(file.parent / "epochs").clear()
    return teacher
