"""The settings that a result depends on; their digests name run folders and trained bases."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densekd.config.file_checksums import base_code
from densekd.config.schema import Config, as_tree
from densekd.config.settings_tree import INERT_KEYS, given
from densekd.methods.defaults import default_crop
from densekd.methods.registry import baseline_of, is_own_method

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# The baselines whose sections stay in the digest, as None, when another method runs: those that
# existed when such sections were first dropped. Adding one would rename existing run folders.
_DIGESTED_SECTIONS = ("afc", "bic", "ccil", "icarl", "icarl_softmax", "podnet", "ucir")

# Settings that were added later, by section; unset ones must not rename existing run folders.
_ADDED_LATER: dict[str, dict[str, Any]] = {
    "data": {"validation": 0.0, "test_per_class": None},
    "scenario": {"first": None, "tasks": None},
    "engine": {"nodes": 1, "compile": "auto"},
}


def result_settings(config: "DataclassInstance") -> dict[str, Any]:
    """The settings that can change a result, for digests that name run folders.

    They keep the names and the shape of earlier versions, so that existing folders are found.
    """
    tree = as_tree(config)
    for key in INERT_KEYS:
        *sections, name = key.split(".")
        (given(tree, *sections) or {}).pop(name, None)
    if tree["data"].pop("oversample_rare"):
        tree["data"]["even"] = True
    _drop_added_later(tree)
    tree["training"] = {k: digested_schedule(part) for k, part in tree["training"].items()}
    if isinstance(tree["method"], dict):
        tree["method"] = {
            key: value
            for key, value in tree["method"].items()
            if value is not None or key in _DIGESTED_SECTIONS
        }
    return tree


def _drop_added_later(tree: dict[str, Any]) -> None:
    for section, unset in _ADDED_LATER.items():
        for name, value in unset.items():
            if tree.get(section, {}).get(name, ...) == value:
                del tree[section][name]
    for key in ("metrics", "start"):
        if not tree.get(key):
            tree.pop(key, None)
    if tree["augment"]["crop"] == default_crop(tree["data"]["source"]):
        del tree["augment"]["crop"]


def digested_schedule(part: Any) -> Any:
    """A schedule from `as_tree`, without settings that were added later and have their default."""
    unset = {"optimiser": "sgd", "warmup": 0}
    if not isinstance(part, Mapping):
        return part
    return {key: value for key, value in part.items() if value != unset.get(key, ...)}


def base_settings(config: Config, base_classes: int) -> dict[str, Any]:
    """What the base task's result depends on; runs with the same values share a trained base."""
    tree = result_settings(config)
    method = config.make_method()
    baseline = baseline_of(config.method.name)
    code = base_code(config, selection=method.held_out > 0)
    # Later phases of the base task, such as CCIL's generations, have their own schedules.
    further = {p.name: digested_schedule(as_tree(p.schedule)) for p in method.base[1:]}
    tree["data"].pop("test_per_class", None)
    tasks = config.scenario.tasks
    named = isinstance(tasks, Path) or bool(tasks and not isinstance(tasks[0], int))
    return {
        **{name: tree[name] for name in ("seed", "network", "data", "augment", "engine")},
        "order": tree["scenario"]["tasks" if named else "order"],
        "classes": base_classes,
        "head": method.head,
        # Split and merged batches are drawn from random streams of different names.
        "streams": method.streams,
        # The paper's methods all learn the base in the same way, each baseline in its own way. A
        # custom method might use any of its settings in the base task.
        "method": tree["method"]
        if is_own_method(config.method.name)
        else baseline and {baseline.name: tree["method"][baseline.key], **further},
        # The number of held-out images depends on the number of exemplars.
        **({"memory": tree["memory"]} if method.held_out else {}),
        "schedule": digested_schedule(as_tree(config.schedules().base)),
        **({"code": code} if code else {}),
    }
