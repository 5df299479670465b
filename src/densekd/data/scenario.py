"""Scenarios: a data set as a sequence of tasks with new classes each, and class orders."""

import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, cast, overload

import numpy as np
import torch

from densekd.data.dataset import Dataset, Split
from densekd.parts import OwnPartError, display_name, explain_errors, find, is_reference
from densekd.seeds import fixed_random_state

# A custom function gets the class names, and returns these or their positions in learning order.
OrderFunction = Callable[[Sequence[str]], Sequence[str] | Sequence[int]]
Order = int | Literal["natural", "icarl"] | Path | OrderFunction
# For each task the number of its classes or their names; or a file of these names.
Tasks = Sequence[int] | Sequence[Sequence[str]] | Path


@dataclass(frozen=True)
class Task:
    """New classes with their images.

    A label is the rank of its class in learning order over all tasks: the labels of this task are
    ``first`` to ``first + len(classes) - 1``. So each task's logits are one block.

    Example:
        >>> from densekd import Scenario, load
        >>> task = Scenario.of(load("digits"), steps=4, equal=True, order="natural")[1]
        >>> task.number, task.first, task.classes
        (1, 2, ('2', '3'))
        >>> sorted({*task.train.labels.tolist()})
        [2, 3]
    """

    number: int  # 0 for the base task
    classes: tuple[str, ...]  # their names
    first: int  # the label of the first class
    train: Split
    test: Split
    validation: Split | None = None  # held out of the training images; see `Dataset`


