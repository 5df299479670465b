"""Distillation over groups of tasks: one loss, four ways to choose the groups."""

import functools
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from densekd.checks import check_choice
from densekd.losses.dense import pool_mean_divergence
from densekd.losses.groups import Blocks, layout_of, listed_divergence, masked_divergence
from densekd.pool import TaskPool

Groups = Literal["whole", "each", "random", "every"]
Reduction = Literal["pool", "element", "batch"]
GroupWeights = Callable[[Tensor], Tensor]

# Up to so many tasks `every` lists all groups for their plain mean, which beyond is an integral.
_LISTED_TASKS = 10
# Where weights differ from group to group, up to so many (4095 groups); beyond, groups are drawn,
# this often per image unless told otherwise.
_WEIGHTED_TASKS = 12
_DRAWS_FOR_EVERY = 8

logger = logging.getLogger(__name__)


class DenseDistillation(nn.Module):
    r"""Distils a teacher into a student on groups of the tasks that the teacher learned.

    With logits over the old classes divided by the temperature, one group p of tasks costs

    .. math:: KL_p = \sum_{c \in p} \sigma(u_p)_c \log(\sigma(u_p)_c / \sigma(v_p)_c)

    (teacher u, student v), and the loss is ``tau^2 / B`` times the sum over images and groups of
    ``weights(p) / divisor(p) * KL_p``. ``groups`` names the groups:

    ========== ================================= ======================================
    ``whole``  GKD, Eq. 1                        all old classes together
    ``each``   TKD, Eq. 2                        every task by itself, summed
    ``random`` RDKD, Eq. 4                       a group drawn anew at each call
    ``every``  FDKD, Eq. 3                       all 2^t - 1 groups, averaged, exactly
    ========== ================================= ======================================

    ``reduction`` names the divisor:

    - ``pool``: the mean size of the groups, one constant (N for ``whole``, N/t for ``each``,
      ``TaskPool.mean_group_size`` for the others). All groups weigh alike, so ``random`` is an
      unbiased estimate of ``every``.
    - ``element``: the size of each group, as torch's element-wise mean; a group of 2 classes
      then weighs 25 times one of 50, which can diverge.
    - ``batch``: 1, the equations as written.

    Args:
        groups: which groups to distil on.
        temperature: tau, positive.
        reduction: what a group's divergence is divided by, besides the batch size.
        tau_squared: multiply by tau^2, which keeps gradients alike across temperatures.
        draws: groups per call for ``random`` (default 1), averaged; for ``every`` groups per
            image where it has to sample (default 8).
        per_image: for ``random``, draw for each image separately.
        total: for ``every``, sum over the pool instead of averaging.
    """

    def __init__(  # noqa: PLR0913 - one loss, and all but the first have defaults
        self,
        groups: Groups,
        temperature: float = 2.0,
        reduction: Reduction = "pool",
        tau_squared: bool = True,
        *,
        draws: int | None = None,
        per_image: bool = False,
        total: bool = False,
    ) -> None:
        super().__init__()
        check_choice("groups", groups, get_args(Groups))
        check_choice("reduction", reduction, get_args(Reduction))
        if not isinstance(temperature, (int, float)) or not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be a positive number, not {temperature!r}.")
        if draws is not None and (not isinstance(draws, int) or draws < 1):
            raise ValueError(f"draws must be 1 or more, not {draws!r}.")
        if draws is not None and groups in ("whole", "each"):
            raise ValueError(f"draws goes with groups='random' or 'every', not {groups!r}.")
        if per_image and groups != "random":
            raise ValueError(f"per_image goes with groups='random', not {groups!r}.")
        if total and groups != "every":
            raise ValueError(f"total goes with groups='every', not {groups!r}.")
        self.groups: Groups = groups
        self.temperature = temperature
        self.reduction: Reduction = reduction
        self.tau_squared = tau_squared
        self.draws = draws
        self.per_image = per_image
        self.total = total
        self._said_that_it_samples = False

    def forward(
        self,
        student: Tensor,
        teacher: Tensor,
        task_sizes: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        weights: GroupWeights | None = None,
    ) -> Tensor:
        """The loss of one batch.

        Args:
            student: logits ``[B, >= N]``; columns after the N old classes are ignored.
            teacher: logits ``[B, N]``; no gradient flows into them.
            task_sizes: the number of classes of each old task, in the order of the columns.
            generator: draws the groups where they are drawn.
            weights: gives each group's weight, bool masks ``[..., t]`` to ``[...]``; for
                instance `densekd.AdaptiveWeights`.

        Returns:
            A scalar, at least float32; NaN if any logit of an old class is not finite.
        """
        pool = TaskPool(task_sizes)
        _check_logits(student, teacher, pool)
        # The teacher's width, not the sum of the sizes, which torch.compile may not know.
        student = student[:, : teacher.shape[1]]
        teacher = teacher.detach()
        with _without_autocast(student.device.type):
            blocks = Blocks.of(student, teacher, pool.sizes, self.temperature)
            alike = self.reduction != "element" and weights is None
            if self.groups == "every" and alike and pool.tasks > _LISTED_TASKS:
                loss = pool_mean_divergence(*blocks) / self._divisor(pool)
            else:
                loss = self._weigh(blocks, pool, generator, weights)
            loss = loss.mean() * (self.temperature**2 if self.tau_squared else 1.0)
            if self.total:
                loss = loss * _as_float(pool)
            # 1, or NaN if a logit isn't finite, whether or not its group was drawn.
            intact = 1.0 + ((student - student) + (teacher - teacher)).detach().sum()
            loss = loss * intact
        return loss.to(torch.promote_types(student.dtype, torch.float32))

    def extra_repr(self) -> str:
        """The options that differ from the defaults, for ``print``."""
        shown = f"{self.groups!r}, temperature={self.temperature}, reduction={self.reduction!r}"
        options = ("tau_squared", True), ("draws", None), ("per_image", False), ("total", False)
        for name, default in options:
            if getattr(self, name) != default:
                shown += f", {name}={getattr(self, name)}"
        return shown

    def _weigh(
        self,
        blocks: Blocks,
        pool: TaskPool,
        generator: torch.Generator | None,
        weights: GroupWeights | None,
    ) -> Tensor:
        """Each image's weighted sum or mean over the groups chosen: ``[B]``."""
        masks, divergence = self._choose(blocks, pool, generator)
        if self.reduction == "element":
            sizes = layout_of(pool.sizes, masks.device).members.sum(0)
            divergence = divergence / (masks.to(sizes.dtype) @ sizes)
        else:
            divergence = divergence / self._divisor(pool)
        if weights is not None:
            divergence = divergence * _checked_weights(weights(masks), masks)
        return divergence.sum(-1) if self.groups == "each" else divergence.mean(-1)

    def _choose(
        self, blocks: Blocks, pool: TaskPool, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """The groups' masks, ``[G, t]`` or ``[B, G, t]``, and their divergences, ``[B, G]``."""
        batch, device = len(blocks.a), blocks.a.device
        if self.groups == "whole":
            masks = torch.ones(1, pool.tasks, dtype=torch.bool, device=device)
            return masks, masked_divergence(blocks, masks)
        if self.groups == "each":
            masks = torch.eye(pool.tasks, dtype=torch.bool, device=device)
            return masks, blocks.k
        if self.groups == "every" and pool.tasks <= _WEIGHTED_TASKS:
            return _every(pool, device), listed_divergence(blocks)
        if generator is None:
            raise ValueError(self._why_generator(pool))
        draws = self.draws or 1
        if self.groups == "every":
            draws = self.draws or _DRAWS_FOR_EVERY
            self._say_that_it_samples(pool, draws)
        if self.per_image or self.groups == "every":
            masks = pool.sample(generator, batch * draws).unflatten(0, (batch, draws))
        else:
            masks = pool.sample(generator, draws)
        masks = masks.to(device, non_blocking=True)
        return masks, masked_divergence(blocks, masks)

    def _divisor(self, pool: TaskPool) -> float:
        """The constant that the reductions ``pool`` and ``batch`` divide each group by."""
        if self.reduction == "batch":
            return 1.0
        if self.groups == "whole":
            return float(pool.classes)
        if self.groups == "each":
            return pool.classes / pool.tasks
        return pool.mean_group_size

    def _why_generator(self, pool: TaskPool) -> str:
        if self.groups == "random":
            return "groups='random' draws groups: pass a generator, made once before training."
        return (
            f"groups='every' with group-dependent weights draws groups beyond {_WEIGHTED_TASKS} "
            f"tasks, and there are {pool.tasks}: pass a generator, made once before training."
        )

    def _say_that_it_samples(self, pool: TaskPool, draws: int) -> None:
        if not self._said_that_it_samples:
            self._said_that_it_samples = True
            logger.warning(
                "The weights differ from group to group, so the 2^%d - 1 groups are not summed "
                "but estimated, without bias, from %d draws per image.",
                pool.tasks,
                draws,
            )


def _as_float(pool: TaskPool) -> float:
    try:
        return float(pool.count)
    except OverflowError:
        raise ValueError(
            f"The sum over 2^{pool.tasks} - 1 groups is too large for a number: leave out total."
        ) from None


def _without_autocast(device: str) -> AbstractContextManager[None]:
    if torch.amp.is_autocast_available(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


@functools.lru_cache(maxsize=16)
def _every(pool: TaskPool, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return pool.every().to(device)


def _checked_weights(factor: Tensor, masks: Tensor) -> Tensor:
    if not isinstance(factor, Tensor) or factor.shape != masks.shape[:-1]:
        given = list(factor.shape) if isinstance(factor, Tensor) else type(factor).__name__
        raise ValueError(
            f"weights must give a tensor of shape {list(masks.shape[:-1])}, one number for each "
            f"group, not {given}."
        )
    return factor


def _check_logits(student: Tensor, teacher: Tensor, pool: TaskPool) -> None:
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
