import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch.nn.functional import avg_pool2d

import densekd
from densekd.config.schema import Config, as_toml, as_tree, resolve
from densekd.config.settings_tree import merge, read_toml
from densekd.data.dataset import Dataset, PixelImages, Split
from densekd.data.digits_npz import load_digits
from densekd.files import read_sealed_json
from densekd.reports.events import read_losses
from densekd.runs.epochs import read_epochs
from densekd.runs.loggers import Axis, Logger
from densekd.runs.observer import RunObserver
from densekd.runs.record import StepRecord
from densekd.runs.run import run_config, run_folder
from densekd.training.callbacks import Stopped, TrainingProgress

from support.forked_commands import ForkedCommand

Result = Mapping[str, Any]

SHORT = {
    "network": "resnet8",
    "data": {"per_class": 40},
    "scenario": {"base": 4, "steps": 3},
    "method": {"name": "gkd"},
    "training": {
        "base": {"epochs": 2, "batch_size": 32},
        "increment": {"epochs": 2, "batch_size": 32},
    },
}


def short(**changes: Any) -> Config:
    return resolve(merge(SHORT, changes))


class Told(RunObserver):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.trained: set[int] = set()

    def started(self, folder: Path, tasks: object, done: int) -> None:
        self.events.append(f"started after {done}")

    def shared_base(self, waiting: bool) -> None:
        self.events.append("waiting" if waiting else "base taken")

    def evaluated(self, record: StepRecord) -> None:
        self.events.append(f"evaluated {record.number}")

    def report(self, report: TrainingProgress) -> None:
        self.trained.add(report.task)


class Brief(Told):
    """Stops after the first batch."""

    def stop(self) -> bool:
        return True


def numbers(result: Result) -> dict[str, Any]:
    """A result without what depends on the clock and on the place."""
    passing = ("seconds", "images_per_second")
    steps = [{k: v for k, v in step.items() if k not in passing} for step in result["steps"]]
    return {**result, "steps": steps, "folder": None}


def images(result: Result) -> list[int]:
    """How many images each task was trained on, repetitions counted."""
    return [round(step["seconds"] * step["images_per_second"]) for step in result["steps"]]


