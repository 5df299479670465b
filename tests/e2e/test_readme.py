import re
from pathlib import Path

import pytest
import torch

README = Path(__file__).parents[2] / "README.md"


def test_the_python_in_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 3
    torch.manual_seed(0)
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), scope)
    loss = scope["loss"]
    assert isinstance(loss, torch.Tensor)
    assert loss.isfinite()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("7 groups; three at random: [[")
    assert [line.split()[0] for line in lines[1:]] == ["0", "1", "2", "3", "4", "5"]
    assert lines[-1].endswith("images")
