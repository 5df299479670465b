"""Losses over time, also of runs made before they were written to ``epochs.jsonl``."""

import shutil
from pathlib import Path

import pytest

from densekd.methods.method import Method, Phase
from densekd.methods.schedule import Schedule
from densekd.methods.terms import CrossEntropy
from densekd.reports.events import read_losses
from densekd.runs.epochs import EpochLog
from densekd.training.callbacks import TrainingProgress

EARLIER = Path(__file__).parents[2] / "golden" / "v1" / "runs" / "digits-gkd-1a7bd793e8a0"


def test_losses_of_earlier_runs_come_from_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_losses(EARLIER)
    assert set(found) == {"new", "exemplars", "kd"}
    steps = [step for step, _ in found["kd"]]
    assert steps == sorted(set(steps))
    # A run that goes on now adds to them.
    folder = Path(shutil.copytree(EARLIER, tmp_path / "run"))
    phases = (Phase("train", Schedule(epochs=steps[-1] + 1)),)
    terms = {"new": CrossEntropy(("new",), "new")}
    method = Method("gkd", "linear", terms, base=phases, increment=phases)
    last = TrainingProgress(0, "train", steps[-1], steps[-1] + 1, 1, 1, 0.1, 1.0, {"kd": 7.0})
    EpochLog(method, folder).report(last)
    assert read_losses(folder)["kd"] == [*found["kd"], (steps[-1] + 1, 7.0)]
    monkeypatch.setattr("densekd.reports.events.find_spec", lambda name: None)
    assert read_losses(folder) == {"kd": [(steps[-1] + 1, 7.0)]}
    assert read_losses(EARLIER) == {}


def test_a_folder_without_losses(tmp_path: Path) -> None:
    assert read_losses(tmp_path) == {}