def changed(folder: Path) -> dict[Path, int]:
    """When each file was changed."""
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A folder of runs with one of gkd, and the result that it stored."""
    out = tmp_path_factory.mktemp("runs")
    returned = run_config(short(), out)
    text = Path(returned["folder"], "result.json").read_text()
    stored: dict[str, Any] = json.loads(text, parse_constant=no_constant)
    assert stored.pop("sha256")
    assert returned == stored
    return out, stored


def test_a_result_says_how_it_came_about(finished: tuple[Path, Result]) -> None:
    out, result = finished
    folder = run_folder(short(), out)
    assert result["folder"] == str(folder)
    assert result["config"] == as_tree(short())
    assert resolve(read_toml(folder / "config.toml")) == short()
    assert result["versions"]["densekd"] == densekd.__version__
    assert result["versions"]["torch"] == torch.__version__
    assert result["precision"] == result["engine"]["precision"]
    assert result["precision"] in ("32", "bf16")
    assert result["engine"]["devices"] == 1


def test_the_accuracies_of_a_result_agree_with_each_other(finished: tuple[Path, Result]) -> None:
    _, result = finished
    steps, sizes = result["steps"], (4, 2, 2, 2)
    assert [len(step["classes"]) for step in steps] == list(sizes)
    assert [step["classes_seen"] for step in steps] == [4, 6, 8, 10]
    order = [int(name) for step in steps for name in step["classes"]]
    counts = load_digits().test.labels.bincount()[order]
    tasks = np.array([int(part.sum()) for part in counts.split(sizes)])
    matrix = np.array(result["accuracy_matrix"], dtype=float)
    for number, step in enumerate(steps):
        row, images = matrix[number, : number + 1], tasks[: number + 1]
        assert step["number"] == number
        assert step["task_accuracies"] == row.tolist()
        assert step["accuracy"] == pytest.approx(row @ images / images.sum())
        assert step["base_accuracy"] == row[0]
        assert step["new_accuracy"] == row[-1]
        if number:
            old = row[:-1] @ images[:-1] / images[:-1].sum()
            assert step["old_accuracy"] == pytest.approx(old)
    assert steps[0]["old_accuracy"] is None
    assert np.isnan(matrix[np.triu_indices(4, 1)]).all()
    confusion = np.array(result["confusion_matrix"])
    assert confusion.sum(1).tolist() == counts.tolist()
    assert steps[-1]["accuracy"] == np.trace(confusion) / confusion.sum()


def test_the_averages_of_a_result_are_those_of_its_steps(finished: tuple[Path, Result]) -> None:
    _, result = finished
    steps, matrix = result["steps"], np.array(result["accuracy_matrix"], dtype=float)
    mean = np.mean([step["accuracy"] for step in steps])
    assert result["average_incremental_accuracy"] == pytest.approx(mean)
    nearest = np.mean([step["nme_accuracy"] for step in steps])
    assert result["average_incremental_accuracy_nme"] == pytest.approx(nearest)
    falls = np.nanmax(matrix[:-1, :-1], axis=0) - matrix[-1, :-1]
    assert result["forgetting"] == pytest.approx(falls.mean())
    assert result["average_incremental_accuracy"] > 0.6


def test_a_result_counts_the_images(finished: tuple[Path, Result]) -> None:
    _, result = finished
    # Each epoch of 80 new images has three batches, and as many of the 120, 160 and 200 exemplars
    # of old and new classes, which come in batches of 30, 32 and 29.
    expected = [4 * 40, 80 + 3 * 30, 80 + 3 * 32, 80 + 3 * 29]
    assert images(result) == [2 * count for count in expected]


def test_a_finished_run_is_only_read(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.integers(256, size=(40, 8, 8), dtype=np.uint8), np.arange(40) % 4
    np.savez(tmp_path / "noise.npz", train_x=x, train_y=y, test_x=x[:8], test_y=y[:8])
    config = short(
        data={"source": f"npz:{tmp_path / 'noise.npz'}"}, scenario={"base": 2, "steps": 1}
    )
    out, first, again = tmp_path / "out", Told(), Told()
    result = run_config(config, out, first)
    assert first.events == ["started after 0", "evaluated 0", "evaluated 1"]
    before = changed(out)
    # Not even the data are needed.
    (tmp_path / "noise.npz").unlink()
    assert run_config(config, out, again) == result
    assert again.events == []
    assert changed(out) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"method": {"name": "fdkd-adaptive"}},
        {"scenario": {"increment": 3}, "method": {"name": "rdkd"}},
        {"memory": {"total": 30, "selection": "herding"}, "training": {"increment": {"lr": 0.05}}},
    ],
)
def test_a_base_is_trained_once(
    changes: dict[str, Any], finished: tuple[Path, Result], tmp_path: Path
) -> None:
    out, _ = finished
    (base,) = (out / "bases").iterdir()
    checkpoints = {file: file.stat().st_mtime_ns for file in base.glob("0*")}
    assert len(checkpoints) == 4
    shared, alone = Told(), Told()
    results = [
        run_config(short(**changes), out, shared),
        run_config(short(**changes), tmp_path, alone),
    ]
    tasks = len(results[0]["steps"])
    events = ["started after 0", *(f"evaluated {number}" for number in range(tasks))]
    assert alone.events == events
    assert shared.events == [events[0], "base taken", *events[1:]]
    assert alone.trained - shared.trained == {0}
    assert list((out / "bases").iterdir()) == [base]
    assert {file: file.stat().st_mtime_ns for file in base.glob("0*")} == checkpoints
    assert numbers(results[0]) == numbers(results[1])
    # The losses of the base are shown by both.
    assert losses(results[0]) == losses(results[1])
    assert len(losses(results[0])) == 2 * tasks


class EpochsLogged(Logger):
    """Keeps the numbers of the epochs that it gets."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def log(self, axis: Axis, step: int, numbers: Mapping[str, float]) -> None:
        if axis == "epochs":
            self.epochs.append(step)


class AfterAnEpoch(Told):
    """Stops in the second epoch."""

    stops = False

    def report(self, report: TrainingProgress) -> None:
        self.stops = report.epoch > 0

    def stop(self) -> bool:
        return self.stops


