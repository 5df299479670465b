"""What can be said from a few runs: means, spreads, and differences between methods in pairs."""

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True)
class Summary:
    """Some values in short.

    Args:
        mean: of all of them.
        variance: of the sample, with n - 1 below; None for a single value, which has none.
        count: how many there are.
    """

    mean: float
    variance: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary | None":
        """The summary of some values; None if there are none."""
        if not values:
            return None
        variance = statistics.variance(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), variance, len(values))

    @property
    def std(self) -> float | None:
        """The standard deviation of the sample."""
        return None if self.variance is None else self.variance**0.5


@dataclass(frozen=True)
class Difference:
    """How much more one method reached than another, over pairs of runs.

    Args:
        mean: of the differences.
        interval: of Student's t, which holds the true mean difference with ``LEVEL`` if
            differences are roughly normal; None for a single pair, which says nothing about it.
        count: how many pairs there are.
    """

    mean: float
    interval: tuple[float, float] | None
    count: int

    @property
    def verdict(self) -> str:
        """What it says, in words."""
        if self.interval is None:
            return "one pair: nothing can be said"
        low, high = self.interval
        if low > 0:
            return "higher"
        return "lower" if high < 0 else "not told apart"


LEVEL = 0.95
_Shared = TypeVar("_Shared", bound=Hashable)


def paired_difference(
    first: Mapping[_Shared, float], second: Mapping[_Shared, float]
) -> Difference | None:
    """The differences ``first - second`` between runs that share all but the method.

    ``mean(d) ± t_{n-1} · sd(d) / √n``. Pairs share their seed and class order, hence base,
    batches and augmentation, so what is common to both drops out.

    Args:
        first: the outcomes of a method, by what is shared, such as seed and order.
        second: those of the other method.

    Returns:
        None if no pair is shared.
    """
    differences = [value - second[key] for key, value in first.items() if key in second]
    summary = Summary.of(differences)
    if summary is None:
        return None
    if summary.std is None:
        return Difference(summary.mean, None, 1)
    # Imported here: it takes a while, and most of the package has no need of it.
    from scipy.special import stdtrit

    t = float(stdtrit(summary.count - 1, (1 + LEVEL) / 2))
    half = t * summary.std / summary.count**0.5
    return Difference(summary.mean, (summary.mean - half, summary.mean + half), summary.count)
