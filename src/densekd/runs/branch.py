"""Begin a run with the learned steps of another one."""

from pathlib import Path

from densekd.config.digests import result_settings
from densekd.config.schema import StartConfig
from densekd.config.settings_tree import digest
from densekd.data.scenario import Scenario
from densekd.files import write_atomically
from densekd.runs.loaded import LoadedRun, check_classes
from densekd.runs.predictions import predictions_file
from densekd.training.checkpoint import State, sound_content
from densekd.training.learner import Learner


def branched_state(start: StartConfig, scenario: Scenario, learner: Learner) -> State:
    """The checkpoint that a branch begins with, which no longer needs the parent.

    The branch's untrained ``learner`` takes over what the parent learned.

    Raises:
        ValueError: the parent has no such step, its settings or data are different, or the
            branch's method can't go on from it.
    """
    parent = LoadedRun(start.run)
    if digest(result_settings(parent.config)) != start.settings:
        raise ValueError(
            f"{start.run} has other settings than the run that this one goes on from; restore that "
            "run, or begin a new branch with --from."
        )
    state = parent.state(start.after)
    facts, tasks = state.facts["learner"], len(scenario)
    if start.after >= tasks:
        raise ValueError(
            f"{start.run} has {tasks} steps, so nothing is left to learn after step {start.after}; "
            "go on from an earlier one."
        )
    check_classes(start.run, facts["classes"], scenario[: start.after])
    with sound_content(start.run / "learner"):
        learner.load_state(State(facts, state.tensors), change_method=True)
    own = learner.state()
    learned = ("network.", "memory.", "term.")
    records = {name: x for name, x in state.tensors.items() if not name.startswith(learned)}
    return State({**state.facts, "learner": own.facts}, {**own.tensors, **records})


def copy_predictions(start: StartConfig, folder: Path) -> None:
    """Copy the predictions of the parent's steps, if there are any."""
    for step in range(1, start.after + 1):
        file = predictions_file(start.run, step)
        if file.is_file():
            write_atomically(predictions_file(folder, step), file.read_bytes())
