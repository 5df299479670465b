import shlex
import signal
import sys
from pathlib import Path

import pytest

from densekd.cli.signals import Interrupts, typed_command


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_noted_and_ctrl_c_after_it_leaves(
    number: signal.Signals, code: int
) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    said = []
    with Interrupts() as interrupts:
        interrupts.on_first = lambda: said.append("stopping")
        assert interrupts.received is None
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.received == number
        assert interrupts.exit_code == code
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert said == ["stopping"]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


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
