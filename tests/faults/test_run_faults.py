"""Whatever happens to a run, it ends with the numbers of one to which nothing happened."""

import itertools
import os
import random
import shutil
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from densekd.cli import app
from densekd.config.schema import Config, as_toml, resolve
from densekd.config.settings_tree import merge
from densekd.data.dataset import PixelImages
from densekd.data.digits_npz import load_digits
from densekd.runs.epochs import read_epochs
from densekd.runs.observer import RunObserver
from densekd.runs.run import run_config, run_folder
from densekd.training.callbacks import Stopped, TrainingProgress
from densekd.training.checkpoint import Checkpoints, State

from support.faults import copied_before_each_change, full_disk
from support.forked_commands import ForkedCommand, fork_server

Result = Mapping[str, Any]

# 5 batches in each epoch of the base task, 3 in those of the others, so 28 in all.
SHORT = {
    "network": "resnet8",
    "data": {"per_class": 40, "test_per_class": 10},
    "scenario": {"base": 4, "steps": 3},
    "method": {"name": "rdkd-adaptive"},
    "training": {
        "base": {"epochs": 2, "batch_size": 32},
        "increment": {"epochs": 2, "batch_size": 32},
    },
}
BATCHES = 28


def short(**changes: Any) -> Config:
    return resolve(merge(SHORT, changes))


class Told(RunObserver):
    """Writes down what it is told, and asks for a stop after so many batches."""

    def __init__(self, batches: int | None = None) -> None:
        self.left = batches
        self.trained: set[int] = set()
        self.shared: list[str] = []

    def report(self, report: TrainingProgress) -> None:
        self.trained.add(report.task)

    def shared_base(self, waiting: bool) -> None:
        self.shared.append("waiting" if waiting else "taken")

    def stop(self) -> bool:
        if self.left is not None:
            self.left -= 1
        return self.left == 0


def numbers(result: Result) -> dict[str, Any]:
    """A result without what depends on the clock and on the place."""
    passing = ("seconds", "images_per_second")
    steps = [{k: v for k, v in step.items() if k not in passing} for step in result["steps"]]
    return {**result, "steps": steps, "folder": None}


def same_weights(one: Path, other: Path) -> bool:
    """Whether two runs end with the same weights, exemplars and states of terms, bit for bit."""
    mine, theirs = (load_file(newest(folder / "learner")) for folder in (one, other))
    same = (torch.equal(tensor, theirs[name]) for name, tensor in mine.items())
    return mine.keys() == theirs.keys() and all(same)


def losses(folder: Path) -> list[dict[str, Any]]:
    """The epochs of a run, without what depends on the clock."""
    epochs = read_epochs(folder)
    return [{k: v for k, v in each.items() if k != "images_per_second"} for each in epochs]


