from pathlib import Path

import pytest
from typer.testing import CliRunner

from densekd.cli import app
from densekd.methods.registry import BASELINES, METHODS


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["methods", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_explained_and_a_baseline_has_settings_of_its_own(name: str) -> None:
    text = output(name)
    assert text.startswith(f"{name}: {METHODS[name].summary}.")
    assert ("Own settings, method." in text) == (name in BASELINES)


def test_ccil_says_what_can_be_had_for_its_base_task() -> None:
    text = output("ccil")
    assert "method.ccil: lambda_base = 5.0" in text
    assert "mixup = 0.0, heavy_augmentation = false." in text


def test_a_method_of_ones_own_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from densekd import DenseOptions, make_method\n"
        "def own(schedules):\n    return make_method('gkd', DenseOptions(), schedules)\n"
    )
    text = output(f"{file}:own")
    assert text.startswith(f"{file}:own: ")
    assert "Loss: " in text
    assert "later tasks, " in text
