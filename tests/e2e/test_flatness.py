import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from densekd.analysis.flatness import Noise, flatness, measure_flatness
from densekd.cli import app
from densekd.cli.flatness import parse_sigmas
from densekd.config.schema import as_toml, resolve
from densekd.data.dataset import join_splits
from densekd.files import write_atomically, write_sealed_json
from densekd.runs.loaded import load_run
from densekd.runs.run import run_config
from densekd.runs.stored import load_flatness
from densekd.training.callbacks import Stopped

NOISE = Noise((0.0, 0.05, 0.2), draws=2, seed=1)


def settings(**changes: Any) -> Mapping[str, Any]:
    return {
        "network": "resnet8",
        "data": {"per_class": 12},
        "scenario": {"base": 4, "steps": 2},
        "training": {"base": {"epochs": 1}, "increment": {"epochs": 1}},
        **changes,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    result = run_config(resolve(settings()), tmp_path_factory.mktemp("runs"))
    return Path(result["folder"])


@pytest.fixture
def unmeasured(folder: Path) -> Path:
    """The same without what other tests measured."""
    for file in folder.glob("flatness*"):
        file.unlink()
    return folder


def test_what_is_written_is_what_was_learned(unmeasured: Path) -> None:
    result = measure_flatness(unmeasured, NOISE)
    assert load_flatness(unmeasured) == result
    loaded = load_run(unmeasured)
    scenario, learner = loaded.scenario, loaded.learner()
    train = join_splits([task.train for task in scenario])
    assert result == {
        "sigmas": [0.0, 0.05, 0.2],
        "draws": 2,
        "seed": 1,
        "per_class": None,
        "images": 120,
        "losses": flatness(learner, train, NOISE),
    }
    assert result["losses"][0][0] < np.mean(result["losses"][2])


def test_what_was_measured_is_only_read(unmeasured: Path) -> None:
    result = measure_flatness(unmeasured, NOISE)
    file = unmeasured / "flatness.json"
    before = file.stat().st_mtime_ns

    def never(done: int, total: int) -> None:
        raise AssertionError("nothing is left to do")

    assert measure_flatness(unmeasured, NOISE, on_progress=never) == result
    assert file.stat().st_mtime_ns == before
    fewer = measure_flatness(unmeasured, NOISE, per_class=3)
    assert (fewer["images"], fewer["per_class"]) == (30, 3)
    assert fewer["losses"] != result["losses"]


@pytest.mark.parametrize("batches", [1, 2, 4])
def test_what_was_interrupted_goes_on(batches: int, unmeasured: Path) -> None:
    whole = measure_flatness(unmeasured, NOISE)
    (unmeasured / "flatness.json").unlink()
    told: list[int] = []

    def stop(done: int, total: int) -> None:
        told.append(done)
        if len(told) == batches:
            raise Stopped

    # Each of the five losses is that of one batch, and one that is interrupted is lost.
    with pytest.raises(Stopped):
        measure_flatness(unmeasured, NOISE, on_progress=stop)
    assert not (unmeasured / "flatness.json").exists()
    counts: list[int] = []
    resumed = measure_flatness(unmeasured, NOISE, on_progress=lambda done, _: counts.append(done))
    assert resumed == whole
    assert counts == [120 * n for n in range(1, 6)]
    assert [file.name for file in unmeasured.glob("flatness*")] == ["flatness.json"]


def test_a_forged_beginning_has_no_more_losses_than_there_are(unmeasured: Path) -> None:
    asked = {"sigmas": [0.0, 0.05, 0.2], "draws": 2, "seed": 1, "per_class": None}
    forged = {**asked, "losses": [float(n) for n in range(9)]}
    write_sealed_json(unmeasured / "flatness-unfinished.json", forged)
    losses = measure_flatness(unmeasured, NOISE)["losses"]
    assert losses == [[0.0, 0.0], [1.0, 3.0], [2.0, 4.0]]


def test_an_unfinished_run_has_no_minimum(tmp_path: Path, folder: Path) -> None:
    shutil.copy(folder / "config.toml", tmp_path)
    shutil.copytree(folder / "learner", tmp_path / "learner")
    for file in (tmp_path / "learner").glob("000002*"):
        file.unlink()
    with pytest.raises(ValueError, match="has learned 2 of 3 tasks; repeat its `densekd run`"):
        measure_flatness(tmp_path, NOISE)


def test_a_run_of_other_classes_is_not_measured(tmp_path: Path, folder: Path) -> None:
    other = resolve(settings(scenario={"base": 4, "steps": 2, "order": 7}))
    write_atomically(tmp_path / "config.toml", as_toml(other))
    shutil.copytree(folder / "learner", tmp_path / "learner")
    with pytest.raises(ValueError, match="learned other classes than its data has now"):
        measure_flatness(tmp_path, NOISE)


def test_the_command_shows_a_table_and_draws(unmeasured: Path) -> None:
    command = ["flatness", str(unmeasured), "--sigmas", "0.05,0.2", "--draws", "2", "--seed", "1"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    result = json.loads((unmeasured / "flatness.json").read_text())
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["0", "0.05", "0.2"]
    means = np.mean(result["losses"], axis=1)
    assert [float(row[1]) for row in rows] == pytest.approx(means, abs=6e-5)
    assert [float(row[3]) for row in rows] == pytest.approx(means - means[0], abs=6e-5)
    with Image.open(unmeasured / "flatness.png") as picture:
        assert picture.width > 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sigmas", "0:0.02"], "Write sigmas as 0:0.02:0.001"),
        (["--sigmas", "-1"], "Write sigmas as 0:0.02:0.001"),
        (["--sigmas", "0:1:0"], "Write sigmas as 0:0.02:0.001"),
        (["--sigmas", "0:1:1e-12"], "Write sigmas as 0:0.02:0.001"),
        (["--draws", "0"], "Noise must be drawn at least once"),
        (["--images", "0"], "--images must be at least 1, not 0."),
    ],
)
def test_the_command_refuses_in_a_sentence(arguments: list[str], words: str, folder: Path) -> None:
    done = CliRunner().invoke(app, ["flatness", str(folder), *arguments])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"Error: {words}")


@pytest.mark.parametrize(
    ("text", "sigmas"),
    [
        ("0:0.3:0.1", (0.0, 0.1, 0.2, 0.3)),
        ("0.1:0.2:0.1", (0.0, 0.1, 0.2)),
        ("0.2, 0.1", (0.0, 0.1, 0.2)),
        ("0", (0.0,)),
    ],
)
def test_a_grid_of_sigmas(text: str, sigmas: tuple[float, ...]) -> None:
    assert parse_sigmas(text) == sigmas


def test_the_usual_grid_of_the_command_is_that_of_the_function() -> None:
    assert parse_sigmas("0:0.02:0.001") == Noise().sigmas
