"""One sentence for a wrong setting: its name, its value, and what it may be."""

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from densekd.config.settings_tree import flat, given
from densekd.methods.registry import BASELINES, baseline_of

_LARGEST = 10**9  # the largest number of any setting but seeds
_LONGEST = 80  # characters of a value that a message quotes
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    NoneType: "none",
    tuple[int, ...]: "a list of whole numbers",
    tuple[tuple[str, ...], ...]: "a list of lists of names",
}


def error_sentence(error: ValidationError, tree: Mapping[str, Any], kind: type) -> str:
    """Say in one sentence why ``tree``, defaults included, isn't a valid ``kind``.

    Describes the first error, but prefers an unknown key, since other errors may follow from it.
    """
    errors = error.errors(include_url=False)
    unknown = [each for each in errors if each["type"] == "unexpected_keyword_argument"]
    first = (unknown or errors)[0]
    path = [str(part) for part in first["loc"]]
    settings = _settings(kind)
    if unknown:
        own = baseline_of(str(given(tree, "method", "name")))
        foreign = tuple(f"method.{spec.key}." for spec in BASELINES.values() if spec is not own)
        return _no_setting(path, {k: v for k, v in settings.items() if not k.startswith(foreign)})
    if first["type"] == "json_invalid":
        return "A setting contains bytes that are not text; rename what it names."
    while ".".join(path) not in settings:
        path.pop()  # the item of a list, or the member of a union
    key = ".".join(path)
    if first["type"] == "value_error":
        return f"{key}: {first['ctx']['error']}"
    *others, last = _choices(settings[key])
    expected = f"{', '.join(others)} or {last}" if others else last
    return f"{key} must be {expected}, not {shorten(given(tree, *path))}."


def check_sizes(tree: Mapping[str, Any]) -> None:
    """Refuse numbers too large for any setting, before anything allocates or computes with them."""
    for key, value in flat(tree).items():
        number = type(value) in (int, float) and key.rpartition(".")[2] not in ("seed", "order")
        if number and _LARGEST < abs(value) < math.inf:
            raise ValueError(f"{key} must be at most {_LARGEST:,}, not {shorten(value)}.")


def shorten(value: object) -> str:
    """The ``repr`` of a value, cut off if it is long."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _settings(section: type, prefix: str = "") -> dict[str, Any]:
    """The types of all settings and sections, by dotted key."""
    settings: dict[str, Any] = {}
    for name, kind in get_type_hints(section, include_extras=True).items():
        settings[prefix + name] = kind
        for member in get_args(kind) or (kind,):  # a section, or an optional one
            if isinstance(member, type) and dataclasses.is_dataclass(member):
                settings |= _settings(member, f"{prefix}{name}.")
    return settings


def _choices(kind: Any) -> list[str]:
    """The values that a setting of this type may have, in words."""
    origin = get_origin(kind)
    if origin is Annotated:
        return [str(get_args(kind)[1].description)]
    if origin is Literal:
        return [repr(choice) for choice in get_args(kind)]
    if origin in (Union, UnionType):
        return [choice for member in get_args(kind) for choice in _choices(member)]
    if dataclasses.is_dataclass(kind):
        return [f"a section with {', '.join(get_type_hints(kind))}"]
    return [_WORDS[kind]]


def _no_setting(path: Sequence[str], settings: Mapping[str, Any]) -> str:
    """Propose the most similar key, or list the keys of the section."""
    key = ".".join(path)
    if key in settings:  # a dotted key in a mapping, or a quoted one in TOML
        section, _, name = key.rpartition(".")
        return f"{key} is a setting in the section {section}; write it there, as {name}."

    def likeness(known: str) -> tuple[float, float]:
        leaf = difflib.SequenceMatcher(None, path[-1], known.rpartition(".")[2]).ratio()
        return leaf, difflib.SequenceMatcher(None, key, known).ratio()

    # Compare the last part first: the user may have put it into the wrong section.
    near = max(settings, key=likeness)
    if likeness(near)[0] >= 0.6:
        return f"{key} is not a setting; did you mean {near}?"
    section = ".".join([*path[:-1], ""])
    names = [k.removeprefix(section) for k in settings if k.startswith(section)]
    return f"{key} is not a setting; there are {', '.join(n for n in names if '.' not in n)}."
