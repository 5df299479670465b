"""How long and how fast a method is trained."""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Literal, SupportsIndex, get_args

from densekd.checks import check_choice

Decay = Literal["cosine", "milestones", "constant"]
Optimiser = Literal["sgd", "adamw"]
_MOST = 10**9  # epochs, or images in a batch
_SGD_LR, ADAMW_LR = 0.1, 1e-3  # the usual learning rates

# The least share of its epochs that a finish is shortened to: with few images it costs little, and
# it needs enough steps however short the rest is (docs/decisions/030).
_SHORTEST_FINISH = 1 / 4


@dataclass(frozen=True)
class Schedule:
    """The epochs of one phase: an optimiser, with a learning rate per epoch.

    Example:
        >>> from densekd import Schedule
        >>> schedule = Schedule(epochs=100, decay="milestones", milestones=(50, 75))
        >>> [round(schedule.lr_at(epoch), 4) for epoch in (0, 50, 75)]
        [0.1, 0.01, 0.001]
    """

    epochs: int = 70  # passes over the new images
    # The learning rate of the first epoch after the warm-up; by default 0.1, for AdamW 0.001.
    lr: float = None  # type: ignore[assignment]
    decay: Decay = "cosine"
    lr_end: float = 1e-4  # where the cosine ends; a smaller ``lr`` stays as it is
    milestones: tuple[int, ...] = ()  # the epochs from which the rate is multiplied by ``factor``
    batch_size: int = 128  # of each stream, over all ranks
    momentum: float = 0.9  # of SGD; AdamW's first beta, whose second is 0.999
    weight_decay: float = 1e-4  # on all parameters; AdamW decouples it from the gradient
    clamp: float | None = None  # clip each element of a gradient to plus or minus this
    factor: float = 0.1
    optimiser: Optimiser = "sgd"
    warmup: int = 0  # the first epochs, in which the rate grows linearly to ``lr``

    def __post_init__(self) -> None:
        check_choice("decay", self.decay, get_args(Decay))
        check_choice("optimiser", self.optimiser, get_args(Optimiser))
        if self.lr is None:
            object.__setattr__(self, "lr", ADAMW_LR if self.optimiser == "adamw" else _SGD_LR)
        counts = self.epochs, self.batch_size
        whole = all(isinstance(n, SupportsIndex) and 1 <= n <= _MOST for n in counts)
        if not whole or not 0 < self.lr < math.inf:
            raise ValueError(
                f"Can't train for {self.epochs} epochs at rate {self.lr} "
                f"in batches of {self.batch_size}."
            )
        numbers = self.lr_end, self.momentum, self.weight_decay, self.factor
        if not all(0 <= x < math.inf for x in numbers):
            raise ValueError(
                "lr_end, momentum, weight_decay and factor must be numbers of at least 0."
            )
        if self.clamp is not None and not 0 < self.clamp < math.inf:
            raise ValueError(f"clamp must be a positive number, not {self.clamp}.")
        if self.milestones and self.decay != "milestones":
            raise ValueError(f"milestones go with decay='milestones', not {self.decay!r}.")
        if not 0 <= self.warmup < self.epochs:
            raise ValueError(
                f"warmup must be from 0 to below the {self.epochs} epochs, not {self.warmup}."
            )
        if self.optimiser == "adamw" and self.momentum >= 1:
            raise ValueError(f"momentum must be below 1 for adamw, not {self.momentum}.")

    def lr_at(self, epoch: int) -> float:
        """The learning rate of an epoch; epochs, and so milestones, count from 0."""
        if epoch < self.warmup:
            return self.lr * (epoch + 1) / (self.warmup + 1)
        if self.decay == "cosine":
            done, epochs = epoch - self.warmup, self.epochs - self.warmup
            share = (1 + math.cos(math.pi * done / epochs)) / 2
            end = min(self.lr_end, self.lr)
            return end + (self.lr - end) * share
        return self.lr * self.factor ** sum(epoch >= milestone for milestone in self.milestones)

    def scaled(self, share: float) -> "Schedule":
        """Shorten the schedule to ``share`` of its epochs, at least one."""
        epochs = max(1, round(self.epochs * share))
        # Never 0: the first epoch has the full rate, however few epochs there are.
        milestones = tuple(max(1, round(m * epochs / self.epochs)) for m in self.milestones)
        warmup = min(round(self.warmup * epochs / self.epochs), epochs - 1)
        return dataclasses.replace(self, epochs=epochs, milestones=milestones, warmup=warmup)


@dataclass(frozen=True)
class Schedules:
    """The schedules of a method; the default is the paper's for CIFAR-100.

    Example:
        >>> from densekd import Schedule, Schedules
        >>> Schedules(Schedule(epochs=100), Schedule(epochs=50)).scaled(0.1).increment.epochs
        5
    """

    base: Schedule = Schedule(70, 0.1)  # of the base task
    increment: Schedule = Schedule(40, 0.01)  # of each later task
    # Of the phases that some methods add: balanced fine-tuning or a bias stage after a later task,
    # self-distillation after the base task.
    finish: Schedule | None = None

    def scaled(self, share: float) -> "Schedules":
        """Shorten all schedules to ``share`` of their epochs, but a finish to at least 1/4."""
        finish = None if self.finish is None else self.finish.scaled(max(share, _SHORTEST_FINISH))
        return Schedules(self.base.scaled(share), self.increment.scaled(share), finish)


def same_for_all(schedule: Schedule, finish: Schedule | None = None) -> Schedules:
    """Train the base task and all later tasks by one schedule."""
    return Schedules(schedule, schedule, finish)


# A schedule whose rate is multiplied by ``factor`` at each of the ``milestones``.
stepped = functools.partial(Schedule, decay="milestones")
# Our own, since nobody published settings for digits. There are few digits, so batches are small,
# which gives enough steps.
DIGITS_SCHEDULE = Schedule(20, 0.1, batch_size=32)
