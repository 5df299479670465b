import dataclasses

import pytest
import torch

from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.methods.schedule import Schedules
from densekd.training import checkpoint
from densekd.training.task_checks import check_tasks

from support.datasets import dataset

SCENARIO = Scenario.of(dataset(8, 6), base=4, steps=2)
GKD, JOINT = (make_method(name, DenseOptions(), Schedules()) for name in ("gkd", "joint"))


def memory() -> ExemplarMemory:
    return ExemplarMemory(Quota(per_class=2))


def test_all_tasks_can_be_checked_before_the_first_is_learned() -> None:
    task = SCENARIO[2]
    less = task.train.take(task.train.labels != task.first)
    check_tasks(SCENARIO, GKD, memory())
    with pytest.raises(ValueError, match=f"The class '{task.classes[0]}' has no image to learn"):
        check_tasks([*SCENARIO[:2], dataclasses.replace(task, train=less)], GKD, memory())


def test_joint_is_refused_where_its_checkpoints_could_not_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = SCENARIO.dataset.train.images.state_bytes()
    assert whole == 8 * 6 * 3 * 8 * 8
    monkeypatch.setattr(checkpoint, "physical_memory", lambda: 2 * whole)
    check_tasks(SCENARIO, JOINT, memory())
    monkeypatch.setattr(checkpoint, "physical_memory", lambda: 2 * whole - 2)
    check_tasks(SCENARIO, GKD, memory())
    with pytest.raises(ValueError, match=r"joint saves all .* data pack --shorter-side`, or take"):
        check_tasks(SCENARIO, JOINT, memory())
    # The images of earlier tasks are saved, too.
    learned = ExemplarMemory(Quota(per_class=6))
    first, *others = SCENARIO
    learned.learn(first.train, len(first.classes), torch.Generator())
    with pytest.raises(ValueError, match="more than half of this computer's memory"):
        check_tasks(others, JOINT, learned)
