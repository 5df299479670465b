"""Read a run folder: settings, results, predictions and learners of its steps."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from densekd.config.branching import read_config
from densekd.config.file_checksums import load_trusted
from densekd.config.schema import Config
from densekd.data.dataset import image_shape
from densekd.data.scenario import Scenario, Task
from densekd.files import expand_home
from densekd.metrics import Matrix
from densekd.runs.build import make_engine, make_learner, make_scenario
from densekd.runs.predictions import Predictions, predictions_file, read_predictions
from densekd.runs.record import StepRecord
from densekd.runs.result import Result
from densekd.runs.stored import check_links, check_steps, load_result
from densekd.training.checkpoint import Checkpoints, State, sound_content
from densekd.training.engine import has_accelerator
from densekd.training.evaluate import Evaluation
from densekd.training.learner import Learner


class LoadedRun:
    """A run in its folder, finished or not.

    Steps are numbered as the console shows them: 1 is the base task. Everything but `config` is
    read on first use, and only `scenario` reads the data set. Only `scenario` and `learner` run
    custom code, if the run was made with any and ``trust_code`` is set.
    """

    def __init__(self, folder: Path, *, trust_code: bool = False) -> None:
        check_links(folder)
        self.folder, self.trust_code = folder, trust_code
        self.config: Config = read_config(folder)
        self._learned = Checkpoints(folder / "learner")

    @cached_property
    def result(self) -> Result | None:
        """The result; None while the run is unfinished."""
        try:
            return Result(load_result(self.folder), self.folder)
        except FileNotFoundError:
            return None

    @cached_property
    def scenario(self) -> Scenario:
        """The tasks. Loads the data set, which must have the classes that the run learned."""
        load_trusted(self.config, self.folder, self.trust_code)
        scenario = make_scenario(self.config)
        done = self.steps if self.result or self.kept_steps else ()
        check_classes(
            self.folder, [x for step in done for x in step.classes], scenario[: len(done)]
        )
        return scenario

    @cached_property
    def steps(self) -> tuple[StepRecord, ...]:
        """The records of the learned steps; step 1 is ``steps[0]``."""
        facts = self.result or self._newest.facts
        return tuple(StepRecord.from_json(record) for record in facts["steps"])

    @property
    def kept_steps(self) -> tuple[int, ...]:
        """The steps whose learners can be loaded: the last two, or all with ``keep_steps``."""
        return tuple(number + 1 for number in self._learned.numbers())

    def confusion(self, step: int) -> Matrix:
        """The confusion matrix after a step, by the method's predictor: ``[true, predicted]``."""
        self._check(step)
        with sound_content(self._learned.folder):
            facts = self._newest.facts.get("learner", {})
            predicts = facts.get("predicts") or self.config.make_method().predicts
            return evaluations_of(self._newest)[step - 1].by(predicts)

    def predictions(self, step: int) -> Predictions:
        """The predictions for the test images after a step, written by runs with ``keep_steps``."""
        self._check(step)
        try:
            return read_predictions(predictions_file(self.folder, step))
        except FileNotFoundError:
            raise ValueError(
                f"{self.folder} has no predictions of step {step}; a run with --keep-steps writes "
                "them."
            ) from None

    def learner(self, step: int | None = None) -> Learner:
        """The learner after a step, by default the newest, on one device."""
        state = self._newest if step is None else self.state(step)
        load_trusted(self.config, self.folder, self.trust_code)
        chosen = self.config.engine.accelerator
        # The run may have been made on another computer.
        there = chosen if has_accelerator(chosen) else "auto"
        settings = replace(
            self.config.engine, accelerator=there, devices=1, nodes=1, compile="auto"
        )
        engine = make_engine(replace(self.config, engine=settings))
        images = state.facts.get("images") or self._images()
        with sound_content(self._learned.folder):
            mean, std, size = (images[k] and tuple(images[k]) for k in ("mean", "std", "size"))
            learner = make_learner(self.config, (mean, std), engine, size)
            learner.load_state(State(state.facts["learner"], state.tensors))
        return learner

    def state(self, step: int) -> State:
        """The checkpoint after a step; raises ValueError if it wasn't kept."""
        self._check(step)
        if step not in self.kept_steps:
            kept = ", ".join(map(str, self.kept_steps)) or "none"
            raise ValueError(
                f"{self.folder} keeps no learner of step {step}, only of {kept}; a run with "
                "--keep-steps into another --out keeps all."
            )
        return self._learned.load(step - 1)

    @cached_property
    def _newest(self) -> State:
        state = self._learned.newest()
        if state is None:
            raise ValueError(
                f"{self.folder} has learned no task yet; repeat its `densekd run` first."
            )
        check_steps(self._learned.folder, state.facts.get("steps"))
        return state

    def _check(self, step: int) -> None:
        if not 1 <= step <= len(self.steps):
            raise ValueError(
                f"{self.folder} has learned the steps 1 to {len(self.steps)}, where 1 is the base "
                f"task; there is no step {step}."
            )

    def _images(self) -> dict[str, Any]:
        """The images' mean, deviation and size, which checkpoints of earlier versions lack."""
        dataset = self.scenario.dataset
        size = image_shape(dataset.train.images)
        return {"mean": dataset.mean, "std": dataset.std, "size": size}


def load_run(folder: Path | str, *, trust_code: bool = False) -> LoadedRun:
    """Open the folder of a run.

    Args:
        folder: the folder of the run.
        trust_code: let `LoadedRun.learner` and `LoadedRun.scenario` run the custom code that the
            run was made with, if there is any.

    Raises:
        ValueError: it is not the folder of a run, or a link leads out of it.

    Example:
        >>> import densekd
        >>> result = densekd.run(steps=1, epochs=1, quiet=True)
        >>> loaded = densekd.load_run(result.folder)
        >>> loaded.confusion(step=2).shape, loaded.learner().sizes
        ((10, 10), (5, 5))
    """
    return LoadedRun(expand_home(folder), trust_code=trust_code)


def check_classes(folder: Path, learned: Sequence[str], tasks: Sequence[Task]) -> None:
    """Raise ValueError unless the run in a folder has learned the classes of these tasks."""
    if list(learned) != [name for task in tasks for name in task.classes]:
        raise ValueError(
            f"{folder} learned other classes than its data has now, or in another order; restore "
            "the data, or begin a new run with another --out."
        )


def evaluations_of(state: State) -> list[Evaluation]:
    """The confusion matrices of all steps in a run's checkpoint.

    Raises KeyError or ValueError if one is missing, or isn't what was saved.
    """
    evaluations = []
    for number, step in enumerate(state.facts["steps"]):
        shape = (step["classes_seen"],) * 2
        head = _confusion(state.tensors[f"confusion.{number}"], shape)
        nearest = state.tensors.get(f"nearest_mean.{number}")
        evaluations.append(
            Evaluation(head, None if nearest is None else _confusion(nearest, shape))
        )
    return evaluations


def _confusion(matrix: Tensor, shape: tuple[int, ...]) -> Matrix:
    if matrix.shape != shape or matrix.dtype != torch.int64:
        raise ValueError(f"A confusion matrix of {list(matrix.shape)} isn't what was saved.")
    found: Matrix = matrix.numpy()
    return found
