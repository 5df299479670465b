"""The default settings of a configuration, taken from `densekd.methods.defaults`."""

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

from densekd.config.settings_tree import given
from densekd.methods.defaults import (
    Preset,
    data_kind,
    default_augment,
    default_lambda,
    method_defaults,
)
from densekd.methods.method import DataKind
from densekd.methods.registry import baseline_of
from densekd.methods.schedule import ADAMW_LR


def kind_of(tree: Mapping[str, Any]) -> DataKind:
    """The kind of data that a tree asks for; the tree need not be valid."""
    size = given(tree, "data", "image_size")
    return data_kind(source_of(tree), size if isinstance(size, int) else None)


def source_of(tree: Mapping[str, Any]) -> str:
    """The source of data that a tree asks for; the tree need not be valid."""
    return str(given(tree, "data", "source") or "digits")


def default_settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults for the data, method and preset of a tree, which need not be valid."""
    kind, name = kind_of(tree), str(given(tree, "method", "name"))
    preset = given(tree, "training", "preset")
    known = method_defaults(name, kind, preset if preset in get_args(Preset) else "paper")
    constant = given(tree, "method", "options", "lambda_exponent") == 0
    method = {"options": {"lambda_base": default_lambda(name, kind, constant=constant)}}
    baseline = baseline_of(name)
    if baseline is not None:
        method[baseline.key] = dataclasses.asdict(known.options)
    return {
        "network": known.network,
        "augment": {**default_augment(source_of(tree), kind), "brightness": known.brightness},
        "memory": {"selection": known.selection},
        "method": method,
        "training": fit_schedules(dataclasses.asdict(known.schedules), tree),
    }


def fit_schedules(training: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Adapt default schedules, by name, to the decay and the optimiser that the tree asks for.

    Only the decay ``milestones`` has milestones. AdamW has its own rate, since SGD's is far too
    high for it.
    """
    fitted = dict(training)
    for name, schedule in training.items():
        asked = given(tree, "training", name)
        if schedule and given(asked, "decay") not in (None, "milestones"):
            fitted[name] = {**fitted[name], "milestones": ()}
        if schedule and given(asked, "optimiser") == "adamw":
            fitted[name] = {**fitted[name], "lr": ADAMW_LR}
    return fitted
