"""A learner that learns three small tasks by any method in about a tenth of a second."""

import math
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from densekd.data.augment import Augment
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario, Task
from densekd.data.selection import Selection
from densekd.methods.method import Method
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.terms import Step, View
from densekd.nn.network import Features, Network, Outputs
from densekd.training.callbacks import Callback, Stopped, TrainingProgress
from densekd.training.checkpoint import Checkpoints, State
from densekd.training.engine import Engine
from densekd.training.learner import Learner, Settings

from support.datasets import dataset

# Four base classes, then two steps of two new classes, or of one.
STEPS_OF_TWO = Scenario.of(dataset(8, 6), base=4, steps=2)
STEPS_OF_ONE = Scenario.of(dataset(6, 6), base=4, steps=2)
# Strong weight decay, so that every parameter it reaches visibly moves.
BASE = Schedule(2, 0.05, batch_size=8, weight_decay=0.01)
INCREMENT = Schedule(2, 0.02, batch_size=5, weight_decay=0.01)
FINISH = Schedule(2, 0.05, decay="constant", batch_size=5, weight_decay=0.01)
SCHEDULES = Schedules(BASE, INCREMENT, FINISH)
ENGINE = Engine("cpu", precision="32")


class TinyBackbone(nn.Module):
    """Two convolutional stages; their maps also have negative values. Initialised from seed 0."""

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


def tiny_settings(engine: Engine = ENGINE) -> Settings:
    """Return settings that normalise the images of `dataset` so that classes are separable."""
    return Settings(Augment((0.014, 0.01, 0.0), (0.01, 0.01, 1.0), padding=1), 1, engine)


def tiny_learner(
    method: Method,
    *,
    per_class: int = 2,
    selection: Selection = "random",
    engine: Engine = ENGINE,
) -> Learner:
    """Return a learner that has not learned yet, with a memory of ``per_class`` exemplars."""
    memory = ExemplarMemory(Quota(per_class), selection)
    return Learner(TinyBackbone(), method, memory, tiny_settings(engine))


class Recorder(Callback):
    """Keep every progress report, check that losses are finite, and stop after some batches."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after, self.batches = stop_after, 0
        self.reports: list[TrainingProgress] = []

    def report(self, report: TrainingProgress) -> None:
        assert all(math.isfinite(loss) for loss in report.losses.values())
        self.reports.append(report)

    def stop(self) -> bool:
        self.batches += 1
        return self.batches == self.stop_after

    @property
    def epoch_ends(self) -> list[TrainingProgress]:
        return [report for report in self.reports if report.ends_epoch]

    def slots(self, task: int, phase: str) -> set[str]:
        """Return the terms that were active in a phase."""
        found = [r.losses for r in self.epoch_ends if (r.task, r.phase) == (task, phase)]
        return set().union(*found)


def learned(
    method: Method,
    tasks: Iterable[Task] = STEPS_OF_TWO,
    *,
    callback: Callback | None = None,
    per_class: int = 2,
    selection: Selection = "random",
    engine: Engine = ENGINE,
) -> Learner:
    """Return a tiny learner after these tasks."""
    learner = tiny_learner(method, per_class=per_class, selection=selection, engine=engine)
    for task in tasks:
        learner.learn(task, callback=callback or Recorder())
    return learner


def same_state(first: State, second: State) -> bool:
    """Compare two states bit for bit."""
    names = list(first.tensors) == list(second.tensors) and first.facts == second.facts
    return names and all(torch.equal(x, second.tensors[name]) for name, x in first.tensors.items())


def check_resumes(
    method: Method,
    folder: Path,
    tasks: Iterable[Task] = STEPS_OF_TWO,
    selection: Selection = "random",
    engine: Engine = ENGINE,
) -> set[tuple[int, int]]:
    """Check that stopping at every other batch and reloading each time changes no bit.

    Returns:
        The stops, as the number of the task and of the phase.
    """
    tasks, whole = list(tasks), Recorder()
    wanted = learned(method, tasks, callback=whole, selection=selection, engine=engine).state()
    tiny_learner(method, selection=selection, engine=engine).save(folder)
    stops, batches = set(), 0
    for task in tasks:
        checkpoints, done = Checkpoints(folder / f"task {task.number}"), False
        while not done:
            memory, callback = ExemplarMemory(Quota(2), selection), Recorder(stop_after=2)
            learner = Learner.load(folder, TinyBackbone(), method, memory, tiny_settings(engine))
            try:
                learner.learn(task, callback=callback, checkpoints=checkpoints)
                done = True
            except Stopped:
                newest = checkpoints.newest()
                assert newest is not None
                stops.add((task.number, newest.facts["phase"]))
            batches += callback.batches
        learner.save(folder)
    assert same_state(learner.state(), wanted)
    assert batches == whole.batches  # no batch was trained twice
    return stops


def random_step(network: Network, old: tuple[int, ...], new: int) -> Step:
    """Return a merged batch with random logits and labels of all classes."""
    generator, before, images = torch.Generator().manual_seed(3), sum(old), 7
    features = torch.zeros(images, 1)

    def outputs(classes: int) -> Outputs:
        return Outputs(torch.randn(images, classes, generator=generator) * 3, features, ())

    labels = torch.arange(images) * 5 % (before + new)
    teacher = outputs(before) if old else None
    view = View(labels, outputs(before + new), teacher)
    return Step({"merged": view}, old, new, generator, network)
