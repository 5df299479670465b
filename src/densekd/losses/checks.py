"""Checks of what the losses are given."""

from torch import Tensor

from densekd.pool import TaskPool


def check_option(name: str, given: bool, groups: str, *goes_with: str) -> None:
    """Refuse an option that is ``given`` to groups it says nothing about."""
    if given and groups not in goes_with:
        wanted = " or ".join(map(repr, goes_with))
        raise ValueError(f"{name} goes with groups={wanted}, not {groups!r}.")


def checked_weights(factor: Tensor, masks: Tensor) -> Tensor:
    """The weights that were given for groups, if there is one for each."""
    if not isinstance(factor, Tensor) or factor.shape != masks.shape[:-1]:
        given = list(factor.shape) if isinstance(factor, Tensor) else type(factor).__name__
        raise ValueError(
            f"weights must give a tensor of shape {list(masks.shape[:-1])}, one number for each "
            f"group, not {given}."
        )
    return factor


def check_logits(student: Tensor, teacher: Tensor, pool: TaskPool) -> None:
    """Refuse logits that do not fit each other or the tasks."""
    _check_matrix("student", student)
    _check_matrix("teacher", teacher)
    if len(student) != len(teacher):
        raise ValueError(
            f"The student's logits are of {len(student)} images, the teacher's of {len(teacher)}."
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
            f"task_sizes {list(pool.sizes)} add up to {pool.classes}, "
            f"but the teacher knows {teacher.shape[1]} classes."
        )


def _check_matrix(name: str, logits: Tensor) -> None:
    if logits.ndim != 2 or len(logits) == 0:
        raise ValueError(
            f"The {name}'s logits must be [images, classes] of at least one image, "
            f"not of shape {list(logits.shape)}."
        )
    if not logits.is_floating_point():
        raise ValueError(f"The {name}'s logits must be floating point, not {logits.dtype}.")
