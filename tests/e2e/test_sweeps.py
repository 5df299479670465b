"""Every experiment of the package, on few small images; and what a sweep says and leaves behind."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from densekd.cli import app
from densekd.data.dataset import PixelImages
from densekd.files import read_sealed_text
from densekd.reports.events import read_losses
from densekd.sweeps.experiment_file import label, read_experiment
from densekd.sweeps.library import LIBRARY

from support.datasets import dataset

# One or two runs of each, where a file has many; what is not replaced is the file's own.
AXES = {
    "table1-cifar100": ["method.name=podnet+rdkd,bic", "scenario.steps=1"],
    "table2-imagenet100": ["method.name=icarl,icarl+rdkd", "scenario.steps=1"],
    "table3-imagenet1000": ["method.name=ucir,afc", "scenario.steps=1"],
    "table4-distillations": ["scenario.steps=1"],
    "table5-ablation": ["scenario.steps=1"],
    "table5-ablation-imagenet100": ["method.name=rdkd-adaptive", "scenario.steps=5"],
    "table6-orders": ["method.name=ccil+rdkd", "scenario.order=1,2"],
    "fig-curves": ["method.name=ccil,rdkd", "scenario.steps=5"],
    "fig-stability": ["scenario.steps=1"],
    "fig-flatness": ["method.name=rdkd", "scenario.steps=1"],
    "fig-memory": ["method.name=rdkd", "memory.per_class=1,2", "scenario.steps=1"],
    "many-tasks": ["scenario.steps=5"],
    "compression": ["student=resnet8"],
    "compression-imagenet100": ["method=kd", "student=resnet8"],
}
RUNS = {"table4-distillations": 4, "table5-ablation": 4, "fig-stability": 3, "many-tasks": 3} | {
    "compression": 3,
    "table5-ablation-imagenet100": 1,
    "fig-flatness": 1,
    "compression-imagenet100": 1,
}


def call(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, ["sweep", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def options(name: str) -> list[str]:
    """What makes an experiment small."""
    small = ["--data", "digits", "--scale", "0.01", "--workers", "1"]
    small += ["-o", "data.per_class=6", "-o", "data.test_per_class=6"]
    if name.startswith("compression"):
        small += ["-o", "teacher=wrn-10-1"]
    return small + [part for axis in AXES[name] for part in ("--grid", axis)]


def record(out: Path, name: str) -> tuple[Path, dict[str, Any]]:
    (file,) = out.glob(f"sweeps/{name}-at-0.01-??????/runs.json")
    content: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return file.parent, content


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all, so that what was trained for one experiment serves others."""
    return tmp_path_factory.mktemp("runs")


def test_there_is_a_case_for_every_experiment() -> None:
    assert set(AXES) == {file.stem for file in LIBRARY.glob("*.toml")}


@pytest.mark.slow
@pytest.mark.parametrize("name", AXES)
def test_an_experiment_runs(name: str, out: Path) -> None:
    file = LIBRARY / f"{name}.toml"
    result = call(file, "--out", out, *options(name))
    assert result.exit_code == 0, result.output
    folder, content = record(out, name)
    assert read_sealed_text(folder / "experiment.toml", 9999) == file.read_text()
    experiment = read_experiment(folder / "experiment.toml")
    assert content["scale"] == 0.01
    assert len(content["runs"]) == RUNS.get(name, 2)
    assert f"{name} at scale 0.01 of all epochs: " in result.stdout
    rows = {line.partition(" finished ")[0].strip(): line for line in result.stdout.splitlines()}
    for run in content["runs"]:
        assert (run["state"], run["reason"]) == ("finished", None)
        found = json.loads((folder / run["folder"] / "result.json").read_text("utf-8"))
        value = found[experiment.measure]
        assert rows[label(run["point"])].split()[-2] == f"{100 * value:.1f}"
        assert found["config"]["epochs"] == 0.01
        if experiment.flatness:
            assert (folder / run["folder"] / "flatness.json").exists()
        if experiment.kind == "runs":
            assert found["config"]["method"]["name"] == run["point"]["method.name"]


