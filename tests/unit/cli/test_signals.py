import shlex
import sys
from pathlib import Path

import pytest

from densekd.cli.signals import typed_command


def test_the_command_is_given_as_it_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "densekd"
    script.touch(mode=0o755)
    options = ["run", "--data", "folder:my photos", "--epochs", "30%"]
    monkeypatch.setattr(sys, "argv", [str(script), *options])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert typed_command() == "densekd run --data 'folder:my photos' --epochs 30%"
    monkeypatch.setenv("PATH", "")
    assert shlex.split(typed_command()) == [str(script), *options]
    monkeypatch.setattr(sys, "argv", ["/lib/densekd/__main__.py", *options])
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "densekd", *options])
    assert shlex.split(typed_command()) == ["python3", "-m", "densekd", *options]
