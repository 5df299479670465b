"""The losses in float64 NumPy, one plain loop over groups, written from the paper's equations.

Imports nothing of the package: what it says is independent of what the package does.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Group = tuple[int, ...]


def pool(tasks: int) -> Iterator[Group]:
    """Every non-empty set of tasks."""
    for number in range(1, 2**tasks):
        yield tuple(task for task in range(tasks) if number >> task & 1)


def columns(sizes: Sequence[int], group: Group) -> list[int]:
    """The logits that belong to the tasks of a group."""
    starts = [0, *accumulate(sizes)]
    return [c for task in group for c in range(starts[task], starts[task + 1])]


def log_softmax(x: Array) -> Array:
    x = x - x.max(axis=-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))


def divergence(
    student: Array, teacher: Array, chosen: Sequence[int], tau: float, direction: str = "teacher"
) -> tuple[Array, Array]:
    """KL(teacher || student) over the chosen columns, or KL(student || teacher), and its gradient.

    [B], and d KL / d student: [B, student's columns].
    """
    gradient = np.zeros_like(student)
    log_p = log_softmax(teacher[:, chosen] / tau)
    log_q = log_softmax(student[:, chosen] / tau)
    p, q = np.exp(log_p), np.exp(log_q)
    if direction == "student":
        kl = (q * (log_q - log_p)).sum(axis=1)
        gradient[:, chosen] = q * (log_q - log_p - kl[:, None]) / tau
    else:
        kl = (p * (log_p - log_q)).sum(axis=1)
        gradient[:, chosen] = (q - p) / tau
    return kl, gradient


@dataclass(frozen=True)
class Loss:
    value: float
    gradient: Array


def distillation(  # noqa: PLR0913 - the options of the loss
    student: Array,
    teacher: Array,
    sizes: Sequence[int],
    groups: str,
    *,
    reduction: str = "pool",
    tau: float = 2.0,
    tau_squared: bool = True,
    total: bool | None = None,
    direction: str = "teacher",
    skip_base: bool = False,
    weight: Callable[[Group], float] = lambda group: 1.0,
    drawn: Sequence[Group] = (),
) -> Loss:
    """The loss and its gradient, group by group; ``drawn`` are the groups of ``random``."""
    tasks, classes = len(sizes), sum(sizes)
    choices: dict[str, Callable[[], list[Group]]] = {
        "whole": lambda: [tuple(range(tasks))],
        "each": lambda: [(task,) for task in range(int(skip_base), tasks)],
        "random": lambda: list(drawn),
        "every": lambda: list(pool(tasks)),
    }
    chosen = choices[groups]()
    mean_size = {
        "whole": classes,
        "each": classes / tasks,
        "random": classes * 2 ** (tasks - 1) / (2**tasks - 1),
        "every": classes * 2 ** (tasks - 1) / (2**tasks - 1),
    }[groups]
    value, gradient = 0.0, np.zeros_like(student)
    for group in chosen:
        selected = columns(sizes, group)
        divisor = {"pool": mean_size, "element": len(selected), "batch": 1.0}[reduction]
        factor = weight(group) / divisor / len(student)
        kl, slope = divergence(student, teacher, selected, tau, direction)
        value += factor * kl.sum()
        gradient += factor * slope
    scale = tau**2 if tau_squared else 1.0
    if total is None:
        total = groups == "each"
    if not total:
        scale /= len(chosen)
    return Loss(scale * value, scale * gradient)


def group_statistics(
    student: Array, teacher: Array, sizes: Sequence[int], masks: NDArray[np.bool_], tau: float
) -> tuple[Array, Array]:
    """KL and its gradient for ONE image and many groups at once: [G] and [G, N].

    The same definition as `divergence`, with absent classes at minus infinity, for pools that
    are too large for a loop over groups.
    """
    member = np.repeat(masks, sizes, axis=1)
    log_p = log_softmax(np.where(member, teacher / tau, -np.inf))
    log_q = log_softmax(np.where(member, student / tau, -np.inf))
    p, q = np.exp(log_p), np.exp(log_q)
    terms = np.where(p > 0, p * (np.where(member, log_p, 0) - np.where(member, log_q, 0)), 0)
    return terms.sum(axis=1), (q - p) / tau


def adaptive_weight(
    old: Sequence[Array], new: Array, group: Group, lambda_base: float, per_group: bool = True
) -> float:
    """Eq. 5, from class vectors: a [classes, D] array per old task, and the new classes'."""
    members = [vector for task in group for vector in old[task]]
    ratio = len(members) if per_group else sum(len(task) for task in old)
    difference = sum(members) / len(members) - sum(new) / len(new)
    return float(lambda_base * np.sqrt(ratio / len(new)) * np.sqrt((difference**2).sum()))


def herding(features: Array, count: int) -> list[int]:
    """iCaRL's rule, image by image: the order of first picks."""
    rows = features / np.sqrt((features**2).sum(axis=1, keepdims=True))
    mean = rows.mean(axis=0)
    weight, picked = mean.copy(), list[int]()
    for _ in range(1000):
        if len(picked) == min(count, len(rows)):
            break
        best = int(np.argmax(rows @ weight))
        if best not in picked:
            picked.append(best)
        weight = weight + mean - rows[best]
    return picked


def greedy(features: Array, count: int) -> list[int]:
    """Without replacement, the pick that keeps the mean of the picks nearest to the mean."""
    rows = features / np.sqrt((features**2).sum(axis=1, keepdims=True))
    mean = rows.mean(axis=0)
    picked = list[int]()
    while len(picked) < min(count, len(rows)):
        left = [i for i in range(len(rows)) if i not in picked]
        means = [rows[[*picked, i]].mean(axis=0) for i in left]
        picked.append(left[int(np.argmin([((mean - m) ** 2).sum() for m in means]))])
    return picked


def cross_entropy(logits: Array, labels: Sequence[int]) -> float:
    """The mean over images of -log softmax(z)_y."""
    rows = log_softmax(logits)
    return float(-np.mean([row[label] for row, label in zip(rows, labels, strict=True)]))


def class_means(exemplars: Array, mirrored: Array, labels: Sequence[int]) -> Array:
    """iCaRL's, from the features of exemplars and of their mirror images: unit vectors [C, D]."""
    means = []
    for label in range(max(labels) + 1):
        rows = []
        for image in np.flatnonzero(np.asarray(labels) == label):
            for features in (exemplars[image], mirrored[image]):
                rows.append(features / np.sqrt((features**2).sum()))
        mean = sum(rows) / len(rows)
        means.append(mean / np.sqrt((mean**2).sum()))
    return np.stack(means)


def nearest_mean(features: Array, means: Array) -> list[int]:
    """For each image the class whose mean is nearest to its normalised features."""
    nearest = []
    for row in features:
        unit = row / np.sqrt((row**2).sum())
        nearest.append(int(np.argmin([np.sqrt(((unit - mean) ** 2).sum()) for mean in means])))
    return nearest
