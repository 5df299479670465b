from pathlib import Path

import pytest
from typer.testing import CliRunner

from densekd.cli import app
from densekd.model.frozen import erase


def test_the_question_names_the_classes_that_were_not_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[object, ...]] = []

    def also_erased(*given: object) -> tuple[str, ...]:
        asked.append(given)
        return ("This also erases all 9 photos of 'cap', which were once called 'hat'.",)

    monkeypatch.setattr(erase, "also_erased", also_erased)
    result = CliRunner().invoke(app, ["forget", str(tmp_path), "hat", "--everywhere"], input="n\n")
    assert result.exit_code == 1
    assert asked == [(tmp_path, ["hat"], [])]
    assert (
        f"Erase hat from all steps of {tmp_path}? This also erases all 9 photos of 'cap', which "
        "were once called 'hat'. This can't be undone."
    ) in result.stderr