@dataclass(frozen=True, eq=False, repr=False)
class Scenario(Sequence[Task]):
    """An immutable sequence of tasks that divide a data set's classes.

    Example:
        >>> from densekd import Scenario, load
        >>> scenario = Scenario.of(load("digits"), base=4, increment=2, order="natural")
        >>> [task.classes for task in scenario][1:]
        [('4', '5'), ('6', '7'), ('8', '9')]
    """

    dataset: Dataset
    order: Sequence[int]  # the class ids in learning order, each once
    sizes: Sequence[int]  # the number of classes of each task
    first: int | None = None  # the number of tasks to learn, if not all

    def __post_init__(self) -> None:
        classes = len(self.dataset.classes)
        if sorted(self.order) != list(range(classes)):
            raise ValueError(f"The order must name each of the {classes} classes once.")
        if sum(self.sizes) != classes or min(self.sizes, default=0) < 1:
            raise ValueError(f"Tasks of {[*self.sizes]} classes do not divide {classes} classes.")
        if self.first is not None and not 1 <= self.first <= len(self.sizes):
            raise ValueError(
                f"first = {self.first} is not possible with {len(self.sizes)} tasks; "
                f"give a number from 1 to {len(self.sizes)}."
            )

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
        """Make a usual protocol: a base task of half the classes, then equal increments.

        Args:
            dataset: the data set to divide.
            steps: T, the number of increments after the base task.
            base: the number of classes of the base task; half of all unless given.
            increment: the number of classes of an increment, instead of ``steps``.
            equal: give all T + 1 tasks, the base included, the same size.
            order: a seed of legacy NumPy, ``natural``, ``icarl``, a file of class names, or a
                function that gets the class names and returns them in learning order.
        """
        classes = len(dataset.classes)
        sizes = task_sizes(classes, steps=steps, base=base, increment=increment, equal=equal)
        return cls(dataset, tuple(class_order(dataset, order)), tuple(sizes))

    @classmethod
    def of_names(cls, dataset: Dataset, tasks: Sequence[Sequence[str]]) -> "Scenario":
        """Make a scenario from the class names of each task."""
        order = _ids([name for names in tasks for name in names], dataset.classes)
        return cls(dataset, tuple(order), tuple(len(names) for names in tasks))

    @classmethod
    def of_tasks(cls, dataset: Dataset, tasks: Tasks, order: Order = 1993) -> "Scenario":
        """Make a scenario of any tasks.

        Args:
            dataset: the data set to divide.
            tasks: the number of classes of each task, the names of its classes, or a file with a
                name per line and an empty line between tasks.
            order: the order of the classes, if ``tasks`` doesn't name them; see `of`.
        """
        if isinstance(tasks, Path):
            return cls.of_names(dataset, read_tasks(tasks))
        sizes = [task for task in tasks if isinstance(task, int)]
        names = [task for task in tasks if not isinstance(task, int | str)]
        if len(sizes) == len(tasks):
            return cls(dataset, tuple(class_order(dataset, order)), tuple(sizes))
        if len(names) < len(tasks):
            raise ValueError(
                f"Tasks are all numbers of classes, or all lists of class names, not {tasks!r}."
            )
        return cls.of_names(dataset, names)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of all classes in learning order: a label is an index into them."""
        return tuple(self.dataset.classes[i] for i in self.order)

    @cached_property
    def _tasks(self) -> tuple[Task, ...]:
        rank = torch.tensor(self.order).argsort()
        held = self.dataset.validation
        parts = (self.dataset.train, self.dataset.test, *([] if held is None else [held]))
        ranked = [Split(part.images, rank[part.labels]) for part in parts]
        tasks = []
        for number, end in enumerate(accumulate(self.sizes[: self.first])):
            first = end - self.sizes[number]
            own = (x.take((first <= x.labels) & (x.labels < end)) for x in ranked)
            tasks.append(Task(number, self.classes[first:end], first, *own))
        return tuple(tasks)

    def __len__(self) -> int:
        return len(self.sizes[: self.first])

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        return self._tasks[index]

    def __repr__(self) -> str:
        return f"Scenario({self.dataset.name!r}, tasks of {list(self.sizes)} classes)"


def check_division(
    *, steps: int | None, base: int | None, increment: int | None, equal: bool
) -> None:
    """Raise a ValueError for arguments of `Scenario.of` that contradict each other."""
    if (steps is None) == (increment is None):
        raise ValueError("Give either steps or increment, and not both.")
    if equal and (base is not None or steps is None):
        raise ValueError("Equal tasks are given by steps alone; leave out base and increment.")


def task_sizes(
    classes: int,
    *,
    steps: int | None = None,
    base: int | None = None,
    increment: int | None = None,
    equal: bool = False,
) -> list[int]:
    """Return the number of classes of each task; see `Scenario.of`.

    Raises:
        ValueError: the classes can't be divided like this; the message says what is possible.
    """
    check_division(steps=steps, base=base, increment=increment, equal=equal)
    if equal:
        assert steps is not None
        return [_divide(classes, steps + 1, "classes", "tasks")] * (steps + 1)
    base = classes // 2 if base is None else base
    if not 1 <= base <= classes:
        raise ValueError(f"A base of {base} classes is not possible with {classes} classes.")
    rest = classes - base
    after = f"classes after the base of {base}"
    if increment is not None:
        if increment < 1 or rest % increment:
            raise ValueError(
                f"{rest} {after} can't be learned {increment} at a time; "
                f"possible are {_nearest(rest, increment)} at a time, or another base."
            )
        return [base] + [increment] * (rest // increment)
    assert steps is not None
    if steps == rest == 0:
        return [base]
    return [base] + [_divide(rest, steps, after, "steps")] * steps


def class_order(dataset: Dataset, order: Order) -> list[int]:
    """Return the class ids in learning order; see `Scenario.of` for the orders."""
    classes = len(dataset.classes)
    if order == "natural":
        return list(range(classes))
    if order == "icarl":
        return icarl_order(torch.bincount(dataset.train.labels, minlength=classes).tolist())
    if isinstance(order, Path) and is_reference(order):
        part = display_name(str(order), "order")
        return _own_order(part, cast(Any, find(str(order))), dataset.classes)
    if callable(order):
        name = getattr(order, "__name__", type(order).__name__)
        return _own_order(f"The order {name}", order, dataset.classes)
    if isinstance(order, Path):
        return _ids(read_names(order), dataset.classes)
    if isinstance(order, int):
        return seeded_order(classes, order)
    raise ValueError(f"order={order!r} is not a seed, 'natural', 'icarl' or the path of a file.")


def _own_order(name: str, order: OrderFunction, classes: Sequence[str]) -> list[int]:
    if not callable(order):
        raise OwnPartError(f"{name} must be a function of the class names, not {order!r}.")
    # A resumed run calls it again, and so does every rank: all must get the same order.
    with explain_errors(name), fixed_random_state():
        wanted = list(order(classes))
    if all(isinstance(name, str) for name in wanted):
        try:
            return _ids(cast(list[str], wanted), classes)
        except ValueError as error:
            raise OwnPartError(f"{name} can't be used: {error}") from error
    try:
        ids = [operator.index(cast(int, each)) for each in wanted]
    except TypeError:
        ids = []
    if sorted(ids) != list(range(len(classes))):
        raise OwnPartError(
            f"{name} must return all {len(classes)} class names, or the whole numbers from 0 to "
            f"{len(classes) - 1}, in learning order."
        )
    return ids


def seeded_order(classes: int, seed: int) -> list[int]:
    """Permute the class ids by legacy NumPy, as the field's protocols do.

    Seed 1993 on 100 classes is the order of UCIR, CCIL and PyCIL: 68, 56, 78, 8, 23, ...
    """
    return [int(i) for i in np.random.RandomState(seed).permutation(classes)]


def icarl_order(images_per_class: Sequence[int]) -> list[int]:
    """Return the first order of iCaRL, PODNet and AFC: 87, 0, 52, 58, 44, ... on CIFAR-100.

    The seed is 1993 here, too, but their code first shuffles the images of each class by it.
    """
    random = np.random.RandomState(1993)
    for images in images_per_class:
        random.shuffle(np.arange(images))
    order = np.arange(len(images_per_class))
    random.shuffle(order)
    return [int(i) for i in order]


def read_names(path: Path) -> list[str]:
    """Read class names from a text file, one per line; blank lines and # comments are ignored."""
    return [name for task in read_tasks(path) for name in task]


