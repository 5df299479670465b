"""Training with a compiled backbone."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.training.engine import Engine

from support.tiny_learners import SCHEDULES, STEPS_OF_TWO, check_resumes, learned


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_backbone_learns_the_same_and_is_compiled_once_for_all_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    method = make_method("gkd", DenseOptions(), SCHEDULES)
    engine, eager = Engine("cpu", precision="32", compile="on"), learned(method)
    counters.clear()
    tasks, graphs = [], []
    for task in STEPS_OF_TWO:
        tasks.append(task)
        compiled = learned(method, tasks, engine=engine)
        graphs.append(counters["stats"]["unique_graphs"])
    # The base task has no teacher; after that, growing heads compile nothing anew.
    assert 0 < graphs[0] < graphs[1] == graphs[2] <= 4
    mine, theirs = compiled.state().tensors, eager.state().tensors
    assert list(mine) == list(theirs)
    for name, tensor in theirs.items():
        torch.testing.assert_close(mine[name], tensor, atol=1e-4, rtol=1e-4)
    changed: list[Tensor] = [x for name, x in mine.items() if not torch.equal(x, theirs[name])]
    assert changed  # something was compiled
    check_resumes(method, tmp_path / "resumed", STEPS_OF_TWO[:2], engine=engine)
