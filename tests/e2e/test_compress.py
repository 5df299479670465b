import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from densekd.cli import app
from densekd.compression.compress import Trainer, compress
from densekd.compression.config import (
    CompressionConfig,
    compression_folder,
    resolve_compression,
)
from densekd.config.settings_tree import merge
from densekd.files import write_sealed_json
from densekd.nn.resnet import WideResNet
from densekd.runs.build import make_engine
from densekd.runs.epochs import read_epochs
from densekd.runs.observer import RunObserver
from densekd.runs.record import StepRecord
from densekd.runs.stored import load_result
from densekd.training.callbacks import Stopped, TrainingProgress
from densekd.training.checkpoint import State, load_state, save_state
from densekd.training.evaluate import evaluate

from support.forked_commands import fork_server

Result = Mapping[str, Any]

# 7 batches in each of 2 epochs, of teacher and student.
TINY = {
    "teacher": "wrn-10-1",
    "student": "resnet8",
    "epochs": 2,
    "data": {"per_class": 20},
    "groups": 5,
}
BATCHES = 7


def tiny(method: str, **changes: Any) -> CompressionConfig:
    return resolve_compression(merge(TINY, {"method": method}, changes))


class Told(RunObserver):
    """Writes down what it is told, and asks for a stop after so many batches."""

    def __init__(self, batches: int | None = None) -> None:
        self.left = batches
        self.events: list[str] = []
        self.trained: list[int] = []

    def started(self, folder: Path, tasks: object, done: int) -> None:
        self.events.append(f"started after {done}")

    def shared_base(self, waiting: bool) -> None:
        self.events.append("waiting" if waiting else "taken")

    def report(self, report: TrainingProgress) -> None:
        if report.ends_epoch:
            self.trained.append(report.task)

    def evaluated(self, record: StepRecord) -> None:
        self.events.append(f"evaluated {record.number}")

    def stop(self) -> bool:
        if self.left is not None:
            self.left -= 1
        return self.left == 0


def numbers(result: Result) -> dict[str, Any]:
    """A result without what depends on the clock and on the place."""
    passing = ("seconds", "teacher_seconds", "images_per_second", "teacher_file", "folder")
    return {key: value for key, value in result.items() if key not in passing}


def weights(result: Result) -> dict[str, torch.Tensor]:
    (file,) = Path(result["folder"]).glob("student-*.safetensors")
    return load_file(file)


def same_weights(one: Result, other: Result) -> bool:
    mine, theirs = weights(one), weights(other)
    same = (torch.equal(tensor, theirs[name]) for name, tensor in mine.items())
    return mine.keys() == theirs.keys() and all(same)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Result]]:
    """A folder with a compression by each method, and their results."""
    out = tmp_path_factory.mktemp("compressions")
    results: dict[str, Result] = {}
    events = []
    for method in ("kd", "rdkd", "fdkd", "alone"):
        told = Told()
        results[method] = compress(tiny(method), out, told)
        events.append((told.events, told.trained))
    # The teacher was trained once.
    assert events == [
        (["started after 0", "evaluated 0", "evaluated 1"], [0, 0, 1, 1]),
        (["started after 1", "taken", "evaluated 1"], [1, 1]),
        (["started after 1", "taken", "evaluated 1"], [1, 1]),
        (["started after 1", "evaluated 1"], [1, 1]),
    ]
    assert len(list((out / "teachers").iterdir())) == 1
    return out, results


@pytest.fixture
def result(finished: tuple[Path, dict[str, Result]]) -> Callable[[str], Result]:
    return lambda method: finished[1][method]


@pytest.mark.parametrize("method", ["kd", "rdkd", "fdkd", "alone"])
def test_a_result_says_how_it_came_about(method: str, result: Callable[[str], Result]) -> None:
    reached = result(method)
    folder = Path(reached["folder"])
    assert load_result(folder) == reached
    assert (reached["kind"], reached["method"]) == ("compression", method)
    assert (reached["teacher"], reached["student"]) == ("wrn-10-1", "resnet8")
    assert reached["groups"] == [2] * 5
    assert resolve_compression(reached["config"]) == tiny(method)
    assert [epoch["epoch"] for epoch in reached["epochs"]] == [1, 2]
    for epoch in reached["epochs"]:
        assert set(epoch["losses"]) == ({"labels"} if method == "alone" else {"labels", "kd"})
        assert epoch["loss"] == pytest.approx(sum(epoch["losses"].values()))
    assert reached["epochs"][1]["loss"] < reached["epochs"][0]["loss"]
    assert (reached["teacher_accuracy"] is None) == (method == "alone")
    assert not list(folder.glob("epochs/*"))
    assert [entry["losses"] for entry in read_epochs(folder)] == [
        epoch["losses"] for epoch in reached["epochs"]
    ]


