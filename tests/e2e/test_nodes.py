"""One run on two machines, which are two commands on this one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from densekd.config.schema import as_toml, resolve
from densekd.config.settings_tree import merge
from densekd.runs.run import run_config

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
def machines(file: Path, out: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """The same command on two machines, none of which outlives the test."""
    file.write_text(as_toml(resolve(merge(SETTINGS, {"engine": {"nodes": 2}}))))
    command = [sys.executable, "-m", "densekd", "run", "--config", str(file), "--out", str(out)]
    port, pipe = free_port(), subprocess.PIPE
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    command, env=environment(port, rank), stdout=pipe, stderr=pipe, text=True
                )
            )
            for rank in (0, 1)
        ]
        try:
            yield started
        finally:
            for process in started:
                process.kill()


def stored(out: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The accuracies after each task, and the weights of the last learner."""
    (folder,) = out.glob("digits-*")
    steps = json.loads((folder / "result.json").read_text())["steps"]
    accuracies = {step["number"]: step["task_accuracies"] for step in steps}
    newest = max((folder / "learner").glob("*.safetensors"))
    return accuracies, {name: x.numpy().tobytes() for name, x in load_file(newest).items()}


@pytest.mark.slow
def test_two_machines_learn_as_one_does_and_resume_when_one_is_lost(tmp_path: Path) -> None:
    with machines(tmp_path / "whole.toml", tmp_path / "whole") as started:
        (printed, said), (other, silent) = [node.communicate(timeout=500) for node in started]
    assert [node.returncode for node in started] == [0, 0], said + silent
    # Only the first prints and writes.
    assert printed.count("Average incremental accuracy") == 1
    assert other == ""
    assert "task 1 learned" in said
    assert "task 1 learned" not in silent
    writers = {file.name.split(".")[5] for file in (tmp_path / "whole").rglob("events.out.*")}
    assert writers == {str(started[0].pid)}

    with machines(tmp_path / "lost.toml", tmp_path / "lost") as started:
        first, second = started
        assert first.stderr is not None
        assert any(line.startswith("task 1 learned") for line in first.stderr)
        os.kill(second.pid, signal.SIGKILL)
        _, said = first.communicate(timeout=500)
    assert first.returncode == 2
    assert said.count(LOST) == 1
    assert "Traceback" not in said
    assert not list((tmp_path / "lost").glob("*/result.json"))
    with machines(tmp_path / "lost.toml", tmp_path / "lost") as started:
        said, _ = (node.communicate(timeout=500)[1] for node in started)
    assert started[0].returncode == 0, said
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
