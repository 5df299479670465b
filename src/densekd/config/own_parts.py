"""The parts of one's own that settings name, and the code behind them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densekd.config.schema import as_tree
from densekd.config.settings_tree import given
from densekd.files import write_json
from densekd.methods.registry import split_name
from densekd.parts import OwnPartError, is_reference, load_files, version

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# The settings that may name a part of one's own, besides ``metrics`` and the method.
_SETTINGS = ("network", "data.source", "scenario.order", "memory.selection")
# What the base task's result depends on; a method that holds images out adds the selection.
_OF_BASE = ("network", "data.source", "scenario.order", "method.name")
_FILE = "code.json"


def own_references(config: "DataclassInstance") -> dict[str, str]:
    """The references among the settings, by dotted key; metrics are numbered."""
    tree = as_tree(config)
    found: dict[str, Any] = {key: given(tree, *key.split(".")) for key in _SETTINGS}
    found["method.name"] = split_name(str(given(tree, "method", "name") or ""))[0]
    found |= {f"metrics.{i}": each for i, each in enumerate(tree.get("metrics") or ())}
    return {key: str(value) for key, value in found.items() if is_reference(value)}


def base_code(config: "DataclassInstance", *, selection: bool = False) -> dict[str, str]:
    """The versions of the code that a trained base depends on, by reference."""
    keys = (*_OF_BASE, *(["memory.selection"] if selection else []))
    return {name: version(name) for key, name in own_references(config).items() if key in keys}


def check_code(folder: Path, code: Mapping[str, str]) -> None:
    """Refuse to go on in a folder whose files of code, by name, have changed since it began."""
    before = _read(folder)
    for file, sha256 in code.items():
        if before.get(file, sha256) != sha256:
            raise OwnPartError(
                f"{file} has changed since this run began; restore it, delete {folder}, or choose "
                "another --out."
            )


def write_code(folder: Path, code: Mapping[str, str]) -> None:
    """Write the SHA-256 of each file of code to a run folder, if there are any."""
    if code and not (folder / _FILE).exists():
        write_json(folder / _FILE, dict(code))


def load_trusted(config: "DataclassInstance", folder: Path, trust_code: bool) -> None:
    """Load the files that the settings of a folder name, if the user agreed to run them.

    Raises:
        OwnPartError: there are some, and the user didn't agree; or one has changed.
    """
    references = own_references(config).values()
    if trust_code:
        check_code(folder, load_files(references))
        return
    files = [name for name in references if not name.startswith("python:")]
    if files:
        raise OwnPartError(
            f"{folder} was made with the code in {files[0]}, which runs only if you agree: add "
            "--trust-code, in Python trust_code=True."
        )


def _read(folder: Path) -> dict[str, str]:
    try:
        known: dict[str, str] = json.loads((folder / _FILE).read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder / _FILE} can't be read ({error}); delete {folder}.") from error
    return known