def test_the_accuracies_are_those_of_the_networks(result: Callable[[str], Result]) -> None:
    reached, config = result("rdkd"), tiny("rdkd")
    room = Trainer(config, make_engine(config), RunObserver())
    student = room.new_learner("resnet8", config.make())
    student.load_state(load_state(Path(reached["folder"], "student")))
    confusion = evaluate(student, room.tasks[1].test).head
    assert confusion.trace() / confusion.sum() == reached["accuracy"]
    # Learned in the order of the seed, of which groups are blocks.
    assert student.classes[:2] == room.tasks[1].classes[:2] != ("0", "1")


def test_students_differ_by_how_they_learn_alone(result: Callable[[str], Result]) -> None:
    methods = [weights(result(method)) for method in ("kd", "rdkd", "fdkd", "alone")]
    name = "network.classifier.blocks.0"
    assert len({tuple(each[name].flatten().tolist()) for each in methods}) == 4
    accuracies = {result(method)["teacher_accuracy"] for method in ("kd", "rdkd", "fdkd")}
    assert len(accuracies) == 1


def test_a_finished_compression_is_only_read(finished: tuple[Path, dict[str, Result]]) -> None:
    out, results = finished
    told = Told()
    assert compress(tiny("kd"), out, told) == results["kd"]
    assert told.events == []


