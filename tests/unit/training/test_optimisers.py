import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

from densekd.methods.method import Method, Phase
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.terms import CrossEntropy
from densekd.seeds import Seeds
from densekd.training.callbacks import Stopped
from densekd.training.checkpoint import Checkpoints, State
from densekd.training.optimisers import load_optimiser_tensors, make_optimiser, optimiser_tensors

from support.tiny_learners import STEPS_OF_TWO, Recorder, check_resumes, tiny_learner

ADAMW = Schedule(
    3, 0.003, batch_size=8, momentum=0.8, weight_decay=0.3, optimiser="adamw", warmup=1
)


def two_phases(optimiser: Schedule) -> Method:
    """A method whose later tasks end with another phase, of SGD."""
    base = (Phase("train", optimiser),)
    increment = (*base, Phase("more", Schedule(1, 0.01, "constant", batch_size=6)))
    return Method(
        "two", "linear", {"ce": CrossEntropy(("merged",), "all")}, base, increment, "merged"
    )


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_a_resume_after_any_batch_gives_the_same_bits(optimiser: str, tmp_path: Path) -> None:
    schedule = Schedule(2, 0.004, batch_size=4, optimiser=optimiser, warmup=1)  # type: ignore[arg-type]
    stops = check_resumes(two_phases(schedule), tmp_path)
    assert {(0, 0), (1, 0), (1, 1), (2, 0)} <= stops


def test_adamw_resumes_in_a_method_with_a_teacher(tmp_path: Path) -> None:
    schedules = Schedules(ADAMW, Schedule(2, 0.002, batch_size=4, optimiser="adamw"))
    check_resumes(make_method("rdkd-adaptive", DenseOptions(), schedules), tmp_path)


def test_adamw_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning a base task equals a plain loop over the same batches."""
    learner, plain = tiny_learner(two_phases(ADAMW)), tiny_learner(two_phases(ADAMW))
    batches: list[tuple[torch.Tensor, torch.Tensor]] = []
    task = STEPS_OF_TWO[0]
    call = CrossEntropy.__call__

    def spy(self: CrossEntropy, step: object) -> torch.Tensor:
        (view,) = step.views.values()  # type: ignore[attr-defined]
        batches[-1] = (batches[-1][0], view.labels)
        return call(self, step)  # type: ignore[arg-type]

    monkeypatch.setattr(CrossEntropy, "__call__", spy)
    network = plain._grow(task, Seeds(1).at("task", task.number))
    hook = nn.modules.module.register_module_forward_pre_hook(
        lambda module, given: (
            batches.append((given[0].clone(), torch.empty(0)))
            if type(module).__name__ == "Network" and module.training
            else None
        )
    )
    learner.learn(task)
    hook.remove()
    # The plain loop: torch's own AdamW, whose rate grows in the first of three epochs.
    optimiser = AdamW(network.parameters(), 0.003, (0.8, 0.999), weight_decay=0.3)
    network.train()
    each = len(batches) // 3
    rates = [0.0015, 0.003, 1e-4 + (0.003 - 1e-4) * (1 + math.cos(math.pi / 2)) / 2]
    for number, (images, labels) in enumerate(batches):
        for group in optimiser.param_groups:
            group["lr"] = rates[number // each]
        optimiser.zero_grad()
        cross_entropy(network(images).logits, labels).backward()
        optimiser.step()
    assert len(batches) == 9
    for name, weight in learner.network.state_dict().items():
        assert torch.allclose(weight.float(), network.state_dict()[name].float(), atol=1e-6), name


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_what_is_saved_is_restored_in_the_layout_of_the_parameter(kind: str) -> None:
    def made() -> tuple[nn.Module, Optimizer]:
        torch.manual_seed(0)
        module = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        schedule = Schedule(optimiser=kind)  # type: ignore[arg-type]
        return module, make_optimiser({1.0: list(module.parameters())}, schedule)

    module, optimiser = made()
    assert type(optimiser) is {"sgd": SGD, "adamw": AdamW}[kind]
    assert optimiser_tensors(optimiser, module) == {}
    module(torch.ones(1, 3, 5, 5)).sum().backward()
    optimiser.step()
    saved = optimiser_tensors(optimiser, module)
    names = {"sgd": {"momentum"}, "adamw": {"adamw.exp_avg", "adamw.exp_avg_sq", "adamw.step"}}
    assert saved.keys() == {f"{part}.{p}" for part in names[kind] for p in ("weight", "bias")}
    other, restored = made()
    contiguous = {name: x.clone().contiguous() for name, x in saved.items()}
    with pytest.raises(ValueError, match=r"weight isn't what was saved"):
        load_optimiser_tensors(*made()[::-1], {name: x[..., None] for name, x in saved.items()})
    load_optimiser_tensors(restored, other, contiguous)
    for parameter, twin in zip(module.parameters(), other.parameters(), strict=True):
        for key, kept in optimiser.state[parameter].items():
            assert torch.equal(restored.state[twin][key], kept)
            assert restored.state[twin][key].stride() == kept.stride()


def test_checkpoints_of_sgd_have_the_names_they_always_had(tmp_path: Path) -> None:
    """So that those which were written before there was a choice resume."""
    learner, checkpoints = tiny_learner(two_phases(Schedule(2, 0.05))), Checkpoints(tmp_path)
    with pytest.raises(Stopped):
        learner.learn(STEPS_OF_TWO[0], callback=Recorder(stop_after=2), checkpoints=checkpoints)
    state = checkpoints.newest()
    assert isinstance(state, State)
    parts = {name.partition(".")[0] for name in state.tensors}
    assert parts == {"network", "momentum", "groups"}
