"""docs/branching.md: what it shows works, on the command line and in Python."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from densekd.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "branching.md"
QUICK = ["-o", "network=resnet8", "-o", "data.per_class=12", "--memory", "4"]


def call(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def test_the_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text("utf-8")
    keep, branch = (shlex.split(block)[1:] for block in re.findall(r"```sh\n(.*?)```", text, re.S))
    assert call(*keep, *QUICK, "--quiet").exit_code == 0
    (folder,) = Path("runs").glob("digits-rdkd-*")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    scope: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), scope)
    assert scope["matrix"].sum() == len(scope["labels"])
    assert tuple(scope["classes"]) == scope["learner"].classes
    branch[2] = f"{folder}@2"
    assert call(*branch, "--quiet").exit_code == 0
    (other,) = Path("runs").glob("digits-gkd-*")
    steps = json.loads((other / "result.json").read_text("utf-8"))["steps"]
    assert steps[:2] == scope["run"].result["steps"][:2]
    assert steps[2:] != scope["run"].result["steps"][2:]


def test_a_missing_step_and_a_missing_run(tmp_path: Path) -> None:
    short = [
        "--base",
        "4",
        "--steps",
        "2",
        "--epochs",
        "1",
        *QUICK,
        "--quiet",
        "--out",
        str(tmp_path),
    ]
    assert call("run", *short).exit_code == 0
    (folder,) = tmp_path.glob("digits-*")
    for start, sentence in {
        f"{folder}@1": r"no learner of step 1, only of 2, 3; .*--keep-steps",
        f"{folder}@9": r"steps 1 to 3.*no step 9",
        f"{folder}": r"RUN@STEP",
        f"{tmp_path}@1": r"not the folder of a run",
    }.items():
        refused = call("run", "--from", start, "--quiet", "--out", str(tmp_path))
        assert refused.exit_code == 2
        assert re.fullmatch(rf"Error: .*{sentence}.*\n", refused.stderr)
