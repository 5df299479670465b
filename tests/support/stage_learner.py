"""A small network and a few small tasks, to learn by a whole method within a second or two."""

from pathlib import Path

import torch
from torch import Tensor, nn

from densekd.data.augment import Augment
from densekd.data.memory import ExemplarMemory, Quota, Selection
from densekd.data.scenario import Scenario
from densekd.methods.method import Method, Schedule
from densekd.methods.paper import Schedules
from densekd.nn.network import Features
from densekd.training.callbacks import Callback, Stopped, TrainingProgress
from densekd.training.checkpoint import Checkpoints, State
from densekd.training.engine import Engine
from densekd.training.learner import Learner, Settings

from support.datasets import dataset

# Four classes, then twice two; and the same with increments of a single class.
PAIRS = Scenario.of(dataset(8, 6), base=4, steps=2)
SINGLES = Scenario.of(dataset(6, 6), base=4, steps=2)
# Weight decay is strong, so that whatever it reaches is seen to move.
BASE = Schedule(2, 0.05, batch_size=8, weight_decay=0.01)
INCREMENT = Schedule(2, 0.02, batch_size=5, weight_decay=0.01)
FINISH = Schedule(2, 0.05, decay="constant", batch_size=5, weight_decay=0.01)
COURSE = Schedules(BASE, INCREMENT, FINISH)
ENGINE = Engine("cpu", precision="32")


class Stages(nn.Module):
    """A backbone of two stages, whose maps are not rectified."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 10
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6))
            self.second = nn.Sequential(nn.ReLU(), nn.Conv2d(6, 10, 3, 2, 1), nn.BatchNorm2d(10))

    def forward(self, images: Tensor) -> Features:
        low = self.first(images)
        high = self.second(low)
        return Features(high.mean((2, 3)), (low, high))


def settings() -> Settings:
    """Images are normalised so that the classes can be told apart."""
    return Settings(Augment((0.014, 0.01, 0.0), (0.01, 0.01, 1.0), padding=1), 1, ENGINE)


def learner(how: Method, exemplars: int = 2, selection: Selection = "random") -> Learner:
    return Learner(Stages(), how, ExemplarMemory(Quota(exemplars), selection), settings())


def learned(
    how: Method,
    scenario: Scenario = PAIRS,
    tasks: int = 3,
    selection: Selection = "random",
) -> Learner:
    each = learner(how, selection=selection)
    for task in scenario[:tasks]:
        each.learn(task)
    return each


class Reports(Callback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[TrainingProgress] = []

    def report(self, report: TrainingProgress) -> None:
        self.told.append(report)


class _Impatient(Callback):
    """Stops when asked for the second time."""

    def __init__(self) -> None:
        self.asked = 0

    def stop(self) -> bool:
        self.asked += 1
        return self.asked == 2


def interrupted(
    how: Method, folder: Path, selection: Selection = "random"
) -> tuple[State, set[tuple[int, int]]]:
    """Learn all tasks, stopped at every other batch and each time read from the folder again.

    Returns:
        What was learned in the end, and in which phase of which task it was stopped.
    """
    learner(how, selection=selection).save(folder)
    stops = set()
    for task in PAIRS:
        checkpoints = Checkpoints(folder / f"task {task.number}")
        done = False
        while not done:
            parts = Stages(), how, ExemplarMemory(Quota(2), selection), settings()
            each = Learner.load(folder, *parts)
            try:
                each.learn(task, callback=_Impatient(), checkpoints=checkpoints)
                done = True
            except Stopped:
                newest = checkpoints.newest()
                assert newest is not None
                stops.add((task.number, newest.facts["phase"]))
        each.save(folder)
    return each.state(), stops


def same(first: State, second: State) -> bool:
    names = list(first.tensors) == list(second.tensors) and first.facts == second.facts
    return names and all(torch.equal(x, second.tensors[name]) for name, x in first.tensors.items())
