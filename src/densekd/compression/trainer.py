"""Train a teacher or a student on all classes."""

import dataclasses
from pathlib import Path
from typing import Any

from densekd.compression.config import CompressionConfig
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario
from densekd.methods.method import Method
from densekd.runs.build import draw_backbone, make_dataset, make_settings
from densekd.runs.epochs import EpochLog, read_epochs
from densekd.runs.observer import RunObserver, RunObservers
from densekd.runs.record import StepRecord
from densekd.training.checkpoint import Checkpoints
from densekd.training.engine import Engine
from densekd.training.evaluate import evaluate
from densekd.training.learner import Learner
from densekd.training.phases import ExternalTeacher


class Trainer:
    """The data, engine and observer that teacher and student share.

    Args:
        config: the settings.
        engine: device, precision and ranks.
        observer: receives progress; the teacher's task is number 0, the student's number 1.
    """

    def __init__(self, config: CompressionConfig, engine: Engine, observer: RunObserver) -> None:
        self.config, self.engine, self.observer = config, engine, observer
        self.dataset = make_dataset(config, observer.loading)
        # One task with all classes, in the order that is divided into groups.
        classes = len(self.dataset.classes)
        scenario = Scenario.of(self.dataset, base=classes, steps=0, order=config.order)
        # Numbers differ, so that teacher and student draw from different random streams.
        self.tasks = scenario[0], dataclasses.replace(scenario[0], number=1)

    def new_learner(self, network: str, method: Method) -> Learner:
        """Make an untrained learner that keeps no exemplars."""
        backbone = draw_backbone(network, self.config.seed)
        normalisation = self.dataset.mean, self.dataset.std
        settings = make_settings(self.config, normalisation, backbone, self.engine)
        return Learner(backbone, method, ExemplarMemory(Quota(0)), settings)

    def train(
        self,
        learner: Learner,
        number: int,
        folder: Path,
        external_teacher: ExternalTeacher | None = None,
    ) -> tuple[StepRecord, list[dict[str, Any]]]:
        """Train a learner on all classes, or resume it, and test it.

        Args:
            learner: the learner.
            number: the number of its task.
            folder: where its checkpoints and ``epochs.jsonl`` are.
            external_teacher: the teacher of a student.

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
