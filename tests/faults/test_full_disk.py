"""Commands about runs on a disk that is full: one sentence, and nothing is lost."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from densekd.cli import app
from densekd.runs.stored import load_result

from support.faults import small_disk
from support.run_folders import write_run

TINY = ("data.per_class=5", "data.test_per_class=5", "scenario.steps=1", "memory.per_class=1")
EPOCHS = ("training.base.epochs=1", "training.increment.epochs=1")


def told(*command: str | Path) -> str:
    """What a command says that ends with an expected error."""
    done = CliRunner().invoke(app, [str(word) for word in command])
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    return done.output


def numbers(folder: Path) -> list[dict[str, Any]]:
    """The steps of a run, without what depends on the clock."""
    passing = ("seconds", "images_per_second")
    steps = load_result(folder)["steps"]
    return [{k: v for k, v in step.items() if k not in passing} for step in steps]


def test_a_report(tmp_path: Path) -> None:
    run, disk = write_run(tmp_path / "runs"), tmp_path / "disk"
    with small_disk(disk, 8192):
        assert "No space left" in told("report", run, "--out", disk / "report")
        assert not [*disk.rglob(".*.tmp")]


@pytest.mark.slow
def test_a_run(tmp_path: Path) -> None:
    disk, fine = tmp_path / "disk", tmp_path / "fine"
    options = [word for each in (*TINY, *EPOCHS) for word in ("-o", each)]
    command = ["run", "--quiet", *options, "--out"]
    assert CliRunner().invoke(app, [*command, str(fine)]).exit_code == 0
    (whole,) = fine.glob("digits-*")
    with small_disk(disk, 600_000) as enlarge:
        assert "No space left" in told(*command, disk)
        assert not [*disk.rglob("result.json")]
        enlarge()
        assert CliRunner().invoke(app, [*command, str(disk)]).exit_code == 0
        assert numbers(disk / whole.name) == numbers(whole)
