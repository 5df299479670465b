"""What two processes that train together do, of which each is alone on its machine."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from densekd.methods.method import Method
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.methods.terms import CrossEntropy, Step
from densekd.nn.network import Features
from densekd.training.engine import Engine
from densekd.training.learner import Learner
from densekd.training.loop import Diverged

from support.nodes import environment, free_port
from support.tiny_learners import SCHEDULES, STEPS_OF_TWO, TinyBackbone, tiny_learner


class Unused(TinyBackbone):
    """Has a layer that takes no part in the forward pass, and drops features."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Parameter(torch.ones(3))

    def forward(self, images: Tensor) -> Features:
        features = super().forward(images)
        return Features(nn.functional.dropout(features.pooled, 0.5, self.training), features.maps)


class Infinite(CrossEntropy):
    """Is infinite on the second rank, without a gradient that says so."""

    def __call__(self, step: Step) -> Tensor:
        loss = super().__call__(step)
        return loss + torch.inf if torch.distributed.get_rank() else loss


def method() -> Method:
    return make_method("gkd", DenseOptions(), SCHEDULES)


def learner(how: Method) -> Learner:
    engine = Engine("cpu", precision="32", nodes=2)
    engine.launch()
    plain = tiny_learner(how, engine=engine)
    return Learner(Unused(), how, plain.memory, plain.settings)


def learn_all() -> None:
    each = learner(method())
    for task in STEPS_OF_TWO:
        each.learn(task)
    total = sum(x.double().sum().item() for x in each.network.state_dict().values())
    print(f"{total!r}")


def fail() -> None:
    how = method().with_term("new", Infinite(["new"], "new"))
    try:
        learner(how).learn(STEPS_OF_TWO[0])
    except Diverged as error:
        print(f"Diverged: {error}")


def by_two(what: str) -> list[str]:
    """What two processes print that call a function of this file."""
    port, code = free_port(), f"import test_loop_ranks; test_loop_ranks.{what}()"
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parent,
            env=environment(port, rank),
            **how,
        )
        for rank in range(2)
    ]
    try:
        ended = [process.communicate(timeout=300) for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], ended
    return [printed.strip().splitlines()[-1] for printed, _ in ended]


@pytest.mark.slow
def test_a_layer_without_use_and_dropout_train_on_two_ranks() -> None:
    first, second = by_two("learn_all")
    assert first == second
    assert by_two("learn_all") == [first, second]


@pytest.mark.slow
def test_two_ranks_fail_together_if_one_has_a_loss_that_is_not_finite() -> None:
    for said in by_two("fail"):
        assert said.startswith("Diverged: The loss of task 1 (the term 'new') stopped being finite")
