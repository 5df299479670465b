"""The code in docs/python.md runs."""

import re
from pathlib import Path

import pytest

import densekd

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.slow
def test_the_code_on_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), scope)
    out = capsys.readouterr().out
    assert "<Result: gkd on digits, 2 tasks" in out
    assert "\n4\n" in out or "\n4.0\n" in out  # the temperature
    assert "gkd 0." in out
    assert "('grass', 'sky')" in out
    assert Path("comparison.png").is_file()
    assert len(densekd.compare("runs")) == 5
