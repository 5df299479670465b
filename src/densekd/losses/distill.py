"""Distillation over groups of tasks: one loss, four ways to choose the groups."""

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from densekd.checks import check_choice
from densekd.losses.checks import check_logits, check_option, check_temperature, check_weights
from densekd.losses.groups import Blocks, layout_of, listed_divergence, masked_divergence
from densekd.losses.pool_mean import pool_mean_divergence
from densekd.pool import TaskPool

Groups = Literal["whole", "each", "random", "every"]
Reduction = Literal["pool", "element", "batch"]
Direction = Literal["teacher", "student"]
Single = Literal["keep", "resample"]
# Maps the bool masks [..., t] of groups to weights: lambda of Eq. 5 depends on the group.
GroupWeights = Callable[[Tensor], Tensor]

# ``every`` lists and averages all groups of up to this many tasks; beyond, it uses the integral.
_LISTED_TASKS = 10
# The same where weights or divisors differ between groups, or the direction is ``student`` (4095
# groups); beyond, it draws `_DRAWS_FOR_EVERY` groups per image by default.
_WEIGHTED_TASKS = 12
_MOST_DRAWS = 10_000
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
    - ``element``: the size of each group, like torch's element-wise mean; a group of 2 classes
      then weighs 25 times as much as one of 50, and training can diverge.
    - ``batch``: 1, the equations as written.

    ``skip_base`` and ``single`` exclude groups; they don't change the divisor.

    Args:
        groups: which groups to distil on.
        temperature: tau, positive.
        reduction: what a group's divergence is divided by, besides the batch size.
        tau_squared: multiply by tau^2, which keeps gradients alike across temperatures.
        draws: groups per call for ``random`` (default 1), averaged; groups per image for
            ``every`` where it has to sample (default 8).
        per_image: for ``random``, draw for each image separately.
        total: for ``each`` and ``every``, sum over the groups (True, the default of ``each``) or
            average (False, the default of ``every``).
        direction: ``teacher`` for KL(teacher || student), or ``student`` for
            KL(student || teacher), as the paper writes it. With ``student``, ``every`` is exact
            up to 12 tasks and samples beyond.
        skip_base: for ``each``, leave out task 0, as Eq. 2 does, which counts tasks from 1. The
            loss is 0 until another task is learned.
        single: for ``random``, ``keep`` a drawn group of a single class, whose divergence is 0,
            or ``resample`` it if there is another group. Resampling makes the loss larger on
            average than ``every``.

    Example:
        >>> import torch
        >>> from densekd import DenseDistillation
        >>> loss = DenseDistillation("every", temperature=2.0)
        >>> student, teacher = torch.eye(4, 70), torch.ones(4, 70)
        >>> value = loss(student, teacher, [50, 10, 10])  # logits, and the classes of each old task
        >>> value.shape, value.item() > 0
        (torch.Size([]), True)
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
        total: bool | None = None,
        direction: Direction = "teacher",
        skip_base: bool = False,
        single: Single = "keep",
    ) -> None:
        super().__init__()
        check_choice("groups", groups, get_args(Groups))
        check_choice("reduction", reduction, get_args(Reduction))
        check_choice("direction", direction, get_args(Direction))
        check_choice("single", single, get_args(Single))
        check_temperature(temperature)
        if draws is not None and (not isinstance(draws, int) or not 1 <= draws <= _MOST_DRAWS):
            raise ValueError(f"draws must be from 1 to {_MOST_DRAWS:,}, not {draws!r}.")
        check_option("draws", draws is not None, groups, "random", "every")
        check_option("per_image", per_image, groups, "random")
        check_option("total", total is not None, groups, "each", "every")
        check_option("skip_base", skip_base, groups, "each")
        check_option("single", single != "keep", groups, "random")
        self.groups: Groups = groups
        self.temperature = temperature
        self.reduction: Reduction = reduction
        self.tau_squared = tau_squared
        self.draws = draws
        self.per_image = per_image
        self.total = groups == "each" if total is None else total
        self.direction: Direction = direction
        self.skip_base = skip_base
        self.single: Single = single
        self._warned = False

    def forward(
        self,
        student: Tensor,
        teacher: Tensor,
        task_sizes: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        weights: GroupWeights | None = None,
    ) -> Tensor:
        """Return the loss of one batch.

        Args:
            student: logits ``[B, >= N]``; columns after the N old classes are ignored.
            teacher: logits ``[B, N]``; no gradient flows into them.
            task_sizes: the number of classes of each old task, in the order of the columns.
            generator: needed where groups are drawn.
            weights: maps groups, bool masks ``[..., t]``, to their weights ``[...]``; for example
                `densekd.AdaptiveWeights`.

        Returns:
            A scalar, at least float32; NaN if any logit of an old class is not finite.
        """
        pool = TaskPool(task_sizes)
        check_logits(student, teacher, pool)
        # The teacher's width, not the sum of the sizes, which torch.compile might not know.
        student = student[:, : teacher.shape[1]]
        teacher = teacher.detach()
        with _without_autocast(student.device.type):
            pair = (student, teacher) if self.direction == "teacher" else (teacher, student)
            blocks = Blocks.of(*pair, pool.sizes, self.temperature)
            uniform = self.reduction != "element" and weights is None
            integral = uniform and self.direction == "teacher" and pool.tasks > _LISTED_TASKS
            if self.groups == "every" and integral:
                loss = pool_mean_divergence(*blocks) / self._divisor(pool)
            else:
                loss = self._weigh(blocks, pool, generator, weights)
            loss = loss.mean() * (self.temperature**2 if self.tau_squared else 1.0)
            if self.groups == "every" and self.total:
                loss = loss * _as_float(pool)
            # 1, or NaN if any logit isn't finite, even if its group wasn't drawn.
            intact = 1.0 + ((student - student) + (teacher - teacher)).detach().sum()
            loss = loss * intact
        return loss.to(torch.promote_types(student.dtype, torch.float32))

    def extra_repr(self) -> str:
        """List the options that differ from the defaults, for ``print``."""
        shown = f"{self.groups!r}, temperature={self.temperature}, reduction={self.reduction!r}"
        keywords = DenseDistillation.__init__.__kwdefaults__ or {}
        defaults = {"tau_squared": True, **keywords, "total": self.groups == "each"}
        for name, default in defaults.items():
            if getattr(self, name) != default:
                shown += f", {name}={getattr(self, name)!r}"
        return shown

    def _weigh(
        self,
        blocks: Blocks,
        pool: TaskPool,
        generator: torch.Generator | None,
        weights: GroupWeights | None,
    ) -> Tensor:
        """Return each image's weighted sum or mean over the chosen groups: ``[B]``."""
        masks, divergence = self._choose(blocks, pool, generator)
        if self.reduction == "element":
            sizes = layout_of(pool.sizes, masks.device).members.sum(0)
            divergence = divergence / (masks.to(sizes.dtype) @ sizes)
        else:
            divergence = divergence / self._divisor(pool)
        if weights is not None:
            factors = weights(masks)
            check_weights(factors, masks)
            divergence = divergence * factors
        if self.groups != "each":
            return divergence.mean(-1)
        # If the base task is skipped and no other was learned, there is no group: 0, not NaN.
        return divergence.sum(-1) / (1 if self.total else max(1, len(masks)))

    def _choose(
        self, blocks: Blocks, pool: TaskPool, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Return the groups' masks, ``[G, t]`` or ``[B, G, t]``, and divergences, ``[B, G]``."""
        device = blocks.a.device
        if self.groups == "whole":
            masks = torch.ones(1, pool.tasks, dtype=torch.bool, device=device)
            return masks, masked_divergence(blocks, masks)
        if self.groups == "each":
            masks = torch.eye(pool.tasks, dtype=torch.bool, device=device)
            first = 1 if self.skip_base else 0
            return masks[first:], blocks.k[:, first:]
        if self.groups == "every" and pool.tasks <= _WEIGHTED_TASKS:
            return _every(pool, device), listed_divergence(blocks)
        masks = self._draw(pool, generator, len(blocks.a)).to(device, non_blocking=True)
        return masks, masked_divergence(blocks, masks)

    def _draw(self, pool: TaskPool, generator: torch.Generator | None, batch: int) -> Tensor:
        """Draw groups' masks, ``[G, t]``, or ``[B, G, t]`` if they are drawn for each image."""
        draws, separate, why = self.draws or 1, self.per_image, "groups='random' draws groups"
        if self.groups == "every":
            draws, separate = self.draws or _DRAWS_FOR_EVERY, True
            student = self.direction == "student"
            cause = "direction='student'" if student else "group-dependent weights"
            beyond = f"beyond {_WEIGHTED_TASKS} tasks, and there are {pool.tasks}"
            why = f"groups='every' with {cause} draws groups {beyond}"
            if generator is not None and not self._warned:
                self._warned = True
                logger.warning(
                    "With %s, the 2^%d - 1 groups are not summed but estimated, without bias, from "
                    "%d draws per image.",
                    *(cause, pool.tasks, draws),
                )
        if generator is None:
            raise ValueError(f"{why}: pass a generator, made once before training.")
        singles = self.single == "keep" or pool.classes == 1
        masks = pool.sample(generator, batch * draws if separate else draws, singles=singles)
        return masks.unflatten(0, (batch, draws)) if separate else masks

    def _divisor(self, pool: TaskPool) -> float:
        """Return the constant that ``pool`` and ``batch`` divide each group by."""
        if self.reduction == "batch":
            return 1.0
        if self.groups == "whole":
            return float(pool.classes)
        if self.groups == "each":
            return pool.classes / pool.tasks
        return pool.mean_group_size


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
