"""The parts of a learner, and how they are written to JSON and read again."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from densekd.data.augment import Augment
from densekd.data.memory import ExemplarMemory, Quota
from densekd.methods.defaults import default_lambda, method_defaults
from densekd.methods.method import DataKind, Method
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.nn.adapter import as_backbone
from densekd.nn.network import Backbone
from densekd.nn.registry import make_backbone
from densekd.seeds import Seeds
from densekd.training.settings import InferredAugment, Settings

# A learner doesn't know its data when it is made.
_KIND: DataKind = "small"


@dataclass(frozen=True)
class LearnerSpec:
    """The parts of a learner as the user gave them.

    Args:
        backbone: a module, or a name such as ``resnet32``.
        method: a method, or a name such as ``rdkd``, which gets its default settings.
        memory: an exemplar memory, or how many exemplars to keep per class.
        settings: what does not depend on the method.
        epochs: of the base task; later tasks are shortened in proportion. Only with a name.
    """

    backbone: Backbone | nn.Module | str
    method: Method | str
    memory: ExemplarMemory | int
    settings: Settings
    epochs: int | None = None

    def make_backbone(self) -> Backbone:
        """The backbone; a named one draws its weights from the seed."""
        if isinstance(self.backbone, str):
            return draw_backbone(self.backbone, self.settings.seed)
        return as_backbone(self.backbone)

    def make_method(self) -> Method:
        """The method; a named one has the defaults for small images."""
        if isinstance(self.method, Method):
            if self.epochs is not None:
                raise ValueError("epochs go with the name of a method; a Method has its own.")
            return self.method
        known = method_defaults(self.method, _KIND)
        schedules = known.schedules
        if self.epochs is not None:
            schedules = schedules.scaled(self.epochs / schedules.base.epochs)
        options = DenseOptions(lambda_base=default_lambda(self.method, _KIND))
        return make_method(self.method, options, schedules, known.options)

    def make_memory(self) -> ExemplarMemory:
        """The memory; a named baseline selects exemplars as it was published."""
        if isinstance(self.memory, ExemplarMemory):
            return self.memory
        name = self.method if isinstance(self.method, str) else ""
        return ExemplarMemory(Quota(self.memory), method_defaults(name, _KIND).selection)


def draw_backbone(network: str, seed: int) -> Backbone:
    """Make a network by name; weights that aren't pretrained are drawn from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Seeds(seed).number("init"))
        return make_backbone(network)


def describe_spec(spec: LearnerSpec) -> dict[str, Any]:
    """The spec as JSON; None for a part that JSON can't hold, such as a module."""
    memory = spec.make_memory()
    return {
        "backbone": spec.backbone if isinstance(spec.backbone, str) else None,
        "method": spec.method if isinstance(spec.method, str) else None,
        "memory": {
            "quota": [memory.quota.per_class, memory.quota.total],
            "selection": memory.selection,
        },
        "settings": _describe_settings(spec.settings),
        "epochs": spec.epochs,
    }


def restore_spec(description: Mapping[str, Any], given: Mapping[str, Any]) -> LearnerSpec:
    """The spec that was described, with the given parts replaced; the engine is chosen anew."""
    found: dict[str, Any] = {
        name: description.get(name) for name in ("backbone", "method", "memory", "settings")
    }
    found["memory"] = found["memory"] and _memory(found["memory"])
    found["settings"] = found["settings"] and _settings(found["settings"])
    found["epochs"] = description.get("epochs")
    found |= {name: part for name, part in given.items() if part is not None}
    if isinstance(found["method"], Method):
        found["epochs"] = None
    missing = [name for name, part in found.items() if part is None and name != "epochs"]
    if missing:
        raise ValueError(
            f"This learner's own {missing[0]} could not be saved with it; give what it was made "
            f"of: Learner.load(folder, {missing[0]}=...)."
        )
    return LearnerSpec(**found)


def describe_augment(augment: Augment) -> dict[str, Any] | None:
    """The augmentation as JSON; None for a user's own class."""
    kept = {"flip": augment.flip, "brightness": augment.brightness}
    if type(augment) is InferredAugment:
        return {"padding": None if augment.by_size else augment.padding, **kept}
    if type(augment) is Augment:
        return {"padding": augment.padding, **kept, "mean": augment.mean, "std": augment.std}
    return None


def restore_augment(description: Mapping[str, Any]) -> Augment:
    """The augmentation that was described."""
    if "mean" not in description:
        return InferredAugment(**description)
    mean, std = (tuple(description[name]) for name in ("mean", "std"))
    rest = {name: x for name, x in description.items() if name not in ("mean", "std")}
    return Augment(mean, std, **rest)


def _memory(description: Mapping[str, Any]) -> ExemplarMemory:
    return ExemplarMemory(Quota(*description["quota"]), description["selection"])


def _settings(description: Mapping[str, Any]) -> Settings:
    rest = {name: value for name, value in description.items() if name != "augment"}
    return Settings(restore_augment(description["augment"]), **rest)


def _describe_settings(settings: Settings) -> dict[str, Any] | None:
    augment = describe_augment(settings.augment)
    if augment is None:
        return None
    return {
        "augment": augment,
        "seed": settings.seed,
        "workers": settings.workers,
        "image_size": settings.image_size,
    }
