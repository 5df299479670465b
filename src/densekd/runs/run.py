"""A run: one method through all tasks, in a folder from which it can go on at any time."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from densekd.config.schema import (
    Config,
    as_toml,
    as_tree,
    base_settings,
    influential,
)
from densekd.config.settings_tree import digest
from densekd.data.dataset import fingerprint, join_splits
from densekd.data.scenario import Scenario, Task
from densekd.files import write_atomically, write_json
from densekd.methods.registry import what_kd_does
from densekd.runs.build import make_engine, make_learner, make_scenario
from densekd.runs.load_run import restore
from densekd.runs.locks import exclusive, wait
from densekd.runs.record import StepRecord, commit, machine, result_of, versions
from densekd.runs.tensorboard import TensorBoardWriter
from densekd.training.callbacks import Callback, TrainingProgress, stoppable
from densekd.training.checkpoint import Checkpoints, State
from densekd.training.engine import Engine
from densekd.training.evaluate import Evaluation, evaluate
from densekd.training.learner import Learned, Learner

logger = logging.getLogger(__name__)


class RunObserver(Callback):
    """Whom a run reports to; this one takes no notice."""

    def loading(self, done: int, total: int) -> None:
        """Data are being read: so many images or bytes of so many."""

    def started(self, folder: Path, tasks: Sequence[Task], done: int) -> None:
        """A run begins in ``folder``, or goes on after ``done`` tasks."""

    def training(self, number: int, classes: Sequence[str]) -> None:
        """A task begins."""

    def shared_base(self, waiting: bool) -> None:
        """The base was trained by another run, or is just being trained by one."""

    def evaluated(self, record: StepRecord) -> None:
        """A task was learned and tested."""


def run_folder(config: Config, out: Path) -> Path:
    """The folder of a run: data and method by name, all else by a hash of the configuration."""
    source = config.data.source.partition(":")[0]
    return out / f"{source}-{config.method.name}-{digest(influential(config))}"


def run(config: Config, out: Path, observer: RunObserver | None = None) -> dict[str, Any]:
    """Learn all tasks, or those that are left; a finished run is only read.

    Args:
        config: what to do.
        out: where run folders are.
        observer: whom to tell.

    Returns:
        The content of ``result.json``.
    """
    engine = make_engine(config)
    engine.launch()
    observer = observer if observer is not None and engine.first else RunObserver()
    folder = run_folder(config, out)
    with exclusive(folder, engine):
        finished = read_result(folder)
        if finished is not None:
            return finished
        return _Run(config, folder, engine, observer).finish()


def _warn_of_network(config: Config) -> None:
    """PODNet and AFC compare the maps of a network that was made for it."""
    method, network = config.method.host, config.network
    if method in ("podnet", "afc") and not network.startswith("podnet"):
        logger.warning(
            "%s is meant for the networks podnet14, podnet32, ... and podnet18; of %s it compares "
            "maps that are rectified.",
            *(method, network),
        )


class _Run:
    def __init__(self, config: Config, folder: Path, engine: Engine, observer: RunObserver) -> None:
        self.config, self.folder, self.engine, self.observer = config, folder, engine, observer
        # One of several ranks must not leave the others waiting.
        many = config.engine.devices > 1
        loading = observer.loading if many else stoppable(observer.loading, observer)
        self.scenario: Scenario = make_scenario(config, loading)
        dataset = self.scenario.dataset
        self.learner: Learner = make_learner(config, (dataset.mean, dataset.std), engine)
        self.learned = Checkpoints(folder / "learner")
        self.records: list[StepRecord] = []
        self.matrices: list[Evaluation] = []

    def finish(self) -> dict[str, Any]:
        commit()  # asked now, before the source is worked on
        self._resume()
        if self.engine.first:
            write_atomically(self.folder / "config.toml", as_toml(self.config))
            _warn_of_network(self.config)
        done = len(self.records)
        self.observer.started(self.folder, self.scenario, done)
        events = self.folder / "tensorboard"
        board = TensorBoardWriter(events, self.learner.method) if self.engine.first else None
        callback = _Both(self.observer, board)
        for task in self.scenario[done:]:
            self.observer.training(task.number, task.classes)
            learned = (
                self._base(task, callback) if task.number == 0 else self._increment(task, callback)
            )
            self._record(task, learned)
            callback.evaluated(self.records[-1])
        if board is not None:
            board.close()
        return self._result()

    def _resume(self) -> None:
        state = restore(self.learner, self.learned)
        if state is None:
            return
        self.records = [StepRecord.from_json(facts) for facts in state.facts["steps"]]
        for number in range(len(self.records)):
            head = state.tensors[f"confusion.{number}"].numpy()
            nearest = state.tensors.get(f"nearest_mean.{number}")
            self.matrices.append(Evaluation(head, None if nearest is None else nearest.numpy()))

    def _base(self, task: Task, callback: Callback) -> Learned:
        """Train the base task, or take it from a run that agrees in all that matters for it."""
        settings = base_settings(self.config, len(task.classes))
        how = {
            "settings": settings,
            "versions": versions(),
            "engine": self.engine.describe(),
            "images": fingerprint(task.train),
        }
        folder = self.folder.parent / "bases" / digest(how)
        observer = self.observer
        with wait(folder, self.engine, observer.stop, lambda: observer.shared_base(waiting=True)):
            trained = folder / "trained.json"
            if trained.exists():
                self.observer.shared_base(waiting=False)
            learned = self.learner.learn(task, callback=callback, checkpoints=Checkpoints(folder))
            if self.engine.first:
                write_json(trained, how)
            return learned

    def _increment(self, task: Task, callback: Callback) -> Learned:
        epochs = Checkpoints(self.folder / "epochs" / f"{task.number:03d}")
        return self.learner.learn(task, callback=callback, checkpoints=epochs)

    def _record(self, task: Task, learned: Learned) -> None:
        """Test the learner, and save it with all that is known."""
        seen = join_splits([each.test for each in self.scenario[: task.number + 1]])
        evaluation = evaluate(self.learner, seen)
        self.records.append(StepRecord.of(task, evaluation, self.learner, learned))
        self.matrices.append(evaluation)
        if not self.engine.first:
            return
        state = self.learner.state()
        tensors = {**state.tensors, **self._confusions()}
        facts = {"learner": state.facts, "steps": [asdict(record) for record in self.records]}
        self.learned.save(task.number, State(facts, tensors))
        # From here on the run goes on after this task, so how far it was in it is done with.
        Checkpoints(self.folder / "epochs" / f"{task.number:03d}").clear()

    def _confusions(self) -> dict[str, torch.Tensor]:
        tensors = {}
        for number, matrices in enumerate(self.matrices):
            tensors[f"confusion.{number}"] = torch.from_numpy(matrices.head)
            if matrices.nearest_mean is not None:
                tensors[f"nearest_mean.{number}"] = torch.from_numpy(matrices.nearest_mean)
        return tensors

    def _result(self) -> dict[str, Any]:
        result = {
            **result_of(self.records, self.matrices[-1].by(self.learner.method.predicts)),
            "combination": what_kd_does(self.config.method.name),
            "config": as_tree(self.config),
            "precision": self.engine.precision,
            "engine": self.engine.describe(),
            "versions": versions(),
            "commit": commit(),
            "machine": machine(self.engine.device),
            "folder": str(self.folder),
        }
        if self.engine.first:
            write_json(self.folder / "result.json", result)
        # As it is read later: what JSON has no word for is gone, NaN above all.
        self.engine.broadcast(True)
        return read_result(self.folder) or result


class _Both(RunObserver):
    """Passes on what happens to an observer and to TensorBoard."""

    def __init__(self, observer: RunObserver, board: TensorBoardWriter | None) -> None:
        self.observer, self.board = observer, board

    def report(self, report: TrainingProgress) -> None:
        self.observer.report(report)
        if self.board is not None:
            self.board.report(report)

    def stop(self) -> bool:
        return self.observer.stop()

    def evaluated(self, record: StepRecord) -> None:
        self.observer.evaluated(record)
        if self.board is not None:
            self.board.evaluated(record)


def read_result(folder: Path) -> dict[str, Any] | None:
    """The content of a run's ``result.json``; None as long as there is none."""
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_text("utf-8"))
    except (FileNotFoundError, ValueError):  # cut off, it is made again of what was learned
        return None
    return result
