"""A data set as a sequence of tasks, each bringing new classes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

import torch

from densekd.data.dataset import Dataset, Split
from densekd.data.order import icarl_order, ids_of, order_from_file, seeded_order

Order = int | Literal["natural", "icarl"] | Path


@dataclass(frozen=True)
class Task:
    """Some new classes with their images.

    A label is the rank of its class in learning order, over all tasks: the classes of this task
    are ``first`` to ``first + len(classes) - 1``, so that each task's logits are one block.

    Args:
        number: 0 for the base task.
        classes: the names of the classes.
        first: the label of the first of them.
        train: images of these classes to learn from.
        test: images of these classes to evaluate on.
    """

    number: int
    classes: tuple[str, ...]
    first: int
    train: Split
    test: Split


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Scenario(Sequence[Task]):
    """An immutable sequence of tasks that divide a data set's classes.

    Args:
        dataset: where images, labels and names come from.
        order: class ids in the order in which they are learned, each once.
        sizes: how many classes each task has.
    """

    dataset: Dataset
    order: tuple[int, ...]
    sizes: tuple[int, ...]
    _tasks: tuple[Task, ...]

    def __init__(self, dataset: Dataset, order: Sequence[int], sizes: Sequence[int]) -> None:
        if sorted(order) != list(range(len(dataset.classes))):
            raise ValueError(
                f"The class order must name each of the {len(dataset.classes)} classes once."
            )
        if sum(sizes) != len(order) or min(sizes, default=0) < 1:
            raise ValueError(
                f"Tasks of {list(sizes)} classes do not divide {len(order)} classes among them."
            )
        rank = torch.empty(len(order), dtype=torch.int64)
        rank[torch.tensor(order)] = torch.arange(len(order))
        train, test = (_parts(split, rank, sizes) for split in (dataset.train, dataset.test))
        names = [dataset.classes[i] for i in order]
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        tasks = tuple(
            Task(number, tuple(names[start : start + size]), start, train[number], test[number])
            for number, (start, size) in enumerate(zip(starts, sizes, strict=True))
        )
        values = {"dataset": dataset, "order": tuple(order), "sizes": tuple(sizes), "_tasks": tasks}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        *,
        steps: int | None = None,
        base: int | None = None,
        increment: int | None = None,
        equal: bool = False,
        order: Order = 1993,
    ) -> "Scenario":
        """The usual protocols: a base task of half the classes, then equal increments.

        Args:
            dataset: where images, labels and names come from.
            steps: T, the number of increments after the base task.
            base: the number of classes of the base task; half of all unless given.
            increment: the number of classes of an increment, instead of ``steps``.
            equal: all T + 1 tasks, the base included, have the same size.
            order: a seed of legacy NumPy, ``natural``, ``icarl``, or a file of class names.
        """
        classes = len(dataset.classes)
        sizes = task_sizes(classes, steps=steps, base=base, increment=increment, equal=equal)
        return cls(dataset, class_order(dataset, order), sizes)

    @classmethod
    def of_names(cls, dataset: Dataset, tasks: Sequence[Sequence[str]]) -> "Scenario":
        """The tasks whose classes are named, in that order."""
        order = ids_of([name for names in tasks for name in names], dataset.classes)
        return cls(dataset, order, [len(names) for names in tasks])

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of all classes in learning order: a label is an index into them."""
        return tuple(name for task in self for name in task.classes)

    def __len__(self) -> int:
        return len(self._tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        return self._tasks[index]

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def __repr__(self) -> str:
        return f"Scenario({self.dataset.name!r}, tasks of {list(self.sizes)} classes)"


def class_order(dataset: Dataset, order: Order) -> list[int]:
    """Class ids in learning order: by seed, ``natural``, ``icarl``, or from a file of names."""
    classes = len(dataset.classes)
    if order == "natural":
        return list(range(classes))
    if order == "icarl":
        return icarl_order(torch.bincount(dataset.train.labels, minlength=classes).tolist())
    if isinstance(order, Path):
        return order_from_file(order, dataset.classes)
    if isinstance(order, int):
        return seeded_order(classes, order)
    raise ValueError(f"order={order!r} is not a seed, 'natural', 'icarl' or the path of a file.")


def task_sizes(
    classes: int,
    *,
    steps: int | None = None,
    base: int | None = None,
    increment: int | None = None,
    equal: bool = False,
) -> list[int]:
    """How many classes each task of a protocol has; see `Scenario.of`.

    Raises:
        ValueError: when the classes can't be divided so, with what is possible instead.
    """
    if (steps is None) == (increment is None):
        raise ValueError("Give either steps or increment, and not both.")
    if equal:
        if base is not None or steps is None:
            raise ValueError("Equal tasks are given by steps alone: base and increment follow.")
        return [_divide(classes, steps + 1, "classes", "tasks")] * (steps + 1)
    base = classes // 2 if base is None else base
    if not 1 <= base <= classes:
        raise ValueError(f"A base of {base} classes is not possible with {classes} classes.")
    rest = classes - base
    after = f"classes after the base of {base}"
    if steps is None:
        assert increment is not None
        steps = rest // increment if increment > 0 and rest % increment == 0 else -1
        if steps < 0:
            raise ValueError(
                f"{rest} {after} can't be learned {increment} at a time; "
                f"possible are {_nearest(rest, increment)} at a time, or another base."
            )
    if steps == rest == 0:
        return [base]
    return [base] + [_divide(rest, steps, after, "steps")] * steps


def _divide(classes: int, parts: int, what: str, of: str) -> int:
    if parts < 1 or classes < 1 or classes % parts:
        raise ValueError(
            f"{classes} {what} can't be divided into {parts} equal {of}; "
            f"possible are {_nearest(classes, parts)} {of}."
        )
    return classes // parts


def _nearest(total: int, wanted: int) -> str:
    """The divisors of ``total`` next to ``wanted``, as words."""
    divisors = [n for n in range(1, total + 1) if total % n == 0]
    below = [n for n in divisors if n < wanted][-1:]
    above = [n for n in divisors if n > wanted][:1]
    return " or ".join(map(str, below + above)) or "no"


def _parts(split: Split, rank: torch.Tensor, sizes: Sequence[int]) -> list[Split]:
    """The images of each task, in the data set's order, with ranks for labels."""
    labels = rank[split.labels]
    task_of_rank = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    task = task_of_rank[labels]
    ranked = Split(split.images, labels)
    return [ranked.take(torch.nonzero(task == number).flatten()) for number in range(len(sizes))]
