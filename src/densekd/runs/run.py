"""A run: one method through all tasks, in a folder from which it can be resumed."""

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from densekd.config.branching import read_config
from densekd.config.digests import base_settings, result_settings
from densekd.config.file_checksums import (
    check_code,
    check_files,
    check_parent,
    named_files,
    parent_files,
    write_code,
    write_files,
)
from densekd.config.own_parts import logger_references, own_references
from densekd.config.schema import CommonConfig, Config, StartConfig, as_toml, as_tree
from densekd.config.settings_tree import digest
from densekd.data.dataset import image_shape, join_splits
from densekd.data.scenario import Task
from densekd.files import remove_leftovers, write_sealed_text
from densekd.methods.registry import baseline_of, combination_text, split_name
from densekd.parts import explain_errors, is_reference, load_files, short_name
from densekd.runs.branch import branched_state, copy_predictions
from densekd.runs.build import make_engine, make_learner, make_scenario
from densekd.runs.epochs import EpochLog, StepTable, copy_epochs
from densekd.runs.loaded import check_classes, evaluations_of
from densekd.runs.locks import exclusive
from densekd.runs.loggers import RunLoggers
from densekd.runs.observer import RunObserver, RunObservers
from densekd.runs.predictions import Predictions, save_predictions
from densekd.runs.ranks import (
    check_same_command,
    check_same_folder,
    check_same_images,
    ending_together,
)
from densekd.runs.record import StepRecord, commit, result_of, store_result
from densekd.runs.shared import SharedTraining
from densekd.runs.stored import check_links, check_steps, read_result
from densekd.runs.trackers import make_loggers
from densekd.training.callbacks import Callback, stoppable
from densekd.training.checkpoint import Checkpoints, State, sound_content
from densekd.training.engine import Engine
from densekd.training.evaluate import Evaluation, evaluate, forward_transfer
from densekd.training.learner import Learned, Learner
from densekd.training.own_metrics import find_metrics, measure, try_metrics
from densekd.training.phases import frozen_copy
from densekd.training.task_checks import check_tasks

logger = logging.getLogger(__name__)


def run_folder(config: Config, out: Path) -> Path:
    """The folder of a run: named by data, method and a hash of the settings."""
    source, (method, kd) = config.data.source, split_name(config.method.name)
    source = short_name(source) if is_reference(source) else source.partition(":")[0]
    # A reference can have a path, which can't be part of a folder's name.
    method = "+".join(filter(None, [short_name(method) if is_reference(method) else method, kd]))
    return out / f"{source}-{method}-{digest(result_settings(config))}"


def run_config(config: Config, out: Path, observer: RunObserver | None = None) -> dict[str, Any]:
    """Learn all tasks, or the remaining ones, in a folder in ``out``, and return the result.

    If the run is finished already, its result is only read.

    Raises:
        Stopped: the observer stopped the run; the next call resumes it.
        Busy: another process works on the same run.
    """
    folder = run_folder(config, out)
    return in_folder(config, folder, observer, lambda *args: _Run(config, folder, *args).finish())


def in_folder(
    config: CommonConfig,
    folder: Path,
    observer: RunObserver | None,
    train: Callable[[Engine, RunObserver], dict[str, Any]],
) -> dict[str, Any]:
    """Read the result in a folder, or call ``train`` to make it; locks the folder meanwhile.

    Runs the files of custom code that the settings name.
    """
    code = load_files(own_references(config).values())
    # Loggers aren't checked for changes, because they don't influence a result.
    load_files(logger_references(config))
    engine = make_engine(config)
    with ending_together(engine):
        engine.launch()  # starts the other processes, if any
        observer = observer if observer is not None and engine.first else RunObserver()
        check_same_command(engine, config, code)
        with exclusive(folder, engine), explain_errors(but=Callback):
            check_same_folder(engine, folder / "lock")
            check_links(folder)
            if engine.first:
                remove_leftovers(folder)
            check_code(folder, {**parent_files(config), **code})
            check_files(folder, named_files(config))
            finished = read_result(folder)
            if finished is not None:
                return finished
            commit()  # cached now, before somebody edits the source
            if engine.first:
                write_code(folder, code)
            return train(engine, observer)


