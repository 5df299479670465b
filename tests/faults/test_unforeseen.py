"""Errors that nobody foresaw, in any command."""

import re
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from densekd.cli import app
from densekd.reports import compare


def failing(*folders: object) -> NoReturn:
    raise KeyError("\x1b[2J")


@pytest.mark.parametrize(
    "line", ["predict", "compare runs more", "compare --nothing", "serve x --port x", "data", "x"]
)
def test_an_error_in_the_command_line_is_foreseen(line: str) -> None:
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == 2
    assert "Usage: " in done.output
    assert "should not happen" not in done.output


def test_an_unforeseen_error_is_a_sentence_and_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "compare", failing)
    done = CliRunner().invoke(app, ["compare", "runs"])
    assert done.exit_code == 3
    assert "Traceback" not in done.output
    assert "\x1b" not in done.output
    (name,) = re.findall(r"The report is (\S+)\.\n", done.output)
    report = Path(name)
    assert "in failing" in report.read_text("utf-8")
    report.unlink()
    debug = CliRunner().invoke(app, ["compare", "runs", "--debug"])
    assert debug.exit_code == 3
    assert "Traceback" in debug.output
    Path(re.findall(r"The report is (\S+)\.\n", debug.output)[0]).unlink()
