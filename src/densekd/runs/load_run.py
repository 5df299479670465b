"""Load what a run has learned from its folder."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

from densekd.config.schema import Config, resolve
from densekd.config.settings_tree import read_toml
from densekd.data.dataset import OnProgress
from densekd.data.scenario import Scenario
from densekd.runs.build import make_engine, make_learner, make_scenario
from densekd.training.checkpoint import Checkpoints, State
from densekd.training.learner import Learner


class LoadedRun(NamedTuple):
    """A run; its learner has learned the first ``len(learner.sizes)`` tasks."""

    config: Config
    scenario: Scenario
    learner: Learner


def load_run(folder: Path, on_progress: OnProgress | None = None) -> LoadedRun:
    """Load a run's settings, its data and its newest learner, on one device.

    Raises:
        ValueError: if the folder is not that of a run, or no task was learned yet.
    """
    config = read_config(folder)
    engine = dataclasses.replace(config.engine, devices=1)
    scenario = make_scenario(config, on_progress)
    learner = make_learner(
        config,
        (scenario.dataset.mean, scenario.dataset.std),
        make_engine(dataclasses.replace(config, engine=engine)),
    )
    if restore(learner, Checkpoints(folder / "learner")) is None:
        raise ValueError(f"{folder} has learned no task yet; repeat its `densekd run` first.")
    return LoadedRun(config, scenario, learner)


def read_config(folder: Path) -> Config:
    """Read the settings of the run in a folder."""
    if not (folder / "config.toml").is_file():
        raise ValueError(f"{folder} is not the folder of a run; `densekd run` makes such folders.")
    return resolve(read_toml(folder / "config.toml"))


def restore(learner: Learner, learned: Checkpoints) -> State | None:
    """Load the newest checkpoint into a learner and return it; None if there is none."""
    state = learned.newest()
    if state is not None:
        learner.load_state(State(state.facts["learner"], state.tensors))
    return state
