"""Losses on class scores: iCaRL's sigmoids, PODNet's NCA, BiC's soft cross-entropy.

All of them compute in at least float32, whatever they are given, and so do they under autocast.
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from densekd.checks import check_choice

NcaMode = Literal["released", "paper"]


def new_class_bce(logits: Tensor, labels: Tensor, old: int) -> Tensor:
    """The loss of iCaRL on the outputs of new classes, whose targets are the labels.

    ``-1 / (B seen) sum_x sum_{c >= old} [y = c] log g_c + [y != c] log(1 - g_c)``, g the sigmoids
    of the logits. With `old_class_bce` it adds up to the mean over images and all outputs; with
    ``old`` 0, in the base task, it is that mean.

    Args:
        logits: ``[B, seen]``.
        labels: int64 ``[B]``. To an image of an old class all new classes are wrong.
        old: how many classes, the first columns, were learned before.

    Returns:
        A scalar.
    """
    check_labels(logits, labels, old)
    logits = widened(logits)
    targets = one_hot(labels, logits.shape[1])[:, old:].to(logits.dtype)
    total = binary_cross_entropy_with_logits(logits[:, old:], targets, reduction="sum")
    return total / logits.numel()


def old_class_bce(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """The loss of iCaRL on the outputs of old classes, whose targets are the teacher's sigmoids.

    ``-1 / (B seen) sum_x sum_{c < old} q_c log g_c + (1 - q_c) log(1 - g_c)``, g the student's and
    q the teacher's sigmoids: for every image, also for exemplars, whose labels it doesn't see.

    Args:
        logits: the student's, ``[B, seen]``.
        teacher_logits: ``[B, old]``; no gradient flows into them.

    Returns:
        A scalar.
    """
    _check_matrix("student's logits", logits)
    _check_matrix("teacher's logits", teacher_logits)
    old = teacher_logits.shape[1]
    if len(logits) != len(teacher_logits) or old > logits.shape[1]:
        raise ValueError(
            f"The teacher's logits {list(teacher_logits.shape)} must be of the same images as the "
            f"student's {list(logits.shape)}, and of no more classes."
        )
    logits = widened(logits)
    targets = widened(teacher_logits.detach()).sigmoid().to(logits.dtype)
    total = binary_cross_entropy_with_logits(logits[:, :old], targets, reduction="sum")
    return total / logits.numel()


def nca_loss(
    scores: Tensor, labels: Tensor, mode: NcaMode = "released", margin: float | Tensor = 0.6
) -> Tensor:
    """PODNet's classification loss, which AFC shares.

    With z the scores of an image of class y, the mean over images of

    - ``released``: ``-z_y + log(e^M + sum_{j != y} e^{z_j})``, where M, the largest score, has a
      gradient too. This is what the released code computes: it takes the margin from all scores,
      where it cancels, and replaces the positive in the denominator instead of removing it.
    - ``paper``: ``max(0, -(z_y - margin) + log sum_{j != y} e^{z_j})``.

    Args:
        scores: ``[B, C]``, already multiplied by the classifier's scale eta.
        labels: int64 ``[B]``.
        mode: which of the two.
        margin: for ``paper``, how far ahead of the others the positive has to be, on the scale of
            ``scores``. For a margin on what eta multiplies, pass ``eta * margin``.

    Returns:
        A scalar.
    """
    check_choice("mode", mode, get_args(NcaMode))
    check_labels(scores, labels)
    scores, positive = widened(scores), labels[:, None]
    own = scores.gather(1, positive)[:, 0]
    if mode == "released":
        largest = scores.max(1, keepdim=True).values
        return (scores.scatter(1, positive, largest).logsumexp(1) - own).mean()
    others = scores.scatter(1, positive, -math.inf).logsumexp(1)
    return (others - own + margin).relu().mean()


def soft_cross_entropy(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Cross-entropy against a teacher's probabilities: the distillation of BiC's first stage.

    ``-sum_c softmax(u / tau)_c log softmax(v / tau)_c`` (teacher u, student v), the mean over
    images, not multiplied by tau^2.

    Args:
        student: logits ``[B, C]``; those of the old classes, for BiC.
        teacher: logits ``[B, C]`` of the same classes; no gradient flows into them.
        temperature: tau, positive.

    Returns:
        A scalar.
    """
    _check_matrix("student's logits", student)
    if student.shape != teacher.shape:
        raise ValueError(
            f"The student's logits {list(student.shape)} and the teacher's {list(teacher.shape)} "
            "must be of the same images and classes: slice the student's."
        )
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be a positive number, not {temperature!r}.")
    student = widened(student)
    targets = (widened(teacher.detach()) / temperature).softmax(1).to(student.dtype)
    return cross_entropy(student / temperature, targets)


def widened(x: Tensor) -> Tensor:
    """The same numbers in at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def check_labels(scores: Tensor, labels: Tensor, old: int = 0) -> None:
    """Refuse labels ``[B]`` that don't fit scores ``[B, C]``, or ``old`` that leaves none new.

    It doesn't look at the labels' values, which would wait for the device.
    """
    _check_matrix("scores", scores)
    if labels.shape != scores.shape[:1] or labels.dtype != torch.int64:
        raise ValueError(
            f"labels must be int64 [{len(scores)}], one for each image, not {labels.dtype} "
            f"{list(labels.shape)}."
        )
    if not 0 <= old < scores.shape[1]:
        raise ValueError(
            f"old={old} must leave at least one of the {scores.shape[1]} classes to be new."
        )


def _check_matrix(name: str, scores: Tensor) -> None:
    if scores.ndim != 2 or scores.numel() == 0:
        raise ValueError(
            f"The {name} must be [images, classes] of at least one image and class, not of shape "
            f"{list(scores.shape)}."
        )
