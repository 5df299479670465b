"""Where a teacher and a student are trained: the same images, engine and observer."""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

from densekd.compression.config import CompressionConfig
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario
from densekd.files import write_json
from densekd.methods.method import Method
from densekd.runs.build import draw_backbone, make_dataset, make_settings
from densekd.runs.record import StepRecord
from densekd.runs.run import RunObserver
from densekd.training.callbacks import Callback, TrainingProgress
from densekd.training.checkpoint import Checkpoints
from densekd.training.engine import Engine
from densekd.training.evaluate import evaluate
from densekd.training.learner import Learner
from densekd.training.phases import ExternalTeacher


class Taught(NamedTuple):
    """What training took and brought."""

    record: StepRecord
    epochs: list[dict[str, Any]]


class Trainer:
    """What teacher and student have in common.

    Args:
        config: what to do.
        engine: where it runs.
        observer: whom to tell; the teacher's task is number 0, the student's number 1.
    """

    def __init__(self, config: CompressionConfig, engine: Engine, observer: RunObserver) -> None:
        self.config, self.engine, self.observer = config, engine, observer
        self.dataset = make_dataset(config, observer.loading)
        # One task of all classes, in the order that groups are blocks of.
        classes = len(self.dataset.classes)
        scenario = Scenario.of(self.dataset, base=classes, steps=0, order=config.order)
        # The same classes twice, so that the two draw from streams of their own.
        self.tasks = scenario[0], dataclasses.replace(scenario[0], number=1)

    def pupil(self, network: str, method: Method) -> Learner:
        """A network that has learned nothing yet and will keep no exemplars."""
        backbone = draw_backbone(network, self.config.seed)
        settings = make_settings(
            self.config, (self.dataset.mean, self.dataset.std), backbone, self.engine
        )
        return Learner(backbone, method, ExemplarMemory(Quota(0)), settings)

    def train(
        self,
        pupil: Learner,
        number: int,
        folder: Path,
        external_teacher: ExternalTeacher | None = None,
    ) -> Taught:
        """Train a pupil on all classes, or go on with it, and test it.

        Args:
            pupil: learns.
            number: of its task.
            folder: where its checkpoints are, and ``epochs.json`` with the losses.
            external_teacher: who teaches, if somebody does.
        """
        task = self.tasks[number]
        self.observer.training(number, task.classes)
        epochs = _Epochs(folder / "epochs.json", self.engine, self.observer)
        checkpoints = Checkpoints(folder / "epochs")
        learned = pupil.learn(
            task, callback=epochs, checkpoints=checkpoints, external_teacher=external_teacher
        )
        record = StepRecord.of(task, evaluate(pupil, task.test), pupil, learned)
        self.observer.evaluated(record)
        return Taught(record, [epochs.known[key] for key in sorted(epochs.known, key=int)])


class _Epochs(Callback):
    """Passes on what happens, and writes down the losses of each epoch."""

    def __init__(self, file: Path, engine: Engine, observer: RunObserver) -> None:
        self.file, self.engine, self.observer = file, engine, observer
        self.known: dict[str, dict[str, Any]] = {}
        if file.exists():
            self.known = json.loads(file.read_text("utf-8"))

    def report(self, report: TrainingProgress) -> None:
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
