"""The code in docs/extending.md runs: as a script, and as changes to a copy of the package."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from densekd.cli import app

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
BEFORE, PACKAGE = PAGE.read_text("utf-8").split("\n## In the package\n")
SCRIPT, FILE = BEFORE.split("\n## In a file of your own\n")
SECTIONS = dict(re.findall(r"^### (.+?)\n(.*?)(?=^### |\Z)", PACKAGE, re.MULTILINE | re.DOTALL))
BLOCK = r"^`([^`\n]+)`:\n\n```(\w+)\n(.*?)^```$"


def changes(section: str) -> list[tuple[str, str, str]]:
    """Return path, language and content of each labelled block in a section."""
    return re.findall(BLOCK, section, re.MULTILINE | re.DOTALL)


def patched(text: str, diff: str) -> str:
    """Apply hunks separated by ``@@``; the lines that a hunk expects must be there once."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        after = "".join(line[1:] for line in lines if line[0] != "-")
        assert text.count(before) == 1, f"docs/extending.md expects these lines once:\n{before}"
        text = text.replace(before, after)
    return text


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a copy of the repository with all changes of the page."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "src", root / "src")
    for path, language, content in changes(PACKAGE):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(patched(file.read_text(), content) if language == "diff" else content)
    return root


def python(root: Path, *arguments: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(root / "src")}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=root, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commands(section: str) -> list[list[str]]:
    """Return the arguments of each command of a section."""
    (block,) = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [shlex.split(line)[1:] for line in block.splitlines()]


def printed(arguments: list[str]) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


# One process for all commands: importing takes longer than what they do.
SEVERAL = """
import json, sys
from typer.testing import CliRunner
from densekd.cli import app
done = [CliRunner().invoke(app, each, catch_exceptions=False) for each in json.loads(sys.argv[1])]
assert not any(each.exit_code for each in done), [each.output for each in done]
print(json.dumps([each.stdout for each in done]))
"""


@pytest.fixture(scope="module")
def told(copy: Path) -> list[str]:
    """What the commands of the sections print, by the package of the copy."""
    both = [*commands(SECTIONS["A method"]), *commands(SECTIONS["A data source"])]
    each: list[str] = json.loads(python(copy, "-c", SEVERAL, json.dumps(both)))
    return each


def test_a_file_has_all_parts_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ((name, _, content),) = changes(FILE)
    Path(name).write_text(content)
    whole, combined = map(printed, commands(FILE))
    assert "confidence" in whole
    assert "runs/flowers-eeil-" in whole
    assert "runs/digits-eeil+rdkd-" in combined


def test_a_script_adds_a_term_a_network_and_a_data_set(
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.manual_seed(0)
    scope: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", SCRIPT, re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), scope)
    *tasks, accuracy = capsys.readouterr().out.splitlines()
    assert len(tasks) == 3
    assert float(accuracy.removeprefix("accuracy ")) > 0.25


def test_a_method_touches_its_file_one_registry_line_its_test_and_its_page() -> None:
    touched = {path: content for path, _, content in changes(SECTIONS["A method"])}
    assert set(touched) == {
        "src/densekd/methods/toy.py",
        "src/densekd/methods/registry.py",
        "tests/unit/methods/test_toy.py",
        "docs/methods/toy.md",
    }
    lines = touched["src/densekd/methods/registry.py"].splitlines()
    assert len([line for line in lines if line.startswith("+")]) == 2  # an import and an entry
    assert not [line for line in lines if line.startswith("-")]


def test_the_tests_on_the_page_pass(copy: Path) -> None:
    out = python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit")
    assert "5 passed" in out


def test_the_new_method_runs(copy: Path, told: list[str]) -> None:
    described, plain, combined, _ = told
    assert "|z - z_old|^2" in described
    names = {folder.name.rpartition("-")[0] for folder in (copy / "runs").glob("digits-*")}
    assert names == {"digits-toy", "digits-toy+rdkd"}
    assert plain
    assert combined


def test_the_new_network_and_source_run(copy: Path, told: list[str]) -> None:
    assert len(told) == 4
    (config,) = (copy / "runs").glob("stripes*/config.toml")
    assert 'network = "tiny16"' in config.read_text()
