"""Measure up to how many tasks listing all groups pays off against the integral.

Times the loss alone, forward and backward, batch 128, logits of standard deviation 3. The two ways
of `every` take turns; prints medians.

    python benchmarks/list_or_integral.py [--rounds 25]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from rich.progress import track

from densekd.losses.groups import Blocks, listed_divergence
from densekd.losses.pool_mean import pool_mean_divergence

ROUTES: dict[str, Callable[[Blocks], torch.Tensor]] = {
    "list": lambda blocks: listed_divergence(blocks).mean(1),
    "integral": lambda blocks: pool_mean_divergence(*blocks),
}


def milliseconds(route: str, tasks: int) -> float:
    sizes = (50, *[max(1, 50 // tasks)] * (tasks - 1))
    student, teacher = 3 * torch.randn(2, 128, sum(sizes))
    student.requires_grad_()
    start = time.perf_counter()
    ROUTES[route](Blocks.of(student, teacher, sizes, 2.0)).mean().backward()
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    print(f"tasks  {'  '.join(ROUTES)}  (ms, {torch.get_num_threads()} threads)")
    for tasks in track((5, 8, 10, 12), "measuring"):
        times: dict[str, list[float]] = {route: [] for route in ROUTES}
        for turn in range(rounds + 2):
            for route, measured in times.items():
                measured += [milliseconds(route, tasks)][turn < 2 :]
        print(f"{tasks:5}  " + "  ".join(f"{statistics.median(t):.1f}" for t in times.values()))


if __name__ == "__main__":
    main()
