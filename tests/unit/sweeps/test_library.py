from pathlib import Path

import pytest
from typer.testing import CliRunner

from densekd.cli import app
from densekd.sweeps.library import LIBRARY, experiment_names, find_experiment


def test_an_experiment_is_found_by_name_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_experiment("table4-distillations") == LIBRARY / "table4-distillations.toml"
    assert find_experiment("mine.toml") == Path("mine.toml")
    assert find_experiment("folder/mine") == Path("folder/mine")
    with pytest.raises(ValueError, match="did you mean table5-ablation"):
        find_experiment("table5-ablations")


def test_a_file_in_the_folder_experiments_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = Path("experiments/fig-memory.toml")
    own.parent.mkdir()
    own.write_text("")
    (own.parent / "mine.toml").write_text("")
    assert find_experiment("fig-memory") == own
    assert {"mine", "table6-orders"} <= set(experiment_names())


def test_the_command_lists_all_experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    listed = CliRunner().invoke(app, ["sweep", "--list"])
    assert listed.exit_code == 0
    names = [line.split()[0] for line in listed.stdout.splitlines() if line.strip()][2:]
    assert names == sorted(file.stem for file in LIBRARY.glob("*.toml"))
    assert "Table 4: four distillations on CIFAR-100" in listed.stdout
