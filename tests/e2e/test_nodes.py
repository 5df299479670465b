"""One run on two machines, which are two commands on this one."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from densekd.config.schema import as_toml, resolve
from densekd.config.settings_tree import merge
from densekd.runs.run import run_config

from support.forked_commands import ForkedCommand
from support.nodes import environment, free_port

SETTINGS = {
    "network": "resnet8",
    "scenario": {"base": 6, "steps": 2},
    "data": {"per_class": 60, "test_per_class": 20},
    "training": {"base": {"epochs": 3}, "increment": {"epochs": 2}},
    # In fp16, whose gradient scaler must be the same on all and go on after a loss.
    "engine": {"accelerator": "cpu", "precision": "fp16"},
}
LOST = "Error: Another process of this run has ended"


@contextmanager
def machines(folder: Path) -> Iterator[list[ForkedCommand]]:
    """The same command on two machines, none of which outlives the test."""
    folder.mkdir(exist_ok=True)
    file, port = folder / "settings.toml", free_port()
    file.write_text(as_toml(resolve(merge(SETTINGS, {"engine": {"nodes": 2}}))))
    command = ["run", "--config", str(file), "--out", str(folder)]
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                ForkedCommand(
                    command,
                    folder,
                    folder / f"printed by {rank}",
                    folder / f"said by {rank}",
                    environment(port, rank),
                )
            )
            for rank in (0, 1)
        ]


def stored(out: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The accuracies after each task, and the weights of the last learner."""
    (folder,) = out.glob("digits-*")
    steps = json.loads((folder / "result.json").read_text())["steps"]
    accuracies = {step["number"]: step["task_accuracies"] for step in steps}
    newest = max((folder / "learner").glob("*.safetensors"))
    return accuracies, {name: x.numpy().tobytes() for name, x in load_file(newest).items()}


@pytest.mark.slow
def test_two_machines_learn_as_one_does_and_resume_when_one_is_lost(tmp_path: Path) -> None:
    with machines(tmp_path / "whole") as started:
        codes = [node.wait(500) for node in started]
    first, second = started
    assert codes == [0, 0], first.said() + second.said()
    # Only the first prints and writes.
    assert first.printed().count("Average incremental accuracy") == 1
    assert second.printed() == ""
    assert "task 1 learned" in first.said()
    assert "task 1 learned" not in second.said()
    writers = {file.name.split(".")[5] for file in (tmp_path / "whole").rglob("events.out.*")}
    assert writers == {str(first.pid)}

    with machines(tmp_path / "lost") as started:
        first, second = started
        first.wait_for(lambda: "task 1 learned" in first.said())
        second.kill()
        assert first.wait(500) == 2
    said = first.said()
    assert said.count(LOST) == 1
    assert "Traceback" not in said
    assert not list((tmp_path / "lost").glob("*/result.json"))
    with machines(tmp_path / "lost") as started:
        codes = [node.wait(500) for node in started]
    assert codes[0] == 0, started[0].said()
    assert stored(tmp_path / "lost") == stored(tmp_path / "whole")

    (folder,) = (tmp_path / "whole").glob("digits-*")
    two = json.loads((folder / "result.json").read_text())
    assert (two["engine"]["devices"], two["engine"]["nodes"]) == (2, 2)
    # A single process starts its own run in the same folder, and takes over nothing.
    one = run_config(resolve(SETTINGS), tmp_path / "whole")
    assert Path(one["folder"]) != folder
    assert len(list((tmp_path / "whole" / "bases").iterdir())) == 2
    average = one["average_incremental_accuracy"]
    assert two["average_incremental_accuracy"] == pytest.approx(average, abs=0.1)
