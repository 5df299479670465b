"""What a run has learned, from its folder."""

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
    """A run as far as it was learned: ``learner`` knows the first ``len(learner.sizes)`` tasks."""

    config: Config
    scenario: Scenario
    learner: Learner


def load_run(folder: Path, on_progress: OnProgress | None = None) -> LoadedRun:
    """Read a run's settings, its data, and the learner as it was saved last.

    One process looks at it, whatever number it was trained by.

    Args:
        folder: as `densekd.runs.run.run` makes it.
        on_progress: called as data are read.
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
    """The settings of the run in a folder."""
    if not (folder / "config.toml").is_file():
        raise ValueError(f"{folder} is no folder of a run, as `densekd run` makes them.")
    return resolve(read_toml(folder / "config.toml"))


def restore(learner: Learner, learned: Checkpoints) -> State | None:
    """Make a new learner what a run saved last; gives all that was saved, None if nothing was."""
    state = learned.newest()
    if state is not None:
        learner.load_state(State(state.facts["learner"], state.tensors))
    return state
