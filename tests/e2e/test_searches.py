"""Searches for hyper-parameters with real runs: the first tasks choose, and kills lose nothing."""

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from densekd.cli import app

from support.forked_commands import ForkedCommand
from support.self_signal import self_signal

KEY = "method.options.temperature"
EXPERIMENT = f"""
title = "Temperatures"
about = "Which is best."

[settings]
data = {{ source = "digits", per_class = 12, test_per_class = 12, validation = 0.25 }}
network = "resnet8"
epochs = 1

[grid]
"method.name" = ["gkd"]
"scenario.steps" = [5]

[table]
rows = "method.name"
columns = "scenario.steps"

[search]
kind = "KIND"
trials = 3
tasks = 2
parameters = {{ "{KEY}" = {{ low = 0.5, high = 8.0, log = true }} }}
"""


def written(folder: Path, kind: str) -> Path:
    file = folder / "mine.toml"
    file.write_text(EXPERIMENT.replace("KIND", kind))
    return file


def command(file: Path, out: Path) -> list[str]:
    return ["sweep", str(file), "--out", str(out), "--workers", "1"]


def runs(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "sweeps" / "mine" / "runs.json").read_text())
    return content


@pytest.mark.slow
def test_the_first_tasks_choose_and_the_report_shows_the_pick_alone(tmp_path: Path) -> None:
    file, out = written(tmp_path, "random"), tmp_path / "runs"
    listed = CliRunner().invoke(app, [*command(file, out), "--dry-run"])
    assert "3 runs, 1 base; the best for each of 1 cell" in listed.stdout
    assert listed.stdout.count("first=2") == 3
    done = CliRunner().invoke(app, command(file, out))
    assert done.exit_code == 0, done.output
    record = runs(out)
    results = {
        entry["folder"]: json.loads((out / Path(entry["folder"]).name / "result.json").read_text())
        for entry in record["runs"]
    }
    assert [len(result["steps"]) for result in results.values()] == [2, 2, 2, 6]
    *trials, final = record["runs"]
    held = [results[e["folder"]]["validation"]["average_incremental_accuracy"] for e in trials]
    (pick,) = record["search"]["picks"]
    assert pick["validation"] == max(held)
    assert pick["values"][KEY] == trials[held.index(max(held))]["point"][KEY]
    assert final["point"] == {**pick["cell"], **pick["values"]}
    assert f"Picked for gkd steps=5: temperature={pick['values'][KEY]}" in done.stdout

    report = CliRunner().invoke(app, ["report", str(out), "--out", str(tmp_path / "report")])
    assert report.exit_code == 0, report.output
    tables = tmp_path / "report" / "tables"
    reached = 100 * results[final["folder"]]["average_incremental_accuracy"]
    assert f"| gkd | {reached:.2f} |" in (tables / "mine.md").read_text()
    assert f"| {pick['values'][KEY]} |" in (tables / "mine-picks.md").read_text()
    assert len((tables / "runs.csv").read_text().splitlines()) == 2
    assert "3 trials of a search not picked" in (tmp_path / "report" / "index.html").read_text()


@pytest.mark.slow
def test_a_killed_search_by_optuna_goes_on_with_its_study(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    file, out = written(tmp_path, "optuna"), tmp_path / "runs"
    # When it is about to write down that the first trial has finished.
    kill = partial(self_signal, tmp_path / "kill", signal.SIGKILL, "*/runs.json", '"finished"')
    with ForkedCommand(command(file, out), tmp_path, first=kill) as killed:
        assert killed.wait() == -signal.SIGKILL
    before = {file: file.stat().st_mtime_ns for file in out.glob("digits-*/result.json")}
    assert len(before) == 1
    done = CliRunner().invoke(app, command(file, out))
    assert done.exit_code == 0, done.output
    assert {file: file.stat().st_mtime_ns for file in before} == before
    storage = optuna.storages.RDBStorage(f"sqlite:///{out}/sweeps/mine/study.db")
    (name,) = optuna.get_all_study_names(storage)
    trials = optuna.load_study(study_name=name, storage=storage).trials
    storage.remove_session()
    storage.engine.dispose()
    assert [trial.number for trial in trials] == [0, 1, 2]
    assert {trial.state.name for trial in trials} == {"COMPLETE"}
    assert len({trial.params[KEY] for trial in trials}) == 3
    states = [entry["state"] for entry in runs(out)["runs"]]
    assert states == ["finished"] * 4
