"""The search for hyper-parameters: which settings are tried, and with which values."""

import difflib
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from densekd.json_checks import is_real

SearchKind = Literal["grid", "random", "optuna"]

_KEYS = ("kind", "parameters", "trials", "seed", "tasks", "prune_after")
# Sections whose numbers are tuned to make a method work, rather than studied.
_TUNED = ("method.", "training.", "augment.")


@dataclass(frozen=True)
class Parameter:
    """The values to try for a setting: the list ``values``, or a range if that is empty.

    A range whose ends are whole numbers has whole numbers; it includes both ends. With ``log``,
    numbers are drawn evenly on a logarithmic scale.
    """

    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False

    @property
    def whole(self) -> bool:
        """Whether it is a range of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def at(self, share: float) -> Any:
        """The value at ``share``, from 0 to below 1, of the list or range."""
        if self.values:
            return self.values[int(share * len(self.values))]
        low, high = self.low, self.high + (1 if self.whole else 0)
        if self.log:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        # Six digits are enough, and easy to read and type.
        return min(max(int(value) if self.whole else float(f"{value:.6g}"), self.low), self.high)


@dataclass(frozen=True)
class Search:
    """Which hyper-parameters are tried. The best by validation images is picked."""

    kind: SearchKind
    parameters: Mapping[str, Parameter]  # by dotted key
    trials: int = 0  # for each point of the experiment's grid; kind grid tries all values instead
    seed: int = 0
    tasks: int | None = None  # how many first tasks trials learn; the pick then learns all
    prune_after: int = 5  # Optuna prunes trials once this many have ended

    @property
    def count(self) -> int:
        """The number of trials that `listed` lists."""
        if self.kind == "grid":
            return math.prod(len(parameter.values) for parameter in self.parameters.values())
        return self.trials if self.kind == "random" else 1

    def listed(self) -> list[dict[str, Any]]:
        """The values of each trial; for Optuna, which chooses them later, one empty entry."""
        if self.kind == "grid":
            lists = [parameter.values for parameter in self.parameters.values()]
            points = itertools.product(*lists)
            return [dict(zip(self.parameters, point, strict=True)) for point in points]
        if self.kind == "random":
            return [self._drawn(number) for number in range(self.trials)]
        return [{}]

    def _drawn(self, number: int) -> dict[str, Any]:
        """Draw a random trial by seed, number and key: more trials don't change earlier ones."""
        from densekd.seeds import Seeds  # imports torch, which reading a file must not wait for

        places = {key: Seeds(self.seed).at(number, key) for key in self.parameters}
        # A stream's seed is a 63-bit hash, so its share of 2**63 is uniform already.
        shares = {key: place.number("search") / 2**63 for key, place in places.items()}
        return {key: parameter.at(shares[key]) for key, parameter in self.parameters.items()}


def read_search(tree: Mapping[str, Any]) -> Search:
    """Read the section ``[search]`` of an experiment file.

    Raises:
        ValueError: one sentence that names the key and its valid values.
    """
    check_names("a key of search", tree, _KEYS)
    kind: Any = tree.get("kind")
    if kind not in get_args(SearchKind):
        raise ValueError(f"search.kind must be grid, random or optuna, not {kind!r}.")
    found = tree.get("parameters")
    if not isinstance(found, Mapping) or not found:
        raise ValueError("search.parameters has no key; give the settings to try, by dotted key.")
    parameters = {key: _parameter(key, value) for key, value in _flat(found).items()}
    ranges = [key for key, parameter in parameters.items() if not parameter.values]
    if kind == "grid" and ranges:
        raise ValueError(f"search.parameters.{ranges[0]} is a range; a grid needs values.")
    if kind == "grid" and "trials" in tree:
        raise ValueError("search.trials has no meaning for a grid, which tries all; leave it out.")
    whole = {"seed": 0, "trials": 1, "tasks": 1, "prune_after": 1}
    numbers = {key: _whole(key, tree[key], least) for key, least in whole.items() if key in tree}
    if kind != "grid" and "trials" not in numbers:
        raise ValueError(f"search.trials is missing; say how many trials {kind} has.")
    return Search(kind, parameters, **numbers)


def hyper_parameters(grid: Mapping[str, Collection[Any]]) -> list[str]:
    """The axes of a grid that look tuned: those of `_TUNED` with several numbers."""
    return [
        key
        for key, values in grid.items()
        if key.startswith(_TUNED) and sum(map(is_real, values)) > 1
    ]


def check_names(what: str, names: Collection[str], known: Collection[str]) -> None:
    """Raise ValueError for the first name that isn't known, saying that it is not ``what``."""
    for name in names:
        if name not in known:
            raise ValueError(f"{name} is not {what}; {proposal(name, known)}")


def proposal(name: str, known: Collection[str]) -> str:
    """End a sentence about a wrong name: propose the nearest known name, or list all."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known) or 'none'}."


def distinct(values: Sequence[Any]) -> tuple[Any, ...]:
    """Drop repetitions, keeping the order. The values may be unhashable, such as lists."""
    return tuple(value for i, value in enumerate(values) if value not in values[:i])


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Parameters by dotted key; a table with values, low or high is one parameter."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        section = isinstance(value, Mapping) and value.keys().isdisjoint(("values", "low", "high"))
        found |= _flat(value, f"{prefix}{key}.") if section else {f"{prefix}{key}": value}
    return found


def _parameter(key: str, given: Any) -> Parameter:
    name = f"search.parameters.{key}"
    given = {"values": given} if isinstance(given, list) else given
    if not isinstance(given, Mapping):
        raise ValueError(f"{name} must be a list or {{low, high}}, not {given!r}.")
    check_names(f"a key of {name}", given, ("values", "low", "high", "log"))
    if "values" in given:
        values = given["values"]
        if len(given) > 1 or not isinstance(values, list) or not values:
            raise ValueError(f"{name} must have values, a list, or low and high, not {given!r}.")
        return Parameter(distinct(values))
    low, high, log = given.get("low"), given.get("high"), given.get("log", False)
    if low is None or high is None or not (is_real(low) and is_real(high) and low < high):
        raise ValueError(f"{name} must have low and high, two numbers, the first being less.")
    if not isinstance(log, bool) or (log and low <= 0):
        raise ValueError(f"{name}: log is true or false, and true only for a low above 0.")
    return Parameter(low=low, high=high, log=log)


def _whole(key: str, value: Any, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"search.{key} must be a whole number of at least {least}, not {value!r}.")
    return value