def test_loggers_get_all_epochs_of_a_base_that_another_run_began(tmp_path: Path) -> None:
    base = {"training": {"base": {"epochs": 4}}, "scenario": {"base": 6, "steps": 1}}
    with pytest.raises(Stopped):
        run_config(short(**base), tmp_path, AfterAnEpoch())
    logger = EpochsLogged()
    other = short(**base, method={"name": "finetune"}, loggers=[logger])
    result = run_config(other, tmp_path)
    assert len(list((tmp_path / "bases").iterdir())) == 1
    assert logger.epochs == [entry["step"] for entry in read_epochs(Path(result["folder"]))]
    assert logger.epochs[:4] == [1, 2, 3, 4]


def losses(result: Result) -> list[dict[str, Any]]:
    """The epochs of a run, without what depends on the clock."""
    epochs = read_epochs(Path(result["folder"]))
    return [{k: v for k, v in each.items() if k != "images_per_second"} for each in epochs]


def test_tensorboard_is_one_more_writer_and_not_needed(
    finished: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, result = finished
    folder = Path(result["folder"])
    with_events = read_losses(folder)
    assert list(folder.glob("tensorboard/epochs/events.*"))
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setattr("densekd.runs.trackers.find_spec", lambda name: None)
    without = run_config(short(), tmp_path)
    assert not (Path(without["folder"]) / "tensorboard").exists()
    assert losses(without) == losses(result)
    assert numbers(without) == numbers(result)
    assert read_losses(Path(without["folder"])) == with_events
    assert set(with_events) == {"new", "exemplars", "kd"}
    assert [step for step, _ in with_events["kd"]] == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(("network", "times"), [("resnet8", 1), ("podnet14", 0)])
def test_a_network_that_a_method_is_not_meant_for_is_warned_of(
    network: str, times: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Stopped):
        run_config(short(network=network, method={"name": "podnet"}), tmp_path, Brief())
    assert sum("meant for networks such as podnet32" in x for x in caplog.messages) == times


def test_a_base_of_its_own_for_all_that_matters_to_it(tmp_path: Path) -> None:
    def bases(**changes: Any) -> int:
        """How many bases there are after a run was begun."""
        with pytest.raises(Stopped):
            run_config(short(**changes), tmp_path, Brief())
        return len(list((tmp_path / "bases").iterdir()))

    assert bases() == 1
    assert bases(method={"name": "tkd-adaptive"}) == 1
    assert bases(method={"options": {"temperature": 4.0}}) == 1
    assert bases(scenario={"increment": 2}) == 1
    assert bases(memory={"per_class": 5}) == 1
    assert bases(training={"increment": {"epochs": 1}}) == 1
    assert bases(seed=1) == 2
    assert bases(network="resnet14") == 3
    assert bases(training={"base": {"lr": 0.05}}) == 4
    assert bases(data={"per_class": 41}) == 5
    assert bases(scenario={"base": 7}) == 6
    assert bases(scenario={"order": "natural"}) == 7
    assert bases(method={"options": {"head": "linear"}}) == 8
    assert bases(augment={"padding": 0}) == 9
    assert bases(method={"name": "joint"}) == 10


# Long enough to learn something, and for a signal to arrive in between.
RANKS = {
    "network": "resnet8",
    "scenario": {"base": 4, "steps": 2},
    "training": {"base": {"epochs": 5}, "increment": {"epochs": 5}},
    "engine": {"accelerator": "cpu"},
}


@contextmanager
def ranks(folder: Path) -> Iterator[ForkedCommand]:
    """A run of two processes, none of which outlives the test; the first starts the second."""
    folder.mkdir(exist_ok=True)
    file = folder / "ranks.toml"
    file.write_text(as_toml(resolve(merge(RANKS, {"engine": {"devices": 2}}))))
    command = ["run", "--config", str(file), "--out", str(folder / "out")]
    printed, said = folder / "printed", folder / "said"
    with ForkedCommand(command, folder, printed, said, first=os.setsid) as process:
        try:
            yield process
            # The second process may take a moment longer, on a busy machine a long one.
            until = time.monotonic() + 600
            while group(process.pid) and time.monotonic() < until:
                time.sleep(0.1)
            assert group(process.pid) == []
        finally:
            for pid in group(process.pid):
                os.kill(pid, signal.SIGKILL)


def group(leader: int) -> list[int]:
    """The processes of a group that run."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,pgid=,stat="], capture_output=True, text=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [int(pid) for pid, own, state in rows if int(own) == leader and state[0] != "Z"]


def stored(out: Path) -> dict[str, Any]:
    (file,) = out.glob("digits-*/result.json")
    return read_sealed_json(file)


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder of runs with one by two processes, and what it printed."""
    folder = tmp_path_factory.mktemp("ranks")
    with ranks(folder) as process:
        assert process.wait() == 0, process.said()
    return folder / "out", process.printed()


@pytest.mark.slow
def test_two_processes_learn_as_one_does(by_two: tuple[Path, str], tmp_path: Path) -> None:
    out, printed = by_two
    two, one = stored(out), run_config(resolve(RANKS), tmp_path)
    assert two["engine"]["devices"] == 2
    # A batch that is odd is counted as if it were one larger.
    assert images(two) == pytest.approx(images(one), rel=0.05)
    # Two runs of one process with different seeds differ by up to 0.012.
    average = one["average_incremental_accuracy"]
    assert two["average_incremental_accuracy"] == pytest.approx(average, abs=0.02)
    # Only the first process prints and writes.
    assert printed.count("Average incremental accuracy") == 1
    writers = {file.name.split(".")[5] for file in out.rglob("events.out.*")}
    assert len(writers) == 1


@pytest.mark.slow
def test_two_processes_that_were_stopped_go_on(by_two: tuple[Path, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with ranks(tmp_path) as process:
        process.wait_for(lambda: "task 1 learned" in process.said())
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM
    said = process.said()
    assert said.count("Stopped and saved. To resume, run: ") == 1
    assert "Traceback" not in said
    assert not list(out.glob("*/result.json"))
    process.errors.unlink()
    with ranks(tmp_path) as process:
        assert process.wait() == 0, process.said()
    assert "Resumed after task 1 of 3." in process.said()
    assert numbers(stored(out)) == numbers(stored(by_two[0]))
    weights = [load_file(max(at.glob("*/learner/*.safetensors"))) for at in (out, by_two[0])]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


@pytest.fixture
def small_cifar(cifar100: Dataset, tmp_path: Path) -> Path:
    """Twenty classes of the real CIFAR-100 at half its size, 60 training images of each."""

    def first(split: Split) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        own = [torch.nonzero(split.labels == label)[:60, 0] for label in range(20)]
        chosen = split.take(torch.cat(own))
        assert isinstance(chosen.images, PixelImages)
        pixels = avg_pool2d(chosen.images.pixels.float(), 2).round().byte()
        return pixels.numpy(), chosen.labels.numpy()

    (train_x, train_y), (test_x, test_y) = first(cifar100.train), first(cifar100.test)
    file = tmp_path / "cifar.npz"
    np.savez(file, train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y)
    return file


@pytest.mark.slow
def test_distillation_keeps_more_of_the_real_cifar(small_cifar: Path, tmp_path: Path) -> None:
    def kept(method: str) -> float:
        """The share of the base task's test images that is right in the end."""
        result = run_config(
            resolve(
                {
                    "network": "resnet8",
                    "data": {"source": f"npz:{small_cifar}"},
                    "scenario": {"base": 10, "steps": 2},
                    "memory": {"per_class": 2},
                    "method": {"name": method, "options": {"lambda_base": 60.0}},
                    "training": {
                        "base": {"epochs": 10, "lr": 0.1, "batch_size": 32},
                        "increment": {"epochs": 5, "lr": 0.1, "batch_size": 32},
                    },
                }
            ),
            tmp_path / "out",
        )
        return float(result["steps"][-1]["base_accuracy"])

    # With two seeds they keep at least 0.10 more.
    forgetful = kept("finetune")
    assert kept("gkd") > forgetful + 0.04
    assert kept("rdkd") > forgetful + 0.04
