"""Measure what each distillation costs in a training step, as a ratio to ``whole`` (GKD).

A step trains on one batch of 128 images of 32 x 32: the teacher's forward, the student's forward
and backward through a ResNet-32, cross-entropy plus distillation, SGD. All selectors take turns
within a round, in random order, so that a slow moment of the machine affects them equally. Prints
two ratios, each as its median over rounds and the middle half:

- ``step``: the time of the step divided by that of ``whole`` in the same round. The rest of the
  step is the same work for all, but on a busy machine its time varies by more than the losses cost.
- ``share``: the same, but with the median over all steps for the rest of the step. Only the loss
  (from logits to the gradient in the logits, inside the step) is timed separately.

``loop`` is a plain loop over all groups with torch's own KL, as written in Eq. 3.

    python benchmarks/step_cost.py [--rounds 25] [--tasks 5 10 25 50]
"""

import argparse
import itertools
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from common import resnet32
from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from densekd import DenseDistillation

BATCH = 128
WARM_UP = 2
Distillation = Callable[[Tensor, Tensor, list[int]], Tensor]


def loop_over_groups(student: Tensor, teacher: Tensor, sizes: list[int]) -> Tensor:
    starts = [0, *itertools.accumulate(sizes)]
    loss = student.new_zeros(())
    for number in range(1, 1 << len(sizes)):
        chosen = [
            column
            for task in range(len(sizes))
            if number >> task & 1
            for column in range(starts[task], starts[task + 1])
        ]
        log_q = functional.log_softmax(student[:, chosen] / 2, dim=1)
        log_p = functional.log_softmax(teacher[:, chosen] / 2, dim=1)
        loss = loss + functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
    return loss * (4 / ((1 << len(sizes)) - 1))


def distillations(tasks: int) -> dict[str, Distillation]:
    generator = torch.Generator().manual_seed(0)

    def of(loss: DenseDistillation) -> Distillation:
        return lambda student, teacher, sizes: loss(student, teacher, sizes, generator=generator)

    chosen = {name: of(DenseDistillation(name)) for name in ("whole", "each", "random", "every")}
    return {**chosen, "loop": loop_over_groups} if tasks <= 10 else chosen


def task_sizes(tasks: int) -> list[int]:
    """The old tasks at the last of ``tasks`` increments: 50 classes, then 50 / tasks each."""
    return [50] + [50 // tasks] * (tasks - 1)


class Bench:
    """One protocol: the networks, a batch, and the losses to time."""

    def __init__(self, tasks: int) -> None:
        torch.manual_seed(0)
        self.sizes = task_sizes(tasks)
        self.student = resnet32([*self.sizes, 50 // tasks])
        self.teacher = resnet32(self.sizes).eval()
        self.optimiser = torch.optim.SGD(self.student.parameters(), lr=0.01, momentum=0.9)
        self.images = torch.randn(BATCH, 3, 32, 32)
        self.labels = torch.randint(sum(self.sizes), 100, (BATCH,))

    def step(self, distillation: Distillation) -> tuple[float, float]:
        """Train on one batch; return the seconds of the whole step and of the losses in it."""
        start = time.perf_counter()
        with torch.no_grad():
            teacher = self.teacher(self.images).logits
        student = self.student(self.images).logits
        self.optimiser.zero_grad()
        # Cut the backward pass at the logits, to time the loss alone.
        logits = student.detach().requires_grad_()
        before = time.perf_counter()
        loss = functional.cross_entropy(logits, self.labels)
        loss = loss + 20 * distillation(logits, teacher, self.sizes)
        loss.backward()
        after = time.perf_counter()
        student.backward(logits.grad)
        self.optimiser.step()
        return time.perf_counter() - start, after - before


def measure(tasks: int, rounds: int, tick: Callable[[], None]) -> Iterator[list[str]]:
    bench = Bench(tasks)
    candidates = distillations(tasks)
    steps: dict[str, list[float]] = {name: [] for name in candidates}
    losses: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds + WARM_UP):
        for name in random.Random(turn).sample(list(candidates), len(candidates)):
            step, loss = bench.step(candidates[name])
            if turn >= WARM_UP:
                steps[name].append(step)
                losses[name].append(loss)
        tick()
    every_step = itertools.chain.from_iterable(steps.values())
    every_loss = itertools.chain.from_iterable(losses.values())
    rest = statistics.median(step - loss for step, loss in zip(every_step, every_loss, strict=True))
    base = rest + statistics.median(losses["whole"])
    for name in candidates:
        whole = zip(steps[name], steps["whole"], strict=True)
        yield [
            str(tasks),
            name,
            *middle([(rest + loss) / base for loss in losses[name]]),
            *middle([mine / theirs for mine, theirs in whole]),
            f"{statistics.median(losses[name]) * 1e3:.1f}",
            f"{statistics.median(steps[name]) * 1e3:.0f}",
        ]


def middle(ratios: list[float]) -> tuple[str, str]:
    low, median, high = statistics.quantiles(ratios, n=4)
    return f"{median:.3f}", f"{low:.3f} to {high:.3f}"


def peak_megabytes() -> float:
    """Peak memory that `every` adds to a process at 50 tasks (Linux)."""

    def kilobytes(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field))

    loss, sizes = DenseDistillation("every"), task_sizes(50)
    loss(torch.randn(2, 4).requires_grad_(), torch.randn(2, 4), [2, 2]).backward()
    batches = [
        ((scale * torch.randn(BATCH, 100)).requires_grad_(), scale * torch.randn(BATCH, sum(sizes)))
        for scale in (3.0, 100.0, 1000.0)
    ]
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = kilobytes("VmRSS")
    for student, teacher in batches:
        loss(student, teacher, sizes).backward()
    return (kilobytes("VmHWM") - before) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--tasks", type=int, nargs="+", default=[5, 10, 25, 50])
    parser.add_argument("--memory", action="store_true", help="print only the peak memory")
    options = parser.parse_args()
    if options.memory:
        print(f"{peak_megabytes():.0f}")
        return
    console = Console(width=100)
    table = Table(title=f"ResNet-32 step, batch {BATCH}, {torch.get_num_threads()} threads, fp32")
    titles = ("T", "groups", "share", "middle half", "step", "middle half", "loss ms", "step ms")
    for column in titles:
        table.add_column(column, justify="left" if column == "groups" else "right")
    columns = (*Progress.get_default_columns()[:3], TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("measuring", total=len(options.tasks) * (options.rounds + WARM_UP))
        for tasks in options.tasks:
            for row in measure(tasks, options.rounds, lambda: progress.advance(bar)):
                table.add_row(*row, end_section=row[1] == ("loop" if tasks <= 10 else "every"))
    console.print(table)
    memory = subprocess.run(
        [sys.executable, __file__, "--memory"], capture_output=True, text=True, check=True
    )
    console.print(f"Peak memory of 'every' at T = 50, batch {BATCH}: {memory.stdout.strip()} MB")


if __name__ == "__main__":
    main()
