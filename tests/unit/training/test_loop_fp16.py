"""Training in fp16 on the CPU, whose gradient scaler is the one that CUDA has."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from densekd.methods.method import Method
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.terms import Step, Term
from densekd.training.callbacks import Stopped
from densekd.training.checkpoint import Checkpoints
from densekd.training.engine import Engine
from densekd.training.loop import Diverged

from support.tiny_learners import (
    SCHEDULES,
    STEPS_OF_TWO,
    Recorder,
    check_resumes,
    learned,
    same_state,
    tiny_learner,
)

ENGINE, FLOAT32 = Engine("cpu", precision="fp16"), Engine("cpu", precision="32")


class Spoiled(Term):
    """Has a loss of 0 whose gradient overflows from one step to another, in all copies."""

    def __init__(self, first: int, last: int, value: float = 0.0) -> None:
        super().__init__(["new"])
        self.first, self.last, self.value = first, last, value
        self.steps = 0

    def __call__(self, step: Step) -> Tensor:
        self.steps += 1
        loss = step.views["new"].student.logits.float().sum() * 0
        if not self.first <= self.steps <= self.last:
            return loss
        return loss + self.value if self.value else loss.sqrt()  # whose slope at 0 is infinite


def method(epochs: int = 2, spoil: Term | None = None) -> Method:
    schedule = Schedule(epochs, 0.05, batch_size=8)
    made = make_method("rdkd", DenseOptions(), Schedules(schedule, SCHEDULES.increment))
    return made if spoil is None else made.with_term("spoil", spoil)


def test_fp16_learns_nearly_what_float32_does() -> None:
    half, whole = (learned(method(), STEPS_OF_TWO[:1], engine=e) for e in (ENGINE, FLOAT32))
    weights = half.network.state_dict()
    assert {weight.dtype for weight in weights.values()} == {torch.float32, torch.int64}
    test = STEPS_OF_TWO[0].test.images
    mine, theirs = half.in_float32().logits(test), whole.logits(test)
    assert 0 < (mine - theirs).norm() < 0.1 * theirs.norm()


def test_fp16_resumes_bit_for_bit(tmp_path: Path) -> None:
    assert check_resumes(method(), tmp_path, STEPS_OF_TWO[:2], engine=ENGINE) >= {(0, 0), (1, 0)}


def test_a_gradient_that_overflows_is_left_out_and_the_scale_is_resumed(tmp_path: Path) -> None:
    task, spoil = STEPS_OF_TWO[0], Spoiled(2, 3)
    whole = tiny_learner(method(4, spoil), engine=ENGINE)
    whole.learn(task)
    stopped, checkpoints = tiny_learner(method(4, spoil), engine=ENGINE), Checkpoints(tmp_path)
    with pytest.raises(Stopped):
        stopped.learn(task, callback=Recorder(stop_after=4), checkpoints=checkpoints)
    saved = checkpoints.newest()
    assert saved is not None
    assert saved.tensors["scaler"].tolist() == [65536 / 4, 1]  # then one step was fine
    # The new process counts its steps anew, and none of its gradients overflows.
    resumed = tiny_learner(method(4, Spoiled(0, 0)), engine=ENGINE)
    resumed.learn(task, checkpoints=checkpoints)
    assert same_state(resumed.state(), whole.state())
    plain = learned(method(4), [task], engine=ENGINE)
    assert not same_state(plain.state(), whole.state())


def test_a_step_that_is_left_out_changes_no_weight(tmp_path: Path) -> None:
    before = tiny_learner(method(1, Spoiled(1, 99)), engine=ENGINE)
    start = {name: x.clone() for name, x in before.network.backbone.named_parameters()}
    before.learn(STEPS_OF_TWO[0])
    assert all(torch.equal(x, start[n]) for n, x in before.network.backbone.named_parameters())


@pytest.mark.parametrize(("value", "epochs"), [(0.0, 12), (torch.inf, 1)])
def test_a_real_divergence_is_found(value: float, epochs: int) -> None:
    """No scale helps in 30 steps; or the loss itself isn't finite."""
    spoiled = tiny_learner(method(epochs, Spoiled(2, 10**6, value)), engine=ENGINE)
    with pytest.raises(Diverged, match=r"stopped being finite.*engine.precision=32"):
        spoiled.learn(STEPS_OF_TWO[0])
