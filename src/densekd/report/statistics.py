"""Statistics of a few runs: means, spreads, and paired differences between methods."""

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

_LEVEL = 0.95
_Pair = TypeVar("_Pair", bound=Hashable)


@dataclass(frozen=True)
class Summary:
    """The mean and the sample variance (over n - 1) of values; None for a single value."""

    mean: float
    variance: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Summary | None":
        """The summary of the values that aren't None; None if there are none."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        variance = statistics.variance(known) if len(known) > 1 else None
        return cls(statistics.fmean(known), variance, len(known))

    @property
    def std(self) -> float | None:
        """The sample standard deviation."""
        return None if self.variance is None else self.variance**0.5


@dataclass(frozen=True)
class Difference:
    """The mean difference between two methods over pairs of runs.

    The interval is Student's t. It holds the true mean difference in 95 % of cases if differences
    are roughly normal. A single pair has none.
    """

    mean: float
    interval: tuple[float, float] | None
    count: int

    @property
    def verdict(self) -> str:
        """What the interval says, in words."""
        if self.interval is None:
            return "one pair: nothing can be said"
        low, high = self.interval
        if low > 0:
            return "higher"
        return "lower" if high < 0 else "not told apart"


def paired_difference(
    first: Mapping[_Pair, float], second: Mapping[_Pair, float]
) -> Difference | None:
    """The differences ``first - second`` between runs of two methods with the same key.

    ``mean(d) ± t_{n-1} · sd(d) / √n``. Keys are seed and class order: such pairs share their base,
    batches and augmentation, so whatever these contribute cancels out. None if there is no pair.
    """
    differences = [value - second[key] for key, value in first.items() if key in second]
    summary = Summary.of(differences)
    if summary is None:
        return None
    if summary.std is None:
        return Difference(summary.mean, None, 1)
    # Imported here because it is slow, and most of the package doesn't need it.
    from scipy.special import stdtrit

    t = float(stdtrit(summary.count - 1, (1 + _LEVEL) / 2))
    half = t * summary.std / summary.count**0.5
    return Difference(summary.mean, (summary.mean - half, summary.mean + half), summary.count)
