import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor, nn

import densekd
from densekd.config.keywords import make_config
from densekd.config.schema import resolve
from densekd.training.callbacks import TrainingProgress
from densekd.training.own_metrics import StepOutputs

TINY = {"network": "resnet8", "data": {"per_class": 10}, "scenario": {"steps": 1}, "epochs": 1}


class Interrupting(densekd.RunObserver):
    """Raises a signal after the first batches, as Ctrl-C or a notebook's stop button do."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def report(self, report: TrainingProgress) -> None:
        signal.raise_signal(self.number)


class Names(densekd.RunObserver):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def started(self, folder: Path, tasks: Sequence[densekd.Task], done: int) -> None:
        self.seen.append("started")

    def training(self, number: int, classes: Sequence[str]) -> None:
        self.seen.append(f"training {number}")

    def evaluated(self, record: object) -> None:
        self.seen.append("evaluated")


@pytest.mark.slow
def test_a_run_shows_its_progress_and_gives_its_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    observer = Names()
    result = densekd.run(TINY, method="gkd", seed=5, out=tmp_path, observer=observer)
    assert "task 2 learned" in capsys.readouterr().err
    learned = ["training 0", "evaluated", "training 1", "evaluated"]
    assert observer.seen == ["started", *learned]
    assert result.folder.parent == tmp_path
    assert result.settings["seed"] == 5
    config = resolve({**TINY, "method": {"name": "gkd"}, "seed": 5})
    assert densekd.run(config, out=tmp_path, quiet=True) == result
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_saved_and_resumed_by_the_same_call(
    tmp_path: Path, number: signal.Signals
) -> None:
    with pytest.raises(densekd.Stopped):
        densekd.run(TINY, out=tmp_path / "cut", quiet=True, observer=Interrupting(number))
    resumed = densekd.run(TINY, out=tmp_path / "cut", quiet=True)
    whole = densekd.run(TINY, out=tmp_path / "whole", quiet=True)
    assert resumed["accuracy_matrix"] == whole["accuracy_matrix"]


@pytest.mark.slow
def test_a_run_keeps_to_its_file_of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("tasks.txt")

    def learned(*tasks: str) -> densekd.Result:
        file.write_text("\n\n".join("\n".join(names) for names in tasks))
        return densekd.run(TINY, tasks="tasks.txt", quiet=True)

    with pytest.raises(ValueError, match="no class 'x'"):
        learned("01234", "5678x")
    result = learned("01234", "56789")  # what was refused may be corrected
    assert learned("01234", "56789") == result
    with pytest.raises(ValueError, match=r"tasks\.txt has changed since this run began; restore"):
        learned("56789", "01234")
    file.unlink()
    assert densekd.run(TINY, tasks="tasks.txt", quiet=True) == result


def test_wrong_settings_are_value_errors_of_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no method 'gdk'; did you mean gkd"):
        densekd.run(method="gdk", out=tmp_path)
    with pytest.raises(ValueError, match=r"memory\.per_clas is not a setting"):
        densekd.run(override={"memory.per_clas": 1}, out=tmp_path)


def test_several_devices_need_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [""])
    with pytest.raises(ValueError, match="interactive session can't; write the call into a file"):
        densekd.run(devices=2, out=tmp_path)


@pytest.mark.slow
def test_parts_of_ones_own_are_values(tmp_path: Path) -> None:
    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 8, 3)

        def forward(self, pixels: Tensor) -> Tensor:
            features: Tensor = self.layer(pixels)
            return features.relu().mean((2, 3))

    def share_of_first(outputs: StepOutputs) -> float:
        return float((outputs.logits.argmax(1) == 0).float().mean())

    train = densekd.Phase("train", densekd.Schedule(epochs=1))
    terms = {"all": densekd.CrossEntropy(["new", "exemplars"], over="all")}
    method = densekd.Method("replay", "linear", terms, (train,), (train,))
    labels = np.arange(80) % 4
    images = np.random.default_rng(0).integers(0, 200, (80, 8, 8), np.uint8) + labels[:, None, None]
    images = images.astype(np.uint8)
    result = densekd.run(
        data=(images[:40], labels[:40], images[40:], labels[40:]),
        method=method,
        network=Tiny(),
        metrics=[share_of_first],
        steps=1,
        out=tmp_path,
        quiet=True,
    )
    assert result.folder.name.startswith("arrays-replay-")
    assert "share_of_first" in result.steps[-1].metrics


def test_a_folder_is_data_too() -> None:
    assert make_config(None, {"data": Path("photos")}).data.source == "folder:photos"