def _kept_before(folder: Path) -> bool:
    """Whether the run in a folder was begun with ``keep_steps``, which it then keeps."""
    if not (folder / "config.toml").is_file():
        return False
    try:
        return read_config(folder).keep_steps
    except ValueError as error:
        logger.warning("%s It is written again.", error)
        return (folder / "predictions").is_dir()


def _warn_of_network(config: Config) -> None:
    baseline, network = baseline_of(config.method.name), config.network
    if baseline is not None and not network.startswith(baseline.network_prefix):
        logger.warning(
            "%s is meant for networks such as %s, not for %s: %s.",
            baseline.name,
            baseline.published_for("small").network,
            network,
            baseline.network_reason,
        )


class _Run:
    def __init__(self, config: Config, folder: Path, engine: Engine, observer: RunObserver) -> None:
        self.config, self.folder, self.engine, self.observer = config, folder, engine, observer
        loggers = make_loggers(config.loggers) if engine.first else {}
        # With several ranks, don't stop here: the other ranks would wait forever.
        many = engine.share.world > 1
        loading = observer.loading if many else stoppable(observer.loading, observer)
        self.scenario = make_scenario(config, loading)
        check_same_images(engine, self.scenario[:])
        dataset = self.scenario.dataset
        self.size = image_shape(dataset.train.images)
        self.learner = self._new_learner()
        check_tasks(self.scenario, self.learner.method, self.learner.memory)
        self.untrained = frozen_copy(self.learner.network)
        self.metrics = find_metrics(config.metrics or ())
        try_metrics(self.metrics, self.scenario)
        self.keep = config.keep_steps or _kept_before(folder)
        self.learned = Checkpoints(folder / "learner", keep_all=self.keep)
        self.records: list[StepRecord] = []
        self.evaluations: list[Evaluation] = []
        self.loggers = RunLoggers(folder, loggers, self.learner.method)
        writers = [StepTable(folder)] if engine.first else []
        self.watching = RunObservers(observer, self.loggers, *writers)

    def _new_learner(self) -> Learner:
        dataset = self.scenario.dataset
        return make_learner(self.config, (dataset.mean, dataset.std), self.engine, self.size)

    def finish(self) -> dict[str, Any]:
        self._resume()
        if self.engine.first:
            settings = as_toml(replace(self.config, keep_steps=self.keep))
            write_sealed_text(self.folder / "config.toml", settings)
            # Only now, so that a file that was refused can still be corrected.
            write_files(self.folder, named_files(self.config))
            _warn_of_network(self.config)
        done = len(self.records)
        self.observer.started(self.folder, self.scenario, done)
        try:
            if self.engine.first:
                self.loggers.begin(as_tree(self.config))
            if done:
                self.watching.resumed(self.records)
            for task in self.scenario[done:]:
                self._learn(task)
            result = self._store()
        except BaseException:
            with suppress(Exception):  # the first error matters more
                self.loggers.end(None)
            raise
        self.loggers.end(result)
        return result

    def _learn(self, task: Task) -> None:
        self.observer.training(task.number, task.classes)
        if task.number == 0:
            transfer, learned = math.nan, self._base(task)
        else:
            transfer = forward_transfer(self.learner, self.untrained, task)
            learned = self._train(task, self._epochs(task), self.folder)
        self._record(task, learned, transfer)
        self.watching.evaluated(self.records[-1])

    def _store(self) -> dict[str, Any]:
        reached = result_of(self.records, self.evaluations[-1].by(self.learner.method.predicts))
        reached["combination"] = combination_text(self.config.method.name)
        reached["workers"] = self.learner.settings.workers_for(self.scenario[0].train.images)
        return store_result(self.folder, reached, as_tree(self.config), self.engine)

    def _resume(self) -> None:
        if self.config.start is not None:
            self._branch(self.config.start)
        with sound_content(self.learned.folder):
            state = self.learned.newest()
            if state is None:
                return
            self.learner.load_state(State(state.facts["learner"], state.tensors))
            check_steps(self.learned.folder, state.facts["steps"])
            done = len(state.facts["steps"])
            check_classes(self.folder, self.learner.classes, self.scenario[:done])
            self.records = [StepRecord.from_json(facts) for facts in state.facts["steps"]]
            self.evaluations = evaluations_of(state)
            last = self.scenario[done - 1]
        if self.engine.first:
            self._tidy(last)

    def _branch(self, start: StartConfig) -> None:
        """Copy the steps that the parent learned, unless an earlier call did."""
        if self.engine.first and self.learned.newest() is None:
            check_parent(self.config, start.run)
            state = branched_state(start, self.scenario, self._new_learner())
            copy_predictions(start, self.folder)
            write_code(self.folder, parent_files(self.config))
            self.learned.save(start.after - 1, state)
        self.engine.broadcast(True)  # other ranks wait until the copy is there

    def _base(self, task: Task) -> Learned:
        """Train the base task, or load it if a run with the same base settings trained it."""
        settings = base_settings(self.config, len(task.classes))
        bases = self.folder.parent / "bases"
        shared = SharedTraining(bases, settings, task.train, self.engine)
        with shared.locked("base", self.observer) as folder:
            if shared.trained:
                self.observer.shared_base(waiting=False)
            # Another run may have trained some epochs. Loggers get them before they are copied,
            # because epochs in the run folder count as logged when this run is resumed.
            self.loggers.catch_up(folder)
            if self.engine.first:
                copy_epochs(folder, self.folder)
            return self._train(task, Checkpoints(folder), self.folder, folder)

    def _train(self, task: Task, checkpoints: Checkpoints, *folders: Path) -> Learned:
        """Train on a task; the first rank writes the losses to all folders."""
        writers = [EpochLog(self.learner.method, *folders)] if self.engine.first else []
        callback = RunObservers(self.watching, *writers)
        return self.learner.learn(task, callback=callback, checkpoints=checkpoints)

    def _epochs(self, task: Task) -> Checkpoints:
        return Checkpoints(self.folder / "epochs" / f"{task.number:03d}")

    def _record(self, task: Task, learned: Learned, transfer: float) -> None:
        """Test the learner, and save it with the records of all tasks so far."""
        seen = self.scenario[: task.number + 1]
        test = join_splits([each.test for each in seen])
        evaluation = evaluate(self.learner, test, keep_outputs=self.keep or bool(self.metrics))
        held = [each.validation for each in seen if each.validation is not None]
        validation = evaluate(self.learner, join_splits(held)) if held else None
        record = StepRecord.of(task, evaluation, self.learner, learned, validation)
        outputs = evaluation.outputs
        own = {} if outputs is None else measure(self.metrics, outputs)
        self.records.append(replace(record, metrics=own, forward_transfer=transfer))
        self.evaluations.append(replace(evaluation, scores=None, outputs=None))
        if not self.engine.first:
            return
        if self.keep and evaluation.scores is not None:
            labels, names = test.labels.cpu().numpy(), np.array(self.learner.classes)
            predicted = evaluation.scores.argmax(1)
            predictions = Predictions(labels, predicted, evaluation.scores, names)
            save_predictions(self.folder, task.number + 1, predictions)
        state, dataset = self.learner.state(), self.scenario.dataset
        tensors = {**state.tensors, **self._confusions()}
        facts = {
            "learner": state.facts,
            "images": {"mean": dataset.mean, "std": dataset.std, "size": self.size},
            "steps": [asdict(record) for record in self.records],
        }
        self.learned.save(task.number, State(facts, tensors))
        self._tidy(task)

    def _tidy(self, task: Task) -> None:
        """Remove checkpoints that aren't needed to resume after this task."""
        self.learned.tidy(task.number)
        self._epochs(task).clear()

    def _confusions(self) -> dict[str, torch.Tensor]:
        tensors = {}
        for number, evaluation in enumerate(self.evaluations):
            tensors[f"confusion.{number}"] = torch.from_numpy(evaluation.head)
            if evaluation.nearest_mean is not None:
                tensors[f"nearest_mean.{number}"] = torch.from_numpy(evaluation.nearest_mean)
        return tensors
