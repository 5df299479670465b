"""The custom parts that settings name: references to code, or to Python values."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from densekd.config.settings_tree import digest, given, merge_sections, nested, plain
from densekd.data.convert import ConvertOptions, as_dataset
from densekd.data.dataset import fingerprint
from densekd.methods.registry import split_name
from densekd.parts import is_reference, refer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Error messages put the description after "must be".
_OWN = r"^(.+\.py|python):.+$"
OwnSelection = Annotated[str, Field(pattern=_OWN, description="a function such as mine.py:policy")]
_OwnPart = Annotated[str, Field(pattern=_OWN)]
OwnMetrics = Annotated[
    tuple[_OwnPart, ...], Field(description='a list of functions such as ["mine.py:ece"]')
]
Loggers = Annotated[
    tuple[Literal["tensorboard", "wandb", "mlflow"] | _OwnPart, ...],
    Field(description='a list of "tensorboard", "wandb", "mlflow", or classes such as "mine.py:X"'),
]

# The settings that may name a custom part, besides ``metrics`` and the method.
_SETTINGS = ("network", "data.source", "scenario.order", "memory.selection", "teacher", "student")
# The settings that are lists of custom parts.
LISTED = ("metrics", "loggers")


def with_references(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace Python values among settings, such as a network or a function, by references."""
    data = given(tree, "data", "source")
    if isinstance(data, Path):
        tree = merge_sections(tree, {"data": {"source": f"folder:{data}"}})
    elif not is_plain(data):
        tree = merge_sections(tree, {"data": {"source": _refer_data(data, tree)}})
    for key in ("network", "scenario.order", "memory.selection", "method.name"):
        value = given(tree, *key.split("."))
        if not (is_plain(value) or isinstance(value, Path)):
            tree = merge_sections(tree, nested({key: refer(value)}))
    for key in LISTED:
        if isinstance(tree.get(key), list | tuple):
            tree = {**tree, key: refer_each(key, tree[key])}
    return tree


def refer_each(key: str, values: Sequence[Any]) -> list[Any]:
    """Replace the Python values in one of the ``LISTED`` settings by references."""
    # A logger doesn't influence a result, so its reference needs no digest of its content.
    return [
        each
        if is_plain(each)
        else refer(each, digest=f"{id(each):012x}"[-12:] if key == "loggers" else "")
        for each in values
    ]


def is_plain(value: object) -> bool:
    """Whether a value could be in a TOML file, and so isn't a custom part."""
    if isinstance(value, Mapping):
        return all(map(is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, str | int | float)


def _refer_data(data: Any, tree: Mapping[str, Any]) -> str:
    """Convert custom data now, so that its reference has a digest of the images."""
    keys = ("image_size", "image_column", "label_column")
    options = {key: given(tree, "data", key) for key in keys}
    name = getattr(data, "name", "") or getattr(data, "__name__", "") or type(data).__name__
    made = as_dataset(data, str(name), ConvertOptions(**options))
    facts = [made.classes, made.mean, made.std, fingerprint(made.train), fingerprint(made.test)]
    word = "data" if isinstance(data, tuple | list) else str(name)
    return refer(made, word, digest(facts))


def own_references(config: "DataclassInstance") -> dict[str, str]:
    """The references among the settings, by dotted key; metrics are numbered, as ``metrics.0``."""
    tree = plain(dataclasses.asdict(config))
    found: dict[str, Any] = {key: given(tree, *key.split(".")) for key in _SETTINGS}
    found["method.name"] = split_name(str(given(tree, "method", "name") or ""))[0]
    found |= {f"metrics.{i}": each for i, each in enumerate(tree.get("metrics") or ())}
    return {key: str(value) for key, value in found.items() if is_reference(value)}


def logger_references(config: "DataclassInstance") -> list[str]:
    """The references among the loggers."""
    return [name for name in getattr(config, "loggers", None) or () if is_reference(name)]
