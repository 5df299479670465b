"""What is usual for some data: networks, schedules and weights that a user may leave out."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from densekd.config.settings_tree import given, over
from densekd.methods.registry import HOSTS
from densekd.methods.released import released
from densekd.methods.schedule import Schedule, Schedules


def _stepped(
    epochs: int, lr: float, milestones: tuple[int, int], weight_decay: float = 1e-4
) -> Schedule:
    return Schedule(epochs, lr, "milestones", milestones=milestones, weight_decay=weight_decay)


_NETWORKS = {
    "digits": "resnet8",
    "folder": "resnet18",
    "imagenet": "resnet18",
    "imagenet100": "resnet18",
}
# CCIL's 5 goes with its own rule for lambda; the paper's 20 with the adaptive weight, or with none.
# Digits have a tenth of CIFAR's classes, and longer features.
_LAMBDA_BASE = {
    "digits": (0.5, 0.2),
    "small": (5.0, 20.0),
    "imagenet": (600.0, 600.0),
    "imagenet100": (100.0, 100.0),
}
_PAPER_IMAGENET = Schedules(_stepped(70, 0.1, (30, 60)), _stepped(40, 0.01, (25, 35)))
_COURSES: dict[str, dict[str, Schedules]] = {
    "paper": {
        # Few images: small batches, so that there are enough steps.
        "digits": Schedules(Schedule(20, 0.1, batch_size=32), Schedule(20, 0.1, batch_size=32)),
        "small": Schedules(Schedule(70, 0.1), Schedule(40, 0.01)),
        "imagenet": _PAPER_IMAGENET,
        "imagenet100": _PAPER_IMAGENET,
    },
    "ccil": {
        "small": Schedules(
            Schedule(120, 0.1, batch_size=100, weight_decay=5e-4),
            Schedule(120, 0.01, batch_size=100, weight_decay=5e-4),
        ),
        "imagenet": Schedules(_stepped(70, 0.1, (30, 60)), _stepped(70, 0.01, (20, 35))),
        "imagenet100": Schedules(
            _stepped(70, 0.1, (30, 60), 5e-4), _stepped(70, 0.01, (20, 35), 5e-4)
        ),
    },
}


def usual(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What is usual for the data, method and preset of a tree, which may be wrong as yet."""
    source = given(tree, "data", "source") or "digits"
    kind = str(source).partition(":")[0]
    digits = kind == "digits"
    defaults: dict[str, Any] = {
        "network": _NETWORKS.get(kind, "resnet32"),
        # A mirrored digit is no digit.
        "augment": {"padding": 1 if digits else 4, "flip": not digits},
        "method": {"options": {"lambda_base": _lambda_base(kind, tree)}},
        "training": _usual_training(kind, tree),
    }
    host = str(given(tree, "method", "name")).partition("+")[0]
    defaults = over(defaults, _usual_for(host, kind))
    return {**defaults, "training": fit_milestones(defaults["training"], tree)}


def fit_milestones(training: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Usual schedules by name, without milestones where the tree asks for another decay."""
    other = {
        name: {**schedule, "milestones": ()}
        for name, schedule in training.items()
        if schedule and given(tree, "training", name, "decay") not in (None, "milestones")
    }
    return {**training, **other}


def _usual_for(host: str, kind: str) -> dict[str, Any]:
    """What a baseline was released with."""
    if host not in HOSTS:
        return {}
    known = released(host, kind)
    network = {} if known.network is None else {"network": known.network}
    return {
        **network,
        "augment": {"brightness": known.brightness},
        "memory": {"selection": known.selection},
        "method": {host.replace("-", "_"): dataclasses.asdict(known.options)},
        "training": dataclasses.asdict(known.schedules),
    }


def _lambda_base(kind: str, tree: Mapping[str, Any]) -> float:
    adaptive = str(given(tree, "method", "name")).endswith("-adaptive")
    constant = given(tree, "method", "options", "lambda_exponent") == 0
    by_rule, by_itself = _LAMBDA_BASE.get(kind, _LAMBDA_BASE["small"])
    value = by_itself if adaptive or constant else by_rule
    if str(given(tree, "method", "name")).startswith("icarl+"):
        # Its own loss is a mean over all outputs, and its rate as much higher as that is smaller.
        value *= 0.1 / released("icarl", kind).schedules.increment.lr
    return value


def _usual_training(kind: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    courses = _COURSES.get(str(given(tree, "training", "preset")), _COURSES["paper"])
    return dataclasses.asdict(courses.get(kind, courses["small"]))