def newest(folder: Path, ending: str = "safetensors") -> Path:
    """The file of the newest checkpoint in a folder."""
    return max(folder.glob(f"0*.{ending}"))


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A run that nothing happened to, its folder of runs, and its result."""
    out = tmp_path_factory.mktemp("whole")
    return out, run_config(short(), out)


@pytest.fixture
def unfinished(whole: tuple[Path, Result], tmp_path: Path) -> Path:
    """The folder of the same run in another place, all of it done but the result."""
    out, result = whole
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / Path(result["folder"]).name
    (folder / "result.json").unlink()
    return folder


def saves(out: Path) -> set[str]:
    """All checkpoints there are, of epochs and of tasks."""
    return {str(file) for file in out.rglob("0*.json")}


def whereabouts(out: Path) -> str:
    """What a run in the only folder was doing when it was killed."""
    tasks = len(list(out.glob("npz-*/learner/*.json")))
    if tasks == 0:
        return "base" if saves(out) else "start"
    return "increment" if list(out.glob("npz-*/epochs/*/*.json")) else "between"


@pytest.fixture
def digits_file(tmp_path: Path) -> str:
    """The digits as a source that is read without scikit-learn, which takes long to import."""
    train, test = load_digits().train, load_digits().test
    assert isinstance(train.images, PixelImages)
    assert isinstance(test.images, PixelImages)
    np.savez(
        tmp_path / "digits.npz",
        train_x=train.images.pixels.numpy(),
        train_y=train.labels.numpy(),
        test_x=test.images.pixels.numpy(),
        test_y=test.labels.numpy(),
    )
    return f"npz:{tmp_path / 'digits.npz'}"


def run_until_killed(config: Config, out: Path, seconds: float) -> None:
    """Run, and kill this process a moment after its second save.

    It kills itself, so that on a busy machine the kill is as late as the run.
    """
    save, count = Checkpoints.save, itertools.count(1)

    def saving(self: Checkpoints, number: int, state: State) -> None:
        save(self, number, state)
        if next(count) == 2:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()

    Checkpoints.save = saving  # type: ignore[method-assign]
    run_config(config, out)


@pytest.mark.slow
def test_ten_kills_change_nothing(digits_file: str, tmp_path: Path) -> None:
    # Each kill comes two or three saves after the one before, of more than thirty.
    training = {"base": {"epochs": 6}, "increment": {"epochs": 8}}
    config = short(data={"source": digits_file}, training=training)
    draw, out, found = random.Random(3), tmp_path / "out", []
    for _ in range(10):
        arguments = (config, out, draw.uniform(0, 0.01))
        process = fork_server().Process(target=run_until_killed, args=arguments, daemon=True)
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "the run ended too early"
        found.append(whereabouts(out))
    assert found.count("base") >= 2
    assert found.count("increment") >= 4
    killed, never = run_config(config, out), run_config(config, tmp_path / "fine")
    assert numbers(killed) == numbers(never)
    assert same_weights(Path(killed["folder"]), Path(never["folder"]))
    assert losses(Path(killed["folder"])) == losses(Path(never["folder"]))


@pytest.mark.slow
def test_a_run_that_is_stopped_after_every_batch(
    whole: tuple[Path, Result], tmp_path: Path
) -> None:
    for _ in range(BATCHES):
        with pytest.raises(Stopped):
            run_config(short(), tmp_path, Told(batches=1))
        assert not list(tmp_path.glob("*/result.json"))
    observer = Told()
    result = run_config(short(), tmp_path, observer)
    assert numbers(result) == numbers(whole[1])
    assert same_weights(Path(result["folder"]), Path(whole[1]["folder"]))
    assert losses(Path(result["folder"])) == losses(Path(whole[1]["folder"]))
    assert observer.trained == set()


TINY = {
    "data": {"per_class": 10},
    "scenario": {"base": 5, "steps": 1},
    "memory": {"per_class": 2},
    "training": {"base": {"epochs": 1}, "increment": {"epochs": 1}},
}


@pytest.mark.slow
def test_a_kill_before_any_change_of_a_name(tmp_path: Path) -> None:
    out, copies = tmp_path / "out", tmp_path / "copies"
    with copied_before_each_change(out, copies):
        result = run_config(short(**TINY), out)
    left = sorted(copies.iterdir())
    assert len(left) > 15
    learner = file_names(Path(result["folder"]))
    for copy in left:
        assert numbers(run_config(short(**TINY), copy)) == numbers(result), copy.name
        folder = run_folder(short(**TINY), copy)
        assert same_weights(folder, Path(result["folder"])), copy.name
        assert file_names(folder) == learner, copy.name


def file_names(folder: Path) -> list[str]:
    """The files of learners and of checkpoints in a run folder, without their digests."""
    files = [*folder.glob("learner/*"), *folder.glob("epochs/*/*")]
    return sorted(str(file.relative_to(folder)).partition("-")[0] for file in files)


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_full_disk_loses_nothing(name: str, tmp_path: Path) -> None:
    """Each time one file more can be written than the time before."""
    fine = run_config(short(**TINY), tmp_path / "fine")
    for most in itertools.count(1):
        with suppress(OSError), full_disk(name, most):
            result = run_config(short(**TINY), tmp_path / "full")
            break
    assert most > 4
    assert numbers(result) == numbers(fine)
    assert same_weights(Path(result["folder"]), Path(fine["folder"]))


@pytest.mark.parametrize("ending", ["json", "safetensors"])
def test_a_damaged_learner_is_passed_over_for_the_one_before(
    ending: str, whole: tuple[Path, Result], unfinished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = newest(unfinished / "learner", ending)
    flip_a_bit(file)
    observer = Told()
    result = run_config(short(), unfinished.parent, observer)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        f"{file} is damaged: it isn't what was saved. Checkpoint 2 is used instead."
    )
    assert observer.trained == {3}
    assert numbers(result) == numbers(whole[1])
    assert same_weights(unfinished, Path(whole[1]["folder"]))


def test_a_run_without_an_intact_learner_begins_after_the_base(
    whole: tuple[Path, Result], unfinished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for file in (unfinished / "learner").glob("*.json"):
        flip_a_bit(file)
    observer = Told()
    result = run_config(short(), unfinished.parent, observer)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"No checkpoint in {unfinished / 'learner'} is intact; ")
    assert "done again" in record.getMessage()
    assert observer.trained == {1, 2, 3}
    assert observer.shared == ["taken"]
    assert numbers(result) == numbers(whole[1])
    assert same_weights(unfinished, Path(whole[1]["folder"]))


def test_a_damaged_epoch_is_passed_over_for_the_one_before(
    whole: tuple[Path, Result], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # In the second epoch of task 2, whose first ended after three batches.
    with pytest.raises(Stopped):
        run_config(short(), tmp_path, Told(batches=10 + 6 + 4))
    folder = run_folder(short(), tmp_path)
    file = newest(folder / "epochs" / "002")
    assert file.name.startswith("000004-")
    flip_a_bit(file)
    result = run_config(short(), tmp_path)
    (record,) = caplog.records
    assert record.getMessage().endswith("Checkpoint 3 is used instead.")
    assert numbers(result) == numbers(whole[1])
    assert same_weights(folder, Path(whole[1]["folder"]))


@pytest.mark.parametrize("damaged", ["the newest", "all"])
def test_a_damaged_base_is_trained_again(
    damaged: str, whole: tuple[Path, Result], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out, fine = tmp_path / "out", run_config(short(method={"name": "gkd"}), tmp_path / "fine")
    shutil.copytree(whole[0] / "bases", out / "bases")
    (base,) = (out / "bases").iterdir()
    for file in [newest(base)] if damaged == "the newest" else base.glob("*.safetensors"):
        flip_a_bit(file)
    observer = Told()
    result = run_config(short(method={"name": "gkd"}), out, observer)
    (record,) = caplog.records
    assert str(base) in record.getMessage()
    instead = "Checkpoint 5 is used instead." if damaged == "the newest" else "is done again."
    assert record.getMessage().endswith(instead)
    assert observer.trained == {0, 1, 2, 3}
    assert numbers(result) == numbers(fine)
    assert same_weights(Path(result["folder"]), Path(fine["folder"]))
    caplog.clear()
    other = Told()
    run_config(short(method={"name": "tkd"}), out, other)
    assert caplog.records == []
    assert other.trained == {1, 2, 3}


def test_a_result_that_is_cut_off_is_written_again(
    whole: tuple[Path, Result], unfinished: Path
) -> None:
    content = Path(whole[1]["folder"], "result.json").read_bytes()
    (unfinished / "result.json").write_bytes(content[: len(content) // 2])
    observer = Told()
    assert numbers(run_config(short(), unfinished.parent, observer)) == numbers(whole[1])
    assert observer.trained == set()


class Resuming(Told):
    """Lets a process that was halted go on when the run has to wait for it."""

    def __init__(self, process: ForkedCommand) -> None:
        super().__init__()
        self.process = process

    def shared_base(self, waiting: bool) -> None:
        super().shared_base(waiting)
        if waiting:
            self.process.send_signal(signal.SIGCONT)


@pytest.mark.slow
def test_two_processes_on_one_run_and_on_one_base(tmp_path: Path) -> None:
    changes = {"training": {"base": {"epochs": 15}, "increment": {"epochs": 1}}}
    gkd, rdkd = (short(method={"name": name}, **changes) for name in ("gkd", "rdkd"))
    out, alone = tmp_path / "together", tmp_path / "alone"
    file = tmp_path / "gkd.toml"
    file.write_text(as_toml(gkd))
    command = ["run", "--config", str(file), "--out", str(out)]
    with ForkedCommand(command, tmp_path) as first:
        first.wait_for(lambda: saves(out))
        first.send_signal(signal.SIGSTOP)
        refused = CliRunner().invoke(app, command)
        assert refused.exit_code == 2
        assert refused.stdout == ""
        assert refused.stderr == (
            f"Error: Another process is working on {run_folder(gkd, out)}; "
            "wait for it, or stop it first.\n"
        )
        second = Resuming(first)
        result = run_config(rdkd, out, second)
        assert first.wait() == 0
    assert second.shared == ["waiting", "taken"]
    assert second.trained == {1, 2, 3}
    assert numbers(result) == numbers(run_config(rdkd, alone))
    assert same_weights(run_folder(rdkd, out), run_folder(rdkd, alone))
    assert numbers(run_config(gkd, out)) == numbers(run_config(gkd, alone))
    assert same_weights(run_folder(gkd, out), run_folder(gkd, alone))
    assert len(list((out / "bases").iterdir())) == 1