@pytest.fixture(scope="module")
def twenty(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twenty classes of small images, as a source."""
    made = dataset(20, 5, 2)
    assert isinstance(made.train.images, PixelImages)
    assert isinstance(made.test.images, PixelImages)
    file = tmp_path_factory.mktemp("data") / "twenty.npz"
    train, test = made.train.images.pixels.numpy(), made.test.images.pixels.numpy()
    labels = {"train_y": made.train.labels.numpy(), "test_y": made.test.labels.numpy()}
    np.savez(file, train_x=train, test_x=test, allow_pickle=False, **labels)
    return f"npz:{file}"


@pytest.mark.slow
def test_four_distillations_at_two_protocols_train_one_base(twenty: str, tmp_path: Path) -> None:
    small = ["--data", twenty, "-o", "network=resnet8", "--scale", "0.01", "--workers", "1"]
    command: list[str | Path] = [
        LIBRARY / "table4-distillations.toml",
        "--out",
        tmp_path,
        *small,
    ]
    listed = call(*command, "--dry-run")
    assert "8 runs, 1 base." in listed.stdout
    assert [line.split()[2:4] for line in listed.stdout.splitlines()[4:12]] == [
        ["1", "waiting"]
    ] * 8
    assert not list(tmp_path.iterdir())

    result = call(*command, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert len(list((tmp_path / "bases").iterdir())) == 1
    results = [json.loads(file.read_text()) for file in tmp_path.glob("*/result.json")]
    assert sorted(len(each["steps"]) for each in results) == [6] * 4 + [11] * 4
    base = results[0]["steps"][0]
    assert all(each["steps"][0] == base for each in results)
    losses = [read_losses(file.parent)["new"] for file in tmp_path.glob("*/result.json")]
    base_epochs = [each[0] for each in losses]
    assert {epoch for epoch, _ in base_epochs} == {1}
    assert len(set(base_epochs)) == 1

    apart = sum(step["seconds"] for each in results for step in each["steps"])
    training = found["training"]
    assert training["bases"] == 1
    assert training["apart"] == pytest.approx(apart)
    assert training["together"] == pytest.approx(apart - 7 * base["seconds"])
    assert "with 1 base for 8 runs; with a base for each run it would have taken" in result.stderr
    assert "about" not in result.stdout

    files = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/result.json")}
    again = call(*command)
    assert again.exit_code == 0
    assert "8 runs (8 already finished), 1 base." in again.stderr
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/result.json")} == files


MINE = """
title = "Mine"
about = "Two seeds."
[settings]
data = { per_class = 6, test_per_class = 6 }
network = "resnet8"
scenario.steps = 1
epochs = 1
[grid]
"method.name" = ["gkd"]
seed = [1, 2]
[table]
rows = "method.name"
columns = "seed"
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an experiment in the folder that the command is given in."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "mine.toml").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return "mine"


@pytest.mark.slow
def test_one_run_that_cannot_be_done_does_not_keep_others_from_it(mine: str) -> None:
    """A file of class names that lacks some, which only the data tell."""
    Path("order.txt").write_text("1\n2\n")
    axes = ["--grid", "scenario.order=natural,order.txt", "--grid", "seed=1"]
    result = call(mine, *axes, "--workers", "1")
    assert result.exit_code == 1
    reason = "The order lacks 8 of 10 classes"
    assert f"gkd seed=1 order=order.txt: failed: {reason}" in result.stderr
    assert f"gkd seed=1 order=order.txt failed: {reason}" in result.stdout
    assert "mine: 1 of 2 runs finished, 1 failed." in result.stdout
    assert "Run the same command again" in result.stdout
    runs = json.loads(Path("runs/sweeps/mine/runs.json").read_text())["runs"]
    assert [run["state"] for run in runs] == ["finished", "failed"]
    listed = call(mine, *axes, "--dry-run").stdout
    assert [line.split()[4] for line in listed.splitlines()[4:6]] == ["finished", "started"]


@pytest.mark.slow
def test_runs_that_the_data_has_no_classes_for_are_left_out(mine: str) -> None:
    """Four steps don't divide the five classes after the base."""
    axes = ["--grid", "scenario.steps=1,4", "--grid", "seed=1"]
    reason = "5 classes after the base of 5 can't be divided into 4 equal steps"
    listed = call(mine, *axes, "--dry-run")
    assert listed.exit_code == 0
    assert "mine: 1 run, 1 base; 1 impossible run left out." in listed.stdout
    assert f"Impossible: gkd seed=1 steps=4: {reason}" in listed.stdout
    result = call(mine, *axes, "--workers", "1")
    assert result.exit_code == 0
    assert f"Impossible: gkd seed=1 steps=4: {reason}" in result.stderr
    assert "mine: 1 of 1 run finished." in result.stdout
    content = json.loads(Path("runs/sweeps/mine/runs.json").read_text())
    assert [run["state"] for run in content["runs"]] == ["finished"]
    assert [each["point"]["scenario.steps"] for each in content["left_out"]] == [4]
    assert CliRunner().invoke(app, ["report"]).exit_code == 0
    assert f"steps=4: {reason}" in Path("report/index.html").read_text().replace("&#39;", "'")


def test_a_sweep_takes_the_options_of_a_run(mine: str) -> None:
    listed = call(mine, "--data", "cifar100", "--base", "40", "--memory-total", "99", "--dry-run")
    assert "cifar100-gkd-" in listed.stdout
    wrong = call(mine, "--grid", "method.name=gkd,gdk", "--dry-run")
    assert wrong.exit_code == 2
    assert "Impossible: gdk seed=1, gdk seed=2: " in wrong.stdout
    assert "2 of these runs" in wrong.stderr
    small = ["--data", "digits", "--order", "3", "--epochs", "1", "--student", "resnet8"]
    assert call("compression", *small[:-2], "--method", "kd").exit_code == 2
    assert "3 runs, 1 teacher." in call("compression", *small[:-2], "--dry-run").stdout


def test_what_cannot_be_swept_is_said_in_a_sentence(mine: str) -> None:
    def refused(*arguments: str) -> str:
        result = call(*arguments)
        assert result.exit_code == 2
        assert result.stderr.startswith("Error: ")
        assert result.stderr.count("\n") == 1
        return result.stderr

    assert "did you mean mine?" in refused("mind")
    assert "there are compression, compression-imagenet100, fig-curves" in refused("nothing")
    assert "no configuration file" in refused("table9.toml")
    assert "KEY=VALUE,VALUE" in refused(mine, "--grid", "seed")
    assert "did you mean scenario.steps?" in refused(mine, "-o", "scenario.stepz=1")
    assert "--grid seed=" in refused(mine, "-o", "seed=1")
    assert "--grid method.name=" in refused(mine, "--method", "gkd")
    assert "a number of epochs" in refused(mine, "--scale", "0.1")
    assert "--engine ray" in refused(mine, "--address", "auto")
    assert not Path("runs").exists()


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that the other end was closed
        return b""


@pytest.mark.slow
def test_a_sweep_on_a_terminal_that_is_told_to_end(mine: str, tmp_path: Path) -> None:
    primary, secondary = pty.openpty()
    # As many epochs as make it last until it is told.
    options = ["--workers", "2", "-o", "epochs=100000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "densekd", "sweep", mine, *options],
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
    )
    os.close(secondary)
    text, told = b"", False
    while piece := read(primary):
        text += piece
        both = b"seed=1" in piece and b"seed=2" in piece and piece.count(b"epoch") == 2
        if both and not told:
            process.send_signal(signal.SIGTERM)
            told = True
    os.close(primary)
    assert process.wait() == 128 + signal.SIGTERM
    seen = text.decode()
    assert "0 of 2 finished · 2 running" in seen
    assert "task 1/2, epoch " in seen
    assert "Stopping all runs after their current batch; press Ctrl-C to quit at once." in seen
    # What follows the last line that was erased is what stays.
    left = seen.rpartition("\x1b[2K")[2]
    assert "━" not in left
    assert seen.count(": stopped and saved") == 2
    assert "Stopped and saved. To resume, run: " in left
    (file,) = tmp_path.glob("runs/sweeps/*/runs.json")
    assert {run["state"] for run in json.loads(file.read_text())["runs"]} == {"waiting"}
