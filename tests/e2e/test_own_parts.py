"""One file outside the package: a method with a new term, a backbone, a data set and a metric."""

import csv
import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import densekd
from densekd import parts
from densekd.cli import app

from support.forked_commands import ForkedCommand

pytestmark = pytest.mark.slow

MINE = '''"""A method, a backbone, a data set and a metric of one's own."""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from densekd import CrossEntropy, Method, Phase, Schedules, Step, StepOutputs, Term


class Drift(Term):
    """The mean of weight |f - f_old|^2 over a batch."""

    needs_teacher = True

    def __init__(self, weight: float) -> None:
        super().__init__(["merged"])
        self.weight, self.formula = weight, f"{weight:g} |f - f_old|^2"

    def __call__(self, step: Step) -> Tensor:
        view = step.views["merged"]
        drift = view.student.features - view.teacher.features
        return self.weight * drift.square().sum(1).mean()


def eeil(schedules: Schedules, weight: float = 0.1) -> Method:
    terms = {"ce": CrossEntropy(["merged"], "all"), "kd": Drift(weight)}
    base, increment = Phase("train", schedules.base), Phase("train", schedules.increment)
    return Method("eeil", "linear", terms, base=(base,), increment=(increment,), streams="merged")


def tiny() -> nn.Module:
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16)
    return nn.Sequential(*layers)


class Stripes(Dataset):
    classes = ["1 px", "2 px", "3 px", "4 px"]

    def __init__(self, per_class: int, seed: int) -> None:
        self.labels = torch.arange(4).repeat(per_class)
        generator = torch.Generator().manual_seed(seed)
        self.shift = torch.randint(0, 16, (len(self.labels),), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        row = (torch.arange(8) + self.shift[i]) // (self.labels[i] + 1) % 2
        return row.float().expand(3, 8, 8), int(self.labels[i])


def stripes() -> tuple[Dataset, Dataset]:
    return Stripes(40, seed=1), Stripes(10, seed=2)


def confidence(outputs: StepOutputs) -> float:
    return outputs.logits.softmax(1).amax(1).mean().item()
'''
PARTS = ["--data", "mine.py:stripes", "--network", "mine.py:tiny", "--metric", "mine.py:confidence"]
RUN = ["run", *PARTS, "--method", "mine.py:eeil", "--steps", "2", "--epochs", "20"]
EXPERIMENT = """
title = "Weights"
about = "Two weights of the drift."
[settings]
network = "mine.py:tiny"
metrics = ["mine.py:confidence"]
epochs = 2
data.source = "mine.py:stripes"
scenario.steps = 2
method.name = "mine.py:eeil"
[grid]
method.params.weight = [0.1, 1.0]
seed = [1]
[table]
rows = "method.params.weight"
columns = "seed"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``mine.py`` and a finished run in ``runs``."""
    place = tmp_path_factory.mktemp("own")
    assert MINE.count("\n") <= 60
    imports = [line for line in MINE.splitlines() if "densekd" in line and "import" in line]
    assert all(line.startswith("from densekd import ") for line in imports)
    (place / "mine.py").write_text(MINE)
    call(place, *RUN)
    return place


