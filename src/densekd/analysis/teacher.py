"""Teachers: trained once for all compressions that agree in what matters to them, or given."""

import logging
from pathlib import Path
from typing import NamedTuple

from densekd.analysis.classroom import Classroom
from densekd.data.dataset import fingerprint
from densekd.experiment.compression import teacher_settings
from densekd.experiment.locks import waiting
from densekd.experiment.record import versions
from densekd.experiment.run import read_result
from densekd.experiment.tree import digest
from densekd.learn.checkpoint import (
    Checkpoints,
    DamagedCheckpoint,
    State,
    load_state,
    save_state,
)
from densekd.learn.evaluate import evaluate
from densekd.learn.learner import Learner

logger = logging.getLogger(__name__)


class Teacher(NamedTuple):
    """A network that has learned all classes.

    Args:
        learner: has the network.
        accuracy: the share of test images that it gets right.
        seconds: that its training took.
    """

    learner: Learner
    accuracy: float
    seconds: float


def teacher_file(room: Classroom, out: Path) -> Path:
    """Where the trained teacher is, or will be: the path of its state, without an ending.

    Args:
        room: knows the settings, which may name a given one.
        out: the folder with ``teachers``.
    """
    if room.config.teacher_file is not None:
        return _given(room.config.teacher_file.expanduser())
    how = {
        "settings": teacher_settings(room.config),
        "versions": versions(),
        "engine": room.engine.describe(),
        "images": fingerprint(room.tasks[0].train),
    }
    return out / "teachers" / digest(how) / "network"


def take_teacher(room: Classroom, file: Path) -> Teacher:
    """The teacher of a file: loaded if it is there, else trained.

    Args:
        room: where it is trained.
        file: as `teacher_file` gives it.
    """
    if room.config.teacher_file is not None:
        teacher = _loaded(room, file)
        # It may have been tested on other images.
        confusion = evaluate(teacher.learner, room.tasks[0].test).head
        return teacher._replace(accuracy=float(confusion.trace() / confusion.sum()))
    observer = room.observer
    with waiting(
        file.parent, room.engine, observer.stop, lambda: observer.shared_base(waiting=True)
    ):
        try:
            teacher = _loaded(room, file)
        except FileNotFoundError:
            return _trained(room, file)
        except DamagedCheckpoint as error:
            logger.warning("%s The teacher is trained again.", error)
            return _trained(room, file)
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


def _pupil(room: Classroom) -> Learner:
    return room.pupil(room.config.teacher, room.config.make_teacher())


def _loaded(room: Classroom, file: Path) -> Teacher:
    state, wanted = load_state(file), room.config.teacher
    if state.facts["network"] != wanted:
        raise ValueError(
            f"The teacher in {file.parent} is a {state.facts['network']}, no {wanted}."
        )
    classes = room.tasks[0].classes
    if state.facts["learner"]["classes"] != list(classes):
        raise ValueError(
            f"The teacher in {file.parent} has learned other classes than {room.dataset.name} has, "
            "or in another order."
        )
    learner = _pupil(room)
    learner.load_state(State(state.facts["learner"], state.tensors))
    return Teacher(learner, state.facts["accuracy"], state.facts["seconds"])


def _trained(room: Classroom, file: Path) -> Teacher:
    learner = _pupil(room)
    record, epochs = room.train(learner, 0, file.parent)
    teacher = Teacher(learner, record.accuracy, record.seconds)
    if room.engine.first:
        state = learner.state()
        facts = {
            "network": room.config.teacher,
            "learner": state.facts,
            "accuracy": teacher.accuracy,
            "seconds": teacher.seconds,
            "epochs": epochs,
        }
        save_state(file, State(facts, state.tensors))
        Checkpoints(file.parent / "epochs").clear()
    return teacher
