import re
from pathlib import Path

import pytest
import torch

README = Path(__file__).parents[2] / "README.md"


def test_the_python_in_the_readme_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = README.read_text("utf-8")
    assert text.count("epochs=3)") == 1
    short = text.replace("epochs=3)", "epochs=1)")
    blocks = re.findall(r"```python\n(.*?)```", short, re.DOTALL)
    assert len(blocks) == 3
    torch.manual_seed(0)
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), scope)
    loss = scope["loss"]
    assert isinstance(loss, torch.Tensor)
    assert loss.isfinite()
    *tasks, groups = capsys.readouterr().out.splitlines()
    told = r"can tell ([0-9, ]+) and sees \['\d', '\d', '\d'\]$"
    known = [re.match(told, line) for line in tasks]
    assert [len(match[1].split(", ")) for match in known if match] == [5, 8, 10]
    assert groups.startswith("7 groups; three at random: [[")
