"""The settings of a branch: a run that goes on from a step of another run, its parent."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from densekd.config.defaults import default_settings
from densekd.config.digests import result_settings
from densekd.config.own_parts import own_references
from densekd.config.schema import Config, as_toml, as_tree, resolve
from densekd.config.settings_tree import (
    INERT_KEYS,
    digest,
    flat,
    given,
    merge,
    merge_sections,
    nested,
    plain,
    read_toml,
)
from densekd.files import DamagedFile, expand_home
from densekd.methods.registry import baseline_of, split_name
from densekd.parts import OwnPartError

# The learned steps depend on these settings, so a branch must not change them.
_FIXED = ("seed", "network", "data", "scenario")


def read_config(folder: Path) -> Config:
    """Read the settings of the run in a folder."""
    file = folder / "config.toml"
    if not file.is_file():
        raise ValueError(f"{folder} is not the folder of a run; `densekd run` makes such folders.")
    tree = read_toml(file, sealed=True)
    # `resolve` would read the start's parent, again and again if that is this folder.
    if given(tree, "start") is not None and given(tree, "start", "settings") is None:
        raise DamagedFile(f"{file} is damaged: its start isn't what was saved.")
    return resolve(tree)


def complete_branch(tree: Mapping[str, Any], *, trust_code: bool = False) -> Mapping[str, Any]:
    """Complete the settings of a branch with those of its parent.

    ``start`` is ``RUN@STEP``, or a table with ``run`` and ``after``. Settings that the parent had
    by default get the defaults of the branch's method. A tree without a start, or with a complete
    one, is returned unchanged.

    Raises:
        ValueError: there is no such run, the tree changes a setting that must stay the same, or the
            parent used code files that the tree doesn't name, without ``trust_code``.
    """
    start = given(tree, "start")
    start = _parse(start) if isinstance(start, str) else start
    if given(start, "settings") is not None or not isinstance(given(start, "run"), str | Path):
        return tree
    folder = expand_home(start["run"])
    try:
        parent = read_config(folder)
    except ValueError as error:
        raise ValueError(
            f"Can't go on from {folder}: {error} A run that went on from it before it was deleted "
            "is resumed by --config and the config.toml in its own folder."
        ) from None
    identity = {"run": str(folder), "settings": digest(result_settings(parent))}
    changes = merge_sections(tree, {"start": {**start, **identity}})
    complete = merge(_inherited(parent, changes), changes)
    if isinstance(share := complete.get("epochs"), float):
        complete["epochs"] = f"{share!r}x"  # with the x, it isn't read as a number of epochs
    branch = resolve(complete)
    _check_fixed(parent, branch)
    if not trust_code:
        _check_code(branch, tree)
    return {**complete, "epochs": branch.epochs}


def _parse(text: str) -> dict[str, Any]:
    run, _, step = text.rpartition("@")
    if not run or not step.isdecimal():
        raise ValueError(
            f"start is written RUN@STEP, such as runs/digits-rdkd-0123456789ab@3, where step 1 is "
            f"the base task, not {text!r}."
        )
    return {"run": run, "after": int(step)}


def _inherited(parent: Config, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The parent's settings, without its method's defaults, its start and its loggers."""
    tree = tomllib.loads(as_toml(parent))
    fixed = {name: tree[name] for name in _FIXED}
    defaults = flat(plain(default_settings(tree)))
    chosen = {k: x for k, x in flat(tree).items() if k not in defaults or x != defaults[k]}
    tree = nested(chosen) | fixed
    for own in ("start", "loggers"):  # a branch has its own
        tree.pop(own, None)
    name = str(given(changes, "method", "name") or parent.method.name)
    baseline = baseline_of(name)
    kept = ["name", "options", *([] if baseline is None else [baseline.key])]
    if split_name(name)[0] == split_name(parent.method.name)[0]:
        kept.append("params")
    tree["method"] = {key: value for key, value in tree["method"].items() if key in kept}
    if baseline is not None:
        tree.get("training", {}).pop("preset", None)  # baselines refuse a preset
    return tree


def _check_code(branch: Config, tree: Mapping[str, Any]) -> None:
    """Refuse code that only the parent's settings name: its folder may come from a stranger."""
    for key, name in own_references(branch).items():
        named = given(tree, *key.split(".")[: 1 if key.startswith("metrics.") else None])
        names = named if isinstance(named, list | tuple) else split_name(str(named))
        if name not in names and not name.startswith("python:"):
            raise OwnPartError(
                f"{key} of the parent is {name}, code which runs only if you agree: give it again, "
                "or add --trust-code, in Python trust_code=True."
            )


def _check_fixed(parent: Config, branch: Config) -> None:
    before, after = flat(as_tree(parent)), flat(as_tree(branch))
    free = (*INERT_KEYS, "scenario.first")  # the number of tasks to learn may differ
    for key, value in before.items():
        if key.partition(".")[0] in _FIXED and key not in free and after[key] != value:
            raise ValueError(
                f"{key} is {value} in the steps learned so far, so it can't become {after[key]}; "
                "leave it out, or begin a run of its own."
            )
