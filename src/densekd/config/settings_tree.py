"""Settings as nested mappings: read from TOML, merged, overridden, written, hashed."""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from densekd.files import read_sealed_text

_DEEPEST = 8  # most parts of a dotted key
_MOST_LEVELS = 12  # of nested sections and lists in a file
_MOST_BYTES = 16 << 20  # of a settings file
# The file in a run folder with the checksums of the files that its settings name.
CODE_FILE = "code.json"
# Settings that can't change a result, by dotted key.
INERT_KEYS = ("data.dir", "engine.workers", "keep_steps", "loggers", "start.run")
# Settings that exclude each other, by section.
_EITHER = {"memory": ("per_class", "total"), "scenario": ("steps", "increment", "tasks")}


def read_toml(path: Path, *, sealed: bool = False) -> dict[str, Any]:
    """The settings in a TOML file, as `resolve` takes them; raises ValueError if it can't be read.

    ``sealed`` says that `densekd.files.write_sealed_text` wrote the file, with a checksum.
    """
    return parse_toml(path, read_text(path, sealed=sealed))


def parse_toml(path: Path, text: str) -> dict[str, Any]:
    """The settings in the text of a TOML file; raises ValueError if it isn't TOML."""
    try:
        tree = tomllib.loads(text)
        if not _is_shallow(tree, _MOST_LEVELS):
            raise RecursionError
    except ValueError as error:  # not TOML, or a number of thousands of digits
        raise ValueError(f"{path} is not TOML: {error}.") from error
    except RecursionError:
        raise ValueError(f"{path} is no file of settings: it is nested too deep.") from None
    return tree


def _is_shallow(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels >= 0 and all(_is_shallow(each, levels - 1) for each in inner)


def read_text(path: Path, *, sealed: bool = False) -> str:
    """The text of a settings file, which may be a pipe; raises ValueError if it can't be read."""
    try:
        if sealed:
            return read_sealed_text(path, _MOST_BYTES)
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"{path} has more than the {_MOST_BYTES:,} bytes that are read.")
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError:
        raise ValueError(f"There is no configuration file {path}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} can't be read as a text file ({error}).") from error


