"""Losses on class scores: iCaRL's sigmoids, PODNet's NCA, BiC's soft cross-entropy, UCIR's margin.

All return a scalar and compute in at least float32, also under autocast. No gradient flows into
the teacher.
"""

import math
from typing import Literal, get_args

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from densekd.checks import check_choice
from densekd.losses.checks import check_labels, check_matrix, check_temperature, widened

NcaMode = Literal["released", "paper"]


def new_class_bce(logits: Tensor, labels: Tensor, old: int) -> Tensor:
    """Return iCaRL's loss on the outputs of new classes, whose targets are the labels.

    ``-1 / (B seen) sum_x sum_{c >= old} [y = c] log g_c + [y != c] log(1 - g_c)``, g the sigmoids
    of the logits ``[B, seen]``, whose first columns are the ``old`` classes. Its sum with
    `old_class_bce` is the mean over images and all outputs; in the base task, where ``old`` is 0,
    it is that mean by itself. For an image of an old class, all targets are 0.
    """
    check_labels(logits, labels, old)
    logits = widened(logits)
    targets = one_hot(labels, logits.shape[1])[:, old:].to(logits.dtype)
    total = binary_cross_entropy_with_logits(logits[:, old:], targets, reduction="sum")
    return total / logits.numel()


def old_class_bce(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return iCaRL's loss on the outputs of old classes, whose targets are the teacher's sigmoids.

    ``-1 / (B seen) sum_x sum_{c < old} q_c log g_c + (1 - q_c) log(1 - g_c)``, g the student's and
    q the teacher's sigmoids. All images count, including exemplars; labels aren't used. The logits
    are ``[B, seen]``, the teacher's ``[B, old]``.
    """
    check_matrix("student's logits", logits)
    check_matrix("teacher's logits", teacher_logits)
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
    """Return the classification loss of PODNet and AFC.

    With z the scores of an image of class y, the mean over images of

    - ``released``: ``-z_y + log(e^M + sum_{j != y} e^{z_j})``, M the largest score, which has a
      gradient too. This is what the released code computes: it subtracts the margin from all
      scores, where it cancels, and replaces the positive in the denominator by M.
    - ``paper``: ``max(0, -(z_y - margin) + log sum_{j != y} e^{z_j})``.

    The scores, ``[B, C]``, are already multiplied by the classifier's scale eta. The margin is on
    their scale: multiply it by eta for a margin on the unscaled scores.
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
    """Return the cross-entropy to the teacher's probabilities: BiC's distillation.

    ``-sum_c softmax(u / tau)_c log softmax(v / tau)_c`` (teacher u, student v), the mean over
    images, not multiplied by tau^2. Both logits are ``[B, C]``, for BiC of the old classes.
    """
    check_matrix("student's logits", student)
    if student.shape != teacher.shape:
        raise ValueError(
            f"The student's logits {list(student.shape)} and the teacher's {list(teacher.shape)} "
            "must be of the same images and classes: slice the student's."
        )
    check_temperature(temperature)
    student = widened(student)
    targets = (widened(teacher.detach()) / temperature).softmax(1).to(student.dtype)
    return cross_entropy(student / temperature, targets)


def margin_ranking(
    cosines: Tensor, labels: Tensor, old: int, margin: float = 0.5, k: int = 2
) -> Tensor:
    """Put an image's own old class ahead of the nearest new classes by a margin.

    ``max(0, margin - s_y + s_j)``, the mean over the images of old classes and, for each, over the
    k new classes j (or all, if there are fewer) with the largest cosines s. The cosines,
    ``[B, seen]``, are unscaled, and their first columns are the ``old`` classes. Without an image
    of an old class, the loss and its gradient are 0.
    """
    check_labels(cosines, labels, old)
    if k < 1:
        raise ValueError(f"k must be 1 or more new classes, not {k!r}.")
    cosines = widened(cosines)
    nearest = cosines[:, old:].topk(min(k, cosines.shape[1] - old), dim=1).values
    own = cosines.gather(1, labels[:, None])
    each = (margin - own + nearest).relu().mean(1)
    # Weighted rather than selected: selecting would wait for the device to count the images.
    counted = (labels < old).to(each.dtype)
    return (each * counted).sum() / counted.sum().clamp(min=1)
