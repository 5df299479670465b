"""Where a teacher and a student are trained: the same images, engine and observer."""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

from densekd.experiment.build import make_pupil, make_whole
from densekd.experiment.compression import CompressionConfig
from densekd.experiment.record import StepRecord
from densekd.experiment.run import Observer
from densekd.files import write_json
from densekd.learn.checkpoint import Checkpoints
from densekd.learn.engine import Engine
from densekd.learn.evaluate import evaluate
from densekd.learn.learner import Learner
from densekd.learn.loop import Tutor
from densekd.learn.watch import Report, Watch
from densekd.methods.method import Method


class Taught(NamedTuple):
    """What training took and brought."""

    record: StepRecord
    epochs: list[dict[str, Any]]


class Classroom:
    """What teacher and student have in common.

    Args:
        config: what to do.
        engine: where it runs.
        observer: whom to tell; the teacher's task is number 0, the student's number 1.
    """

    def __init__(self, config: CompressionConfig, engine: Engine, observer: Observer) -> None:
        self.config, self.engine, self.observer = config, engine, observer
        scenario = make_whole(config, observer.loading)
        self.dataset = scenario.dataset
        # The same classes twice, so that the two draw from streams of their own.
        self.tasks = scenario[0], dataclasses.replace(scenario[0], number=1)

    def pupil(self, network: str, method: Method) -> Learner:
        """A network that has learned nothing yet."""
        return make_pupil(self.config, network, method, self.dataset, self.engine)

    def train(
        self, pupil: Learner, number: int, folder: Path, tutor: Tutor | None = None
    ) -> Taught:
        """Train a pupil on all classes, or go on with it, and test it.

        Args:
            pupil: learns.
            number: of its task.
            folder: where its checkpoints are, and ``epochs.json`` with the losses.
            tutor: who teaches, if somebody does.
        """
        task = self.tasks[number]
        self.observer.training(number, task.classes)
        epochs = _Epochs(folder / "epochs.json", self.engine, self.observer)
        checkpoints = Checkpoints(folder / "epochs")
        learned = pupil.learn(task, watch=epochs, checkpoints=checkpoints, tutor=tutor)
        record = StepRecord.of(task, evaluate(pupil, task.test), pupil, learned)
        self.observer.evaluated(record)
        return Taught(record, [epochs.known[key] for key in sorted(epochs.known, key=int)])


class _Epochs(Watch):
    """Passes on what happens, and writes down the losses of each epoch."""

    def __init__(self, file: Path, engine: Engine, observer: Observer) -> None:
        self.file, self.engine, self.observer = file, engine, observer
        self.known: dict[str, dict[str, Any]] = {}
        if file.exists():
            self.known = json.loads(file.read_text("utf-8"))

    def report(self, report: Report) -> None:
        self.observer.report(report)
        if not report.ends_epoch:
            return
        # An epoch that was reported, but not saved, is done again, and gives the same.
        self.known[str(report.epoch)] = {
            "epoch": report.epoch + 1,
            "loss": sum(report.losses.values()),
            "losses": dict(report.losses),
        }
        if self.engine.first:
            write_json(self.file, self.known)

    def stop(self) -> bool:
        return self.observer.stop()