def read_tasks(path: Path) -> list[list[str]]:
    """Read the class names of each task from a text file, one per line.

    An empty line begins the next task; # comments are ignored.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} can't be read as a text file of class names ({error})."
        ) from error
    tasks: list[list[str]] = [[]]
    for line in lines:
        # A # within a name, such as C#, is part of it.
        if name := re.sub(r"(^|\s)#.*", "", line).strip():
            tasks[-1].append(name)
        elif not line.strip():
            tasks.append([])
    names = [name for task in tasks for name in task]
    if not names:
        raise ValueError(f"{path} names no class; it must have one per line.")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{path} names the class {name!r} {count} times; keep one of them.")
    return [task for task in tasks if task]


def _ids(wanted: Sequence[str], names: Sequence[str]) -> list[int]:
    """The ids of ``wanted``; raises ValueError unless these are all ``names``, each once."""
    ids = {name: i for i, name in enumerate(names)}
    unknown = [name for name in wanted if name not in ids]
    if unknown:
        raise ValueError(f"There is no class {unknown[0]!r} in this data set.")
    if len(set(wanted)) < len(wanted):
        name, _ = Counter(wanted).most_common(1)[0]
        raise ValueError(f"The class {name!r} is named twice in the order.")
    missing = ids.keys() - set(wanted)
    if missing:
        raise ValueError(
            f"The order lacks {len(missing)} of {len(names)} classes: {min(missing)!r}, ..."
        )
    return [ids[name] for name in wanted]


def _divide(classes: int, parts: int, what: str, of: str) -> int:
    if parts < 1 or classes < 1 or classes % parts:
        raise ValueError(
            f"{classes} {what} can't be divided into {parts} equal {of}; "
            f"possible are {_nearest(classes, parts)} {of}."
        )
    return classes // parts


def _nearest(total: int, wanted: int) -> str:
    """The divisors of ``total`` just below and above ``wanted``, as text."""
    divisors = [n for n in range(1, total + 1) if total % n == 0]
    below = [n for n in divisors if n < wanted][-1:]
    above = [n for n in divisors if n > wanted][:1]
    return " or ".join(map(str, below + above)) or "no"
