"""The code in docs/python.md and docs/loggers.md runs."""

import re
from pathlib import Path

import pytest

import densekd

DOCS = Path(__file__).parents[2] / "docs"


def run_page(name: str) -> dict[str, object]:
    """Run the code of a page, one epoch where it has two, and give its variables."""
    scope: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / name).read_text("utf-8"), re.DOTALL):
        short = re.sub(r"(epochs\W+)2\b", r"\g<1>1", block)
        exec(compile(short, name, "exec"), scope)
    return scope


@pytest.mark.slow
def test_the_code_on_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("python.md")
    out = capsys.readouterr().out
    assert "<Result: gkd on digits, 2 tasks" in out
    assert "\n4\n" in out or "\n4.0\n" in out  # the temperature
    assert "gkd 0." in out
    assert "('grass', 'sky')" in out
    assert Path("comparison.png").is_file()
    assert len(densekd.compare("runs")) == 7


@pytest.mark.slow
@pytest.mark.usefixtures("few_digits")
def test_the_logger_on_its_page_logs_two_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    best = vars(run_page("loggers.md")["best"])["best"]
    out = capsys.readouterr().out
    assert [*best] == [5, 10]
    assert "finetune None" in out
    assert "gkd None" in out
    assert "stopped" not in out
