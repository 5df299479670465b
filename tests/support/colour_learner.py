"""A learner small enough to be trained hundreds of times, and what it has to survive."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from densekd.data.augment import Augment
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario, Task
from densekd.methods.method import Method
from densekd.methods.terms import Step, View
from densekd.nn.network import Features, Network, Outputs
from densekd.training.callbacks import Callback, Stopped, TrainingProgress
from densekd.training.checkpoint import Checkpoints, State
from densekd.training.engine import Engine
from densekd.training.learner import Learner, Settings

from support.datasets import dataset

# Four classes, then twice two; or three, then one at a time.
BY_TWO = Scenario.of(dataset(8, 6), base=4, steps=2)
BY_ONE = Scenario.of(dataset(5, 6), base=3, steps=2)
ENGINE = Engine("cpu", precision="32")


class Colours(nn.Module):
    """A backbone that looks at the mean colour, which is all there is to see."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 10
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layers = nn.Linear(3, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, self.width)
            self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Features:
        return Features(self.layers(images.mean((2, 3))), ())


def learner(how: Method, per_class: int = 2) -> Learner:
    augment = Augment((0.014, 0.01, 0.0), (0.01, 0.01, 1.0), padding=1)
    memory = ExemplarMemory(Quota(per_class=per_class))
    return Learner(Colours(), how, memory, Settings(augment, 1, ENGINE))


class Reports(Callback):
    """Keeps what ends an epoch, and asks to stop after ``batches`` batches."""

    def __init__(self, batches: int = -1) -> None:
        self.left, self.asked = batches, 0
        self.ends: list[TrainingProgress] = []

    def report(self, report: TrainingProgress) -> None:
        if report.ends_epoch:
            self.ends.append(report)

    def stop(self) -> bool:
        self.asked += 1
        return self.asked == self.left

    def slots(self, task: int, phase: str) -> set[str]:
        """The terms that had a part in a phase."""
        found = [r for r in self.ends if (r.task, r.phase) == (task, phase)]
        return set().union(*(report.losses for report in found))


def through(how: Method, scenario: Scenario, per_class: int = 2) -> tuple[Learner, Reports]:
    """Learn all tasks, with losses that are finite."""
    each, callback = learner(how, per_class), Reports()
    for task in scenario:
        each.learn(task, callback=callback)
    assert all(torch.tensor(list(r.losses.values())).isfinite().all() for r in callback.ends)
    return each, callback


def same(first: State, second: State) -> bool:
    names = list(first.tensors) == list(second.tensors) and first.facts == second.facts
    return names and all(torch.equal(x, second.tensors[name]) for name, x in first.tensors.items())


def check_resumes(method: Callable[[], Method], tasks: Iterable[Task], folder: Path) -> None:
    """Stopped in any task, and loaded anew, it ends with the same weights; at every third batch."""

    def loaded(number: int) -> Learner:
        plain = learner(method())
        if number == 0:
            return plain
        parts = Colours(), plain.method, plain.memory, plain.settings
        return Learner.load(folder / f"{number}", *parts)

    for task in tasks:
        whole, callback = loaded(task.number), Reports()
        whole.learn(task, callback=callback)
        whole.save(folder / f"{task.number + 1}")
        for batches in range(1, callback.asked + 1, 3):
            checkpoints = Checkpoints(folder / f"{task.number}-{batches}")
            with pytest.raises(Stopped):
                loaded(task.number).learn(task, callback=Reports(batches), checkpoints=checkpoints)
            resumed, rest = loaded(task.number), Reports()
            resumed.learn(task, callback=rest, checkpoints=checkpoints)
            assert rest.asked == callback.asked - batches
            assert same(resumed.state(), whole.state())


def step(network: Network, old: tuple[int, ...], new: int, images: int = 7) -> Step:
    """A merged batch of random logits; the labels are of all classes."""
    generator, before = torch.Generator().manual_seed(3), sum(old)
    features = torch.zeros(images, 1)

    def outputs(classes: int) -> Outputs:
        return Outputs(torch.randn(images, classes, generator=generator) * 3, features, ())

    labels = torch.arange(images) * 5 % (before + new)
    teacher = outputs(before) if old else None
    return Step(
        {"merged": View(labels, outputs(before + new), teacher)}, old, new, generator, network
    )
