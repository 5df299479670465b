"""Checks of the losses' arguments, and their precision."""

import math

import torch
from torch import Tensor

from densekd.pool import TaskPool


def widened(x: Tensor) -> Tensor:
    """Return the same numbers in at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def check_matrix(name: str, scores: Tensor) -> None:
    """Refuse scores that aren't ``[images, classes]`` with at least one of each."""
    if not isinstance(scores, Tensor):
        raise ValueError(f"The {name} must be a tensor, not a {type(scores).__name__}.")
    if scores.ndim != 2 or scores.numel() == 0:
        raise ValueError(
            f"The {name} must be [images, classes], at least one of each, not {list(scores.shape)}."
        )


def check_labels(scores: Tensor, labels: Tensor, old: int = 0) -> None:
    """Refuse labels ``[B]`` that don't fit scores ``[B, C]``, or ``old`` that leaves none new.

    The labels' values aren't checked, since reading them would wait for the device.
    """
    check_matrix("scores", scores)
    if labels.shape != scores.shape[:1] or labels.dtype != torch.int64:
        raise ValueError(
            f"labels must be int64 [{len(scores)}], one for each image, not {labels.dtype} "
            f"{list(labels.shape)}."
        )
    if not 0 <= old < scores.shape[1]:
        raise ValueError(
            f"old={old} must leave at least one of {scores.shape[1]} classes to be new."
        )


def check_temperature(temperature: float) -> None:
    """Refuse a temperature that isn't a positive, finite number."""
    if not isinstance(temperature, (int, float)) or not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be a positive number, not {temperature!r}.")


def check_option(name: str, given: bool, groups: str, *goes_with: str) -> None:
    """Refuse an option that is ``given`` with groups that don't use it."""
    if given and groups not in goes_with:
        wanted = " or ".join(map(repr, goes_with))
        raise ValueError(f"{name} goes with groups={wanted}, not {groups!r}.")


def check_weights(weights: Tensor, masks: Tensor) -> None:
    """Refuse weights of groups unless there is one for each mask."""
    if not isinstance(weights, Tensor) or weights.shape != masks.shape[:-1]:
        given = list(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(
            f"weights must return a tensor of shape {list(masks.shape[:-1])}, one number for each "
            f"group, not {given}."
        )


def check_logits(student: Tensor, teacher: Tensor, pool: TaskPool) -> None:
    """Refuse logits that don't fit each other or the tasks."""
    for name, logits in (("student", student), ("teacher", teacher)):
        check_matrix(f"{name}'s logits", logits)
        if not logits.is_floating_point():
            raise ValueError(f"The {name}'s logits must be floating point, not {logits.dtype}.")
    if len(student) != len(teacher):
        raise ValueError(
            f"The student has logits of {len(student)} images, the teacher of {len(teacher)}."
        )
    if student.device != teacher.device:
        raise ValueError(
            f"The student's logits are on {student.device}, the teacher's on {teacher.device}."
        )
    if teacher.shape[1] > student.shape[1]:
        raise ValueError(
            f"The teacher knows {teacher.shape[1]} classes, the student only {student.shape[1]}."
        )
    if pool.classes != teacher.shape[1]:
        raise ValueError(
            f"task_sizes {list(pool.sizes)} sum to {pool.classes}, not {teacher.shape[1]} classes."
        )
