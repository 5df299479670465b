"""Statistics of a few runs: groups, means, spreads, and paired differences between methods."""

import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

_LEVEL = 0.95
_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True)
class Summary:
    """The mean and the sample variance (over n - 1) of values; one value has no variance."""

    mean: float
    variance: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Summary | None":
        """Summarise the values that aren't None; None if there are none or they are too large."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        try:
            variance = statistics.variance(known) if len(known) > 1 else None
            return cls(statistics.fmean(known), variance, len(known))
        except OverflowError:  # a forged file can have any number
            return None

    @property
    def std(self) -> float | None:
        """The sample standard deviation."""
        return None if self.variance is None else self.variance**0.5


@dataclass(frozen=True)
class Difference:
    """The mean difference between two methods over pairs of runs.

    The interval is Student's t. It holds the true mean difference in 95 % of cases if differences
    are roughly normal. A single pair has no interval.
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


def group_by(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """The items by their key, in order; unlike for `itertools.groupby` they need not be sorted."""
    found: dict[_Key, list[_Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def gaps(ours: Sequence[Summary | None], paper: Sequence[float | None]) -> list[float | None]:
    """Our means minus the paper's numbers; None where either is unknown."""
    pairs = zip(ours, paper, strict=True)
    return [o.mean - p if o is not None and p is not None else None for o, p in pairs]


def paired_difference(
    first: Mapping[_Key, float], second: Mapping[_Key, float]
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