def call(folder: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints that is given in a folder; as in a new process, no file is loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(parts, "_files", {})
        done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def result(out: Path) -> dict[str, Any]:
    (file,) = out.glob("*/result.json")
    read: dict[str, Any] = json.loads(file.read_text())
    return read


def numbers(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps without what depends on the time."""
    timed = ("seconds", "images_per_second")
    return [{k: v for k, v in step.items() if k not in timed} for step in found["steps"]]


def test_a_run_uses_all_parts(folder: Path) -> None:
    found = result(folder / "runs")
    assert Path(found["folder"]).name.startswith("stripes-eeil-")
    assert [len(step["classes"]) for step in found["steps"]] == [2, 1, 1]
    assert set(found["steps"][0]["classes"]) < {"1 px", "2 px", "3 px", "4 px"}
    assert all(0.25 < step["metrics"]["confidence"] <= 1 for step in found["steps"])
    assert found["steps"][0]["accuracy"] > 0.6
    losses = (folder / found["folder"] / "epochs.jsonl").read_text()
    assert '"kd"' in losses
    assert "confidence" in call(folder, *RUN)


def test_a_killed_run_resumes_to_the_same_bits(folder: Path, tmp_path: Path) -> None:
    killed, said = folder / "killed", tmp_path / "said"
    with ForkedCommand([*RUN, "--out", "killed"], folder, errors=said) as command:
        command.wait_for(lambda: list(killed.glob("stripes-*/learner/*")))
        command.kill()
        assert command.wait() == -signal.SIGKILL
    assert not list(killed.glob("*/result.json"))
    call(folder, *RUN, "--out", "killed")
    assert numbers(result(killed)) == numbers(result(folder / "runs"))


def test_a_changed_file_is_refused_until_it_is_restored(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "mine.py").write_text(MINE.replace("weight: float = 0.1", "weight: float = 0.2"))
    error = call(tmp_path, *RUN, code=2)
    assert "mine.py has changed since this run began; restore it, delete runs/stripes-eeil" in error
    call(tmp_path, *RUN, "--out", "other")  # trains a base of its own
    assert numbers(result(tmp_path / "other")) != numbers(result(folder / "runs"))
    (tmp_path / "mine.py").write_text(MINE)
    call(tmp_path, *RUN)


def test_a_sweep_and_its_report(folder: Path) -> None:
    (folder / "weights.toml").write_text(EXPERIMENT)
    call(folder, "sweep", "weights.toml", "--out", "swept", "--workers", "1")
    results = [json.loads(file.read_text()) for file in folder.glob("swept/*/result.json")]
    assert sorted(r["config"]["method"]["params"]["weight"] for r in results) == [0.1, 1.0]
    # The report never runs code, so it needs none.
    (folder / "mine.py").rename(folder / "gone.py")
    call(folder, "report", "swept", "--out", "told")
    (folder / "gone.py").rename(folder / "mine.py")
    with (folder / "told" / "tables" / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    told = sorted(float(row["metrics.confidence"]) for row in rows)
    assert told == sorted(r["steps"][-1]["metrics"]["confidence"] for r in results)
    assert "confidence" in (folder / "told" / "index.html").read_text()
    (folder / "mine.py").write_text(MINE.replace("nn.ReLU()", "nn.Tanh()"))
    error = call(folder, "sweep", "weights.toml", "--out", "swept", "--workers", "1", code=1)
    assert error.count("mine.py has changed since this run began") == 2
    (folder / "mine.py").write_text(MINE)
    call(folder, "sweep", "weights.toml", "--out", "swept", "--workers", "1")


def test_the_code_of_a_folder_runs_only_with_consent(folder: Path) -> None:
    run = result(folder / "runs")["folder"]
    fast = ["flatness", run, "--images", "2", "--sigmas", "0,0.01", "--draws", "1"]
    error = call(folder, *fast, code=2)
    assert "code in mine.py:tiny, which runs only if you agree: add --trust-code" in error
    assert "sigma" in call(folder, *fast, "--trust-code")


def test_python_values_give_the_numbers_of_the_file(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        import mine  # type: ignore[import-not-found]

        densekd.run(
            data=mine.stripes,
            network=mine.tiny,
            method=mine.eeil,
            steps=2,
            epochs=20,
            override={"metrics": [mine.confidence]},
            out="python",
            quiet=True,
        )
        del sys.modules["mine"]
    assert numbers(result(folder / "python")) == numbers(result(folder / "runs"))


def test_another_method_goes_on_from_a_step(folder: Path) -> None:
    run = result(folder / "runs")["folder"]
    command = ["run", "--from", f"{run}@2", "--method", "gkd", "--out", "branch"]
    command += ["-o", "method.options.head=linear"]
    assert "--trust-code" in call(folder, *command, code=2)
    call(folder, *command, "--trust-code")
    steps = numbers(result(folder / "branch"))
    assert steps[:2] == numbers(result(folder / "runs"))[:2]


def test_a_changed_file_is_not_gone_on_from(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    run = result(tmp_path / "runs")["folder"]
    (tmp_path / "mine.py").write_text(MINE.replace("nn.ReLU()", "nn.Tanh()"))
    error = call(tmp_path, "run", "--from", f"{run}@2", "--trust-code", "--out", "b", code=2)
    assert "mine.py has changed since" in error
    assert "put what is new into another file" in error
