"""Check what JSON from a file looks like before anything relies on it.

A check is a function that says whether a value is as expected. A file that someone else wrote can
have values of any type, nested to any depth, and numbers too large for a float.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

JsonCheck = Callable[[Any], bool]

_LARGEST = sys.float_info.max
_DEEPEST = 12  # levels of nested settings


def is_text(value: Any) -> bool:
    """Whether it is a string."""
    return isinstance(value, str)


def is_count(value: Any) -> bool:
    """Whether it is a whole number from 0 to 2^63 - 1."""
    return type(value) is int and 0 <= value < 2**63


def is_real(value: Any) -> bool:
    """Whether it is a number that a float can hold, neither NaN nor infinite."""
    return type(value) in (int, float) and abs(value) <= _LARGEST


def is_measure(value: Any) -> bool:
    """Whether it is a number, or None, which stands for NaN in JSON."""
    return value is None or is_real(value)


def is_tree(value: Any, levels: int = _DEEPEST) -> bool:
    """Whether it is a table of settings: texts, numbers, lists and tables of such values."""
    return isinstance(value, dict) and all(_is_setting(each, levels - 1) for each in value.values())


def _is_setting(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        return levels > 0 and is_tree(value, levels)
    if isinstance(value, list):
        return levels > 0 and all(_is_setting(each, levels - 1) for each in value)
    return isinstance(value, str | bool) or is_measure(value)


def optional(check: JsonCheck) -> JsonCheck:
    """A check that also takes None."""
    return lambda value: value is None or check(value)


def list_of(check: JsonCheck, least: int = 0) -> JsonCheck:
    """A list of at least ``least`` items that all pass a check."""
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(check, value))


def table_of(check: JsonCheck) -> JsonCheck:
    """A table with any names, whose values all pass a check."""
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def record(
    needed: Mapping[str, JsonCheck], more: Mapping[str, JsonCheck] | None = None
) -> JsonCheck:
    """A table that has all the ``needed`` entries; those in ``more`` may be missing.

    Entries of other names may be anything.
    """
    return lambda value: isinstance(value, dict) and wrong_entry(value, needed, more) is None


def wrong_entry(
    value: Mapping[str, Any],
    needed: Mapping[str, JsonCheck],
    more: Mapping[str, JsonCheck] | None = None,
) -> str | None:
    """The name of the first entry of a `record` that is missing or fails its check, if any."""
    for name, check in needed.items():
        if name not in value or not check(value[name]):
            return name
    wrong = (n for n, check in (more or {}).items() if n in value and not check(value[n]))
    return next(wrong, None)