@pytest.mark.parametrize("batches", [1, BATCHES, BATCHES + 3, 2 * BATCHES + 2, 4 * BATCHES - 1])
def test_what_was_stopped_ends_the_same(
    batches: int, result: Callable[[str], Result], tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        compress(tiny("rdkd"), tmp_path, Told(batches))
    told = Told()
    resumed = compress(tiny("rdkd"), tmp_path, told)
    assert told.events[0] == f"started after {int(batches > 2 * BATCHES)}"
    assert numbers(resumed) == numbers(result("rdkd"))
    assert same_weights(resumed, result("rdkd"))


class Killed(Told):
    """Kills the process after so many batches, whatever else the machine does."""

    def stop(self) -> bool:
        if super().stop():
            os.kill(os.getpid(), signal.SIGKILL)
        return False


def compress_until_killed(out: Path, batches: int) -> None:
    compress(tiny("rdkd"), out, Killed(batches))


@pytest.mark.slow
def test_what_was_killed_ends_the_same(result: Callable[[str], Result], tmp_path: Path) -> None:
    in_second_epoch = 3 * BATCHES + 2  # of the student
    process = fork_server().Process(
        target=compress_until_killed, args=(tmp_path, in_second_epoch), daemon=True
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    folder = compression_folder(tiny("rdkd"), tmp_path)
    assert list(folder.glob("epochs/0*.json"))
    assert not (folder / "result.json").exists()
    resumed = compress(tiny("rdkd"), tmp_path)
    assert numbers(resumed) == numbers(result("rdkd"))
    assert same_weights(resumed, result("rdkd"))


def test_a_damaged_teacher_is_trained_again(
    finished: tuple[Path, dict[str, Result]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out, results = finished
    shutil.copytree(out / "teachers", tmp_path / "teachers")
    (file,) = tmp_path.glob("teachers/*/network-*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    told = Told()
    again = compress(tiny("kd"), tmp_path, told)
    assert "The teacher is trained again." in caplog.text
    assert told.trained == [0, 0, 1, 1]
    assert numbers(again) == numbers(results["kd"])


@pytest.mark.parametrize("what", ["compression", "folder", "file"])
def test_a_teacher_can_be_given(
    what: str, finished: tuple[Path, dict[str, Result]], tmp_path: Path
) -> None:
    _, results = finished
    file = Path(results["kd"]["teacher_file"])
    folder = Path(results["kd"]["folder"])
    given = {"compression": folder, "folder": file.parent, "file": file}[what]
    told = Told()
    again = compress(tiny("fdkd", teacher_file=given), tmp_path, told)
    assert told.events == ["started after 1", "evaluated 1"]
    assert not (tmp_path / "teachers").exists()
    for key in ("accuracy", "teacher_accuracy", "epochs", "teacher_file"):
        assert again[key] == results["fdkd"][key]


def test_a_teacher_is_found_when_the_folder_of_all_was_moved(
    finished: tuple[Path, dict[str, Result]], tmp_path: Path
) -> None:
    out, results = finished
    folder = Path(results["kd"]["folder"])
    shutil.copytree(out / "teachers", tmp_path / "moved" / "teachers")
    shutil.copytree(folder, tmp_path / "moved" / folder.name)
    given = tmp_path / "moved" / folder.name
    content = {
        **load_result(given),
        "teacher_file": "/gone/teachers/"
        + "/".join(Path(results["kd"]["teacher_file"]).parts[-2:]),
    }
    write_sealed_json(given / "result.json", content)
    again = compress(tiny("fdkd", teacher_file=given), tmp_path)
    assert Path(again["teacher_file"]).is_relative_to(tmp_path / "moved")
    assert again["accuracy"] == results["fdkd"]["accuracy"]


def test_a_teacher_of_another_kind_is_refused(tmp_path: Path) -> None:
    save_state(tmp_path / "network", State({"network": "wrn-10-1"}, {}))
    with pytest.raises(ValueError, match="isn't what was saved"):
        compress(tiny("kd", teacher_file=tmp_path), tmp_path)


def test_networks_that_normalise_differently_are_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def statistics(backbone: Any) -> Any:
        return ((0.5,) * 3, (0.5,) * 3) if isinstance(backbone, WideResNet) else None

    told = Told()
    monkeypatch.setattr("densekd.runs.build.own_statistics", statistics)
    with pytest.raises(ValueError, match="normalise images differently"):
        compress(tiny("kd"), tmp_path, told)
    assert told.trained == []


def test_a_teacher_that_does_not_fit(
    finished: tuple[Path, dict[str, Result]], tmp_path: Path
) -> None:
    given = Path(finished[1]["kd"]["folder"])

    def complaint(**changes: Any) -> str:
        with pytest.raises(ValueError, match=r"\w") as caught:
            compress(tiny("kd", **changes), tmp_path)
        return str(caught.value)

    other = complaint(teacher_file=given, teacher="wrn-10-2")
    assert "wrn-10-1" in other
    assert "wrn-10-2" in other
    assert "other classes than digits" in complaint(teacher_file=given, order="natural")
    assert "There is no trained teacher in" in complaint(teacher_file=tmp_path)
    assert "There is no trained teacher in" in complaint(teacher_file=tmp_path / "none")
    assert "can't be divided into 11 groups" in complaint(groups=11)
    assert "There is no network 'lenet'" in complaint(student="lenet")


def test_a_compression_keeps_to_its_file_of_classes(tmp_path: Path) -> None:
    file = tmp_path / "order.txt"
    file.write_text("\n".join("0123456789"))
    config = tiny("alone", order=str(file), epochs=1, data={"per_class": 2})
    result = compress(config, tmp_path)
    assert compress(config, tmp_path) == result
    file.write_text("\n".join("9876543210"))
    with pytest.raises(ValueError, match=r"order\.txt has changed since"):
        compress(config, tmp_path)


def test_networks_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
from torch import nn

def little():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(code)
    options = ["--teacher", "mine.py:little", "--student", "mine.py:little", "--epochs", "1"]
    command = ["compress", "--data", "digits", "--method", "kd", *options, "-o", "data.per_class=2"]
    called = CliRunner().invoke(app, command)
    assert called.exit_code == 0, called.output
    Path("mine.py").write_text(code.replace("ReLU", "Tanh"))
    called = CliRunner().invoke(app, command)
    assert "mine.py has changed since this run began" in called.stderr
    shutil.rmtree(next(Path("runs").glob("compress-*")))
    called = CliRunner().invoke(app, command)
    assert called.exit_code == 0, called.output
    assert len(list(Path("runs", "teachers").iterdir())) == 2


def test_the_command_prints_what_was_reached(finished: tuple[Path, dict[str, Result]]) -> None:
    out, results = finished
    options = ["--method", "kd", "--teacher", "wrn-10-1", "--student", "resnet8", "--groups", "5"]
    more = ["--epochs", "2", "-o", "data.per_class=20", "--out", str(out), "--json"]
    done = CliRunner().invoke(app, ["compress", *options, *more])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == results["kd"]
    assert "Already finished" in done.stderr
    for name, accuracy in (("wrn-10-1", "teacher_accuracy"), ("resnet8", "accuracy")):
        (row,) = (line for line in done.stderr.splitlines() if name in line)
        assert f"{100 * results['kd'][accuracy]:.1f}" in row
    assert "Training was shortened to 2 of 24 epochs." in done.stderr


def test_the_command_tells_how_far_it_is(tmp_path: Path) -> None:
    command = ["compress", "--teacher", "wrn-10-1", "--epochs", "1", "-o", "data.per_class=5"]
    done = CliRunner().invoke(app, [*command, "--method", "fdkd", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    (folder,) = tmp_path.glob("compress-fdkd-*")
    said = done.stderr.splitlines()
    assert said[0] == "resnet8 learns 10 classes of digits from wrn-10-1 by fdkd, seed 1993."
    assert said[1] == f"Run folder: {folder}"
    assert said[2].startswith("teacher wrn-10-1: accuracy ")
    assert said[3].startswith("student resnet8: accuracy ")
    alone = CliRunner().invoke(app, [*command, "--method", "alone", "--out", str(tmp_path)])
    first = alone.stderr.splitlines()[0]
    assert first == "resnet8 learns 10 classes of digits by labels alone, seed 1993."


def test_the_command_refuses_in_a_sentence() -> None:
    done = CliRunner().invoke(app, ["compress", "--method", "tkd"])
    assert done.exit_code == 2
    assert done.stderr == "Error: method must be 'alone', 'kd', 'rdkd' or 'fdkd', not 'tkd'.\n"
