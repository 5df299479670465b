"""Measure what the engine costs in a step, and what precision and memory layout gain.

Compares an incremental step of CIFAR-100 as in `densekd run` (ResNet-32, 60 to 70 classes, a batch
of 128 new images and one of 128 exemplars: augmentation, student, teacher, two cross-entropies and
RDKD, optimiser, progress, TensorBoard, a checkpoint each epoch) with a bare loop over the same
networks and loss on two prepared batches. The loops take turns, step by step. The images are
random: their content doesn't affect the time.

    python benchmarks/throughput.py [--epochs 3] [--threads 2]
"""

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from common import resnet32
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy

from densekd.data.augment import Augment
from densekd.data.cifar import OFFICIAL
from densekd.data.dataset import PixelImages, Split
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Task
from densekd.losses.distill import DenseDistillation
from densekd.methods.method import Method
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.methods.schedule import Schedule, Schedules
from densekd.nn.resnet import cifar_resnet
from densekd.runs.loggers import RunLoggers
from densekd.runs.trackers import TensorBoardLogger
from densekd.training.callbacks import Callback, TrainingProgress
from densekd.training.checkpoint import Checkpoints
from densekd.training.engine import Engine
from densekd.training.learner import Learner, Settings

BATCH = 128
MEAN, STD = OFFICIAL["cifar100"].mean, OFFICIAL["cifar100"].std
OLD, NEW = (50, 10), 10


def made_task(number: int, first: int, classes: int, per_class: int) -> Task:
    generator = torch.Generator().manual_seed(number)
    labels = first + torch.arange(classes).repeat(per_class)
    shape = (len(labels), 3, 32, 32)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    split = Split(PixelImages(pixels), labels)
    names = tuple(f"class {label}" for label in range(first, first + classes))
    return Task(number, names, first, split, split)


class Bare:
    """The same step on prepared batches, and nothing else."""

    def __init__(self, precision: str, channels_last: bool) -> None:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self.student, self.teacher = resnet32((*OLD, NEW)), resnet32(OLD)
        for network in (self.student, self.teacher):
            network.to(memory_format=layout)  # type: ignore[call-overload]
        self.teacher.eval().requires_grad_(False)
        self.images = [
            torch.randn(BATCH, 3, 32, 32).contiguous(memory_format=layout) for _ in range(2)
        ]
        self.new = torch.randint(0, NEW, (BATCH,))
        self.all = torch.randint(0, sum(OLD) + NEW, (BATCH,))
        self.optimiser = torch.optim.SGD(
            self.student.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4
        )
        self.loss = DenseDistillation("random")
        self.generator = torch.Generator().manual_seed(0)
        self.bf16 = precision == "bf16"

    def step(self) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            with torch.no_grad():
                teachers = [self.teacher(images).logits for images in self.images]
            students: list[Tensor] = [self.student(images).logits for images in self.images]
            loss = cross_entropy(students[0][:, sum(OLD) :], self.new)
            loss = loss + cross_entropy(students[1], self.all)
            for student, teacher in zip(students, teachers, strict=True):
                loss = loss + 16 * self.loss(student, teacher, OLD, generator=self.generator)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()


class Turns(Callback):
    """Runs a step of each other loop after each step of the engine, and keeps the times."""

    def __init__(
        self, board: RunLoggers, others: dict[str, Bare], tick: Callable[[], None]
    ) -> None:
        self.board, self.others, self.tick = board, others, tick
        self.times: dict[str, list[float]] = {"engine": [], **{name: [] for name in others}}
        self.since: float | None = None

    def report(self, report: TrainingProgress) -> None:
        self.board.report(report)

    def stop(self) -> bool:
        if self.since is not None:
            self.times["engine"].append(time.perf_counter() - self.since)
        for name, bare in self.others.items():
            start = time.perf_counter()
            bare.step()
            self.times[name].append(time.perf_counter() - start)
        self.tick()
        self.since = time.perf_counter()
        return False


def learned(method: Method, engine: Engine) -> Learner:
    """A learner of the base and one increment, hardly trained."""
    augment = Augment(MEAN, STD)
    learner = Learner(
        cifar_resnet(32), method, ExemplarMemory(Quota(20)), Settings(augment, engine=engine)
    )
    first = 0
    for number, classes in enumerate(OLD):
        learner.learn(made_task(number, first, classes, 20))
        first += classes
    return learner


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    engine = Engine("cpu")
    increments = Schedule(epochs=1, lr=0.01)
    method = make_method("rdkd", DenseOptions(), Schedules(increments, increments))
    learner = learned(method, engine)
    schedules = Schedules(increments, Schedule(epochs=arguments.epochs, lr=0.01))
    learner.method = make_method("rdkd", DenseOptions(), schedules)
    others = {"bare": Bare(engine.precision, True), "bare, NCHW fp32": Bare("32", False)}
    steps = arguments.epochs * 10
    with tempfile.TemporaryDirectory() as folder, Progress(transient=True) as bars:
        bar = bars.add_task("steps", total=steps)
        board = RunLoggers(Path(folder), {"board": TensorBoardLogger()}, learner.method)
        board.begin({})
        turns = Turns(board, others, lambda: bars.advance(bar))
        task = made_task(2, sum(OLD), NEW, BATCH)
        learner.learn(task, callback=turns, checkpoints=Checkpoints(Path(folder) / "epochs"))
        board.end(None)
    show(turns.times, engine)


def show(times: dict[str, list[float]], engine: Engine) -> None:
    steps = min(map(len, times.values()))
    mine = times["engine"][-steps:]
    table = Table("loop", "images/s", "engine's images/s over these", "middle half")
    for name, seconds in times.items():
        ratios = [s / m for s, m in zip(seconds[-steps:], mine, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        speed = 2 * BATCH / statistics.median(seconds)
        table.add_row(name, f"{speed:.0f}", f"{middle:.3f}", f"{low:.3f} to {high:.3f}")
    console = Console()
    console.print(table)
    described = ", ".join(f"{name} {value}" for name, value in engine.describe().items())
    console.print(f"{steps} steps of each, in turns; {described}.")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    console.print(f"Peak memory of it all: {peak:,.0f} MB.")


if __name__ == "__main__":
    main()
