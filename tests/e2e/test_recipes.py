"""The Python in docs/recipes.md runs, and does what the text says."""

import re
import sys
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "docs" / "recipes.md"


@pytest.mark.slow
# Lightning would like several workers to load what is in memory, and a teacher to be trained.
@pytest.mark.filterwarnings("ignore:Found 4 module.s. in eval mode:UserWarning")
@pytest.mark.filterwarnings("ignore:The .* does not have many workers:UserWarning")
@pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning")
# Raised inside Lightning by torch.
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
def test_the_recipes_keep_old_classes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Where the Makefile puts Lightning, and says why.
    monkeypatch.syspath_prepend(Path(sys.prefix) / "lightning")
    blocks = re.findall(r"```python\n(.*?)```", RECIPES.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 3
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(RECIPES), "exec"), scope)
    plain, dense, module, learner = capsys.readouterr().out.splitlines()

    def old(line: str) -> float:
        found = re.search(r"([0-9.]+) % of the old classes", line)
        assert found
        return float(found[1])

    assert old(dense) > old(plain) + 5
    assert old(module) > old(plain) + 5
    assert (tmp_path / "digits-learner").is_dir()
    found = re.fullmatch(r"Learner: ([0-9.]+) % of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9", learner)
    assert found
    assert float(found[1]) > 75