def override(tree: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Replace settings by assignments such as ``scenario.steps=5``.

    A value is read as TOML, or else as text; ``none`` unsets a setting.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        path = [part.strip() for part in key.split(".")]
        if not equals or not all(path) or len(path) > _DEEPEST:
            raise ValueError(
                "A setting is written KEY=VALUE, such as scenario.steps=5, "
                f"not {assignment[:80]!r}."
            )
        values.pop(".".join(path), None)  # the last one wins
        values[".".join(path)] = _value(text.strip())
    return merge(tree, with_epochs_as_text(nested(values)))


def merge(*trees: Mapping[str, Any]) -> dict[str, Any]:
    """Merge trees; later ones override earlier ones.

    Some settings exclude each other, such as ``memory.per_class`` and ``memory.total``. A tree that
    gives one of them unsets the others in the trees before it.
    """
    merged: dict[str, Any] = {}
    for tree in trees:
        for section, names in _EITHER.items():
            if any(given(tree, section, name) is not None for name in names):
                unset = {name: None for name in names if name not in tree[section]}
                tree = merge_sections(tree, {section: unset})
        merged = merge_sections(merged, tree)
    return merged


def excluded_by(key: str) -> list[str]:
    """The settings that a setting excludes, all by dotted key."""
    section, _, name = key.rpartition(".")
    names = _EITHER.get(section, ())
    return [f"{section}.{other}" for other in names if name in names and other != name]


def with_epochs_as_text(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Turn a float ``epochs`` that the user gave outside of a file into text.

    `settle_spelling` then reads 2.0 as two epochs, even if the file has all schedules; 1x stays a
    share.
    """
    epochs = tree.get("epochs")
    return {**tree, "epochs": repr(epochs)} if isinstance(epochs, float) else tree


def settle_spelling(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Bring settings that may be written in several ways to one form.

    They are ``epochs = "30%"`` or ``1.0``, ``precision = 32``, and ``data.even``, the earlier name
    of ``data.oversample_rare``.
    """
    epochs = tree.get("epochs")
    number = isinstance(epochs, float) and 1 <= epochs < float("inf") and not is_complete(tree)
    if isinstance(epochs, str) or number:
        tree = {**tree, "epochs": _epochs(str(epochs))}
    precision = given(tree, "engine", "precision")
    if type(precision) is int:
        tree = merge_sections(tree, {"engine": {"precision": str(precision)}})
    if given(tree, "data", "even") is not None:
        data = {key: value for key, value in tree["data"].items() if key != "even"}
        tree = {**tree, "data": {"oversample_rare": tree["data"]["even"], **data}}
    return tree


def _epochs(text: str) -> int | float:
    """Parse a number of epochs to an int, or a share of all epochs to a float.

    Numbers of at least 1, such as 1 or 1.0, are epochs. Smaller ones, 30% and 0.3x are shares.
    """
    number = text.strip()
    try:
        if number.endswith("%"):
            return float(number[:-1]) / 100
        if number.endswith("x"):
            return float(number[:-1])
        value = float(number)
    except ValueError:
        raise ValueError(
            f"epochs must be a number such as 10, or a share such as 0.3 or 30%, not {text!r}."
        ) from None
    if value > 1 and not value.is_integer():
        raise ValueError(
            f"epochs must be a whole number from 1 on, not {text}; as a share of all epochs, write "
            f"{text}x."
        )
    return int(value) if value.is_integer() else value


def is_complete(tree: Mapping[str, Any]) -> bool:
    """Whether a tree has all schedules, as only the settings files in run folders do.

    In these, earlier versions wrote a share of 1 or more as a number, such as ``epochs = 1.0``.
    """
    both = (("base", "increment"), ("teacher", "student"))
    return any(
        all(given(tree, "training", part, "epochs") is not None for part in parts) for parts in both
    )


def digest(value: Any) -> str:
    """Hash a JSON value to twelve characters, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def merge_sections(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Override one tree by another, section by section."""
    merged = dict(below)
    for key, value in above.items():
        if isinstance(value, Mapping):
            under = merged.get(key)
            value = merge_sections(under if isinstance(under, Mapping) else {}, value)
        merged[key] = value
    return merged


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """List the values of nested sections by dotted key."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return found


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Make nested sections from values by dotted key; undoes `flat`.

    Raises ValueError if a value would be lost, because another key makes it a section.
    """
    tree: dict[str, Any] = {}
    for key, value in values.items():
        for name, other in values.items():
            if key.startswith(f"{name}.") and not isinstance(other, Mapping | NoneType):
                raise ValueError(f"{name} can't be {other!r} beside {key}; leave one of them out.")
        for part in reversed(key.split(".")):
            value = {part: value}
        tree = merge_sections(tree, value)
    return tree


def given(tree: Any, *path: str) -> Any:
    """The value at a path of keys; None if it is missing."""
    for part in path:
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def _value(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        parsed = tomllib.loads(f"value = {text}")
    except ValueError:  # not TOML, or a number of thousands of digits
        return text
    except RecursionError:
        raise ValueError(f"{text[:20]}... is nested too deep for a setting.") from None
    # TOML turns a date into an object, and several lines into several settings: keep both as text.
    plain = len(parsed) == 1 and isinstance(parsed["value"], str | int | float | list | dict)
    return parsed["value"] if plain else text


def as_text(value: object) -> str:
    """Return a path as text, for JSON; raise ValueError for anything else that JSON can't hold."""
    if isinstance(value, Path):
        return str(value)
    raise ValueError(f"{value} is not a value that a setting can have; write text in quotes.")


def plain(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree as JSON: paths become text, tuples lists."""
    copy: dict[str, Any] = json.loads(json.dumps(tree, default=as_text))
    return copy


def toml_lines(tree: Mapping[str, Any], *path: str, unset: bool = False) -> list[str]:
    """The TOML lines of the section ``path``; None is left out; with ``unset``, a comment."""
    lines = [
        f"{_toml_key(key)} = {_toml_value(value)}"
        for key, value in tree.items()
        if value is not None and not isinstance(value, Mapping)
    ]
    lines += [f"# {key} = none" for key, value in tree.items() if unset and value is None]
    for key, value in tree.items():
        if isinstance(value, Mapping):
            inner = toml_lines(value, *path, key, unset=unset)
            lines += ["", f"[{'.'.join(map(_toml_key, (*path, key)))}]", *inner]
    return lines


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml_value(name)


def _toml_value(value: Any) -> str:
    # JSON and TOML write values alike, except one character that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
