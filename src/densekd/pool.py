"""The task pool: all non-empty sets of the tasks learned so far."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import SupportsIndex
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from densekd.precision import working_dtype

# 2**20 groups of 20 tasks are 20 MB of masks; each further task more than doubles that.
_LISTABLE_TASKS = 20


@dataclass(frozen=True, init=False)
class TaskPool:
    """The pool P of the paper: all non-empty sets of learned tasks, each set one *group*.

    A group is a boolean mask over tasks. The pool stores only the tasks' sizes, never its groups,
    so it can have 60 tasks with 2^60 - 1 groups.

    Example:
        >>> from densekd import TaskPool
        >>> pool = TaskPool([50, 10, 10])
        >>> pool.count, pool.classes
        (7, 70)
    """

    sizes: tuple[int, ...]  # the number of classes of each learned task, in learning order

    def __init__(self, sizes: Sequence[int]) -> None:
        if not isinstance(sizes, Iterable):
            raise ValueError(f"Task sizes must be a sequence such as [50, 10, 10], not {sizes!r}.")
        sizes = tuple(sizes)
        if not sizes:
            raise ValueError("The task pool is empty: give the size of at least one learned task.")
        for task, size in enumerate(sizes):
            if not isinstance(size, SupportsIndex) or operator.index(size) < 1:
                raise ValueError(f"Task {task} has {size!r} classes; it needs 1, 2, 3 or more.")
        object.__setattr__(self, "sizes", tuple(operator.index(size) for size in sizes))

    @property
    def tasks(self) -> int:
        """The number of learned tasks: t."""
        return len(self.sizes)

    @property
    def classes(self) -> int:
        """The number of classes of all tasks: N."""
        return sum(self.sizes)

    @property
    def count(self) -> int:
        """The number of groups: 2^t - 1."""
        return (1 << self.tasks) - 1

    @property
    def mean_group_size(self) -> float:
        """The mean number of classes in a group: N 2^(t-1) / (2^t - 1)."""
        return self.classes * (1 << self.tasks - 1) / self.count

    def extend(self, size: int) -> "TaskPool":
        """The pool with one more task of ``size`` classes (the paper's ⊎)."""
        return TaskPool((*self.sizes, size))

    def sample(self, generator: torch.Generator, n: int, *, singles: bool = True) -> Tensor:
        """Draw groups uniformly with replacement: bool ``[n, t]``, one non-empty group per row.

        The result is on the generator's device. Without ``singles``, groups of a single class are
        drawn again, which waits for the device.
        """
        if not isinstance(generator, torch.Generator):
            raise ValueError(f"Drawing groups needs a torch.Generator, not {generator!r}.")
        if n < 0:
            raise ValueError(f"Can't draw {n} groups.")
        if not singles and self.classes == 1:
            raise ValueError("The pool has a single class, so no other group: allow singles.")
        # Tasks that must not be a group by themselves.
        barred = [] if singles else [task for task, size in enumerate(self.sizes) if size == 1]
        if torch.compiler.is_compiling():
            id(generator)  # Makes the compiled code valid for this generator only.
            drawn: Tensor = _draw_compiled(_turn, _handle(generator), n, self.tasks, barred)
            return drawn
        return _draw(generator, n, self.tasks, barred)

    def every(self) -> Tensor:
        """List the pool: bool ``[count, t]``; raises ValueError if it has too many groups.

        Row g - 1 holds the binary digits of g, with task 0 the lowest digit.
        """
        if self.tasks > _LISTABLE_TASKS:
            raise ValueError(
                f"A pool of {self.tasks} tasks has 2^{self.tasks} - 1 groups, too many to list: "
                "draw some with sample(), or use DenseDistillation('every'), which is exact "
                "without listing them."
            )
        digits = torch.arange(1, self.count + 1)[:, None] >> torch.arange(self.tasks)
        return (digits & 1).bool()


def _draw(generator: torch.Generator, n: int, tasks: int, barred: Sequence[int]) -> Tensor:
    """Draw non-empty subsets, and redraw each that is a single ``barred`` task.

    At least a third of all subsets are allowed, so few rounds are needed.
    """
    masks = _draw_once(generator, n, tasks)
    if not barred:
        return masks
    while True:
        alone = (masks.sum(1) == 1) & masks[:, list(barred)].any(1)
        rows = alone.nonzero().flatten()
        if not len(rows):
            return masks
        masks[rows] = _draw_once(generator, len(rows), tasks)


def _draw_once(generator: torch.Generator, n: int, tasks: int) -> Tensor:
    """Draw non-empty subsets: first the lowest member, then a coin for each task after it.

    The lowest member is k with probability 2^(t-k-1) / (2^t - 1), drawn by inversion. No draw is
    rejected, so there is no waiting for the device and no graph break.
    """
    device = generator.device
    dtype = working_dtype(device)
    uniform = torch.rand(n, 1, generator=generator, dtype=dtype, device=device)
    coins = torch.rand(n, tasks, generator=generator, device=device) < 0.5
    lowest = -torch.log2(1.0 - uniform * (1.0 - 2.0**-tasks))
    # For the largest value of `uniform`, rounding can give `tasks`.
    lowest = lowest.long().clamp(max=tasks - 1)
    task = torch.arange(tasks, device=device)
    return (task == lowest) | ((task > lowest) & coins)


# torch.compile can't pass a torch.Generator into a graph, only a number, by which a custom operator
# finds the generator. `_handle` runs at compile time, once for each generator.
_generators: WeakValueDictionary[int, torch.Generator] = WeakValueDictionary()
# Every draw in a graph changes this number. Otherwise the compiler could merge two draws that look
# alike, or reorder them.
with torch.inference_mode(False):
    _turn = torch.zeros((), dtype=torch.int64)


def _handle(generator: torch.Generator) -> int:
    _generators[id(generator)] = generator
    return id(generator)


# This is torch.compiler.assume_constant_result without importing the whole compiler.
_handle._dynamo_marked_constant = True  # type: ignore[attr-defined]


@torch.library.custom_op("densekd::draw_groups", mutates_args=("turn",))
def _draw_compiled(turn: Tensor, handle: int, n: int, tasks: int, barred: Sequence[int]) -> Tensor:
    turn.add_(1)
    return _draw(_generators[handle], n, tasks, barred)


@_draw_compiled.register_fake
def _(turn: Tensor, handle: int, n: int, tasks: int, barred: Sequence[int]) -> Tensor:
    return torch.empty(n, tasks, dtype=torch.bool, device=_generators[handle].device)
