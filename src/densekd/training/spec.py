"""What a learner is made of, by name where it has one, so that it can be written down."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from densekd.data.augment import Augment
from densekd.data.memory import ExemplarMemory, Quota
from densekd.methods.method import Method
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import HOSTS, make_method
from densekd.methods.released import Released, released
from densekd.methods.schedule import Schedules
from densekd.nn.adapter import as_backbone
from densekd.nn.network import Backbone
from densekd.nn.registry import make_backbone
from densekd.seeds import Seeds
from densekd.training.settings import InferredAugment, Settings

# Of the settings that the baselines were released with, those for small images.
_KIND = "small"


@dataclass(frozen=True)
class LearnerSpec:
    """What a learner is made of, as it was given.

    Args:
        backbone: a module, or the name of one such as ``resnet32``.
        method: or the name of one such as ``rdkd``, with the settings that are usual for it.
        memory: how exemplars are kept, or how many a class may keep.
        settings: what does not depend on the method.
        epochs: of the base task; those of later tasks are shortened in proportion.
    """

    backbone: Backbone | nn.Module | str
    method: Method | str
    memory: ExemplarMemory | int
    settings: Settings
    epochs: int | None = None

    def make_backbone(self) -> Backbone:
        """The backbone; the weights of one that was named are drawn from the seed."""
        if not isinstance(self.backbone, str):
            return as_backbone(self.backbone)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(Seeds(self.settings.seed).number("init"))
            return make_backbone(self.backbone)

    def make_method(self) -> Method:
        """The method."""
        if isinstance(self.method, Method):
            if self.epochs is not None:
                raise ValueError("epochs go with the name of a method; a Method has its own.")
            return self.method
        known = _released(self.method)
        schedules = Schedules() if known is None else known.schedules
        if self.epochs is not None:
            schedules = schedules.scaled(self.epochs / schedules.base.epochs)
        options = DenseOptions(lambda_base=_lambda_base(self.method))
        own = None if known is None else known.options
        return make_method(self.method, options, schedules, own)

    def make_memory(self) -> ExemplarMemory:
        """The memory; by a baseline's name, exemplars are selected as it was released."""
        if isinstance(self.memory, ExemplarMemory):
            return self.memory
        known = _released(self.method) if isinstance(self.method, str) else None
        return ExemplarMemory(Quota(self.memory), "random" if known is None else known.selection)


def describe_spec(spec: LearnerSpec) -> dict[str, Any]:
    """What JSON can hold of the spec; None stands for what can't be written down."""
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
    """The spec that were described, but for those given; device and precision are chosen anew."""
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
    """What JSON can hold of an augmentation; None for one of one's own."""
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


def _released(method: str) -> Released | None:
    host = method.partition("+")[0]
    return released(host, _KIND) if host in HOSTS else None


def _lambda_base(method: str) -> float:
    """The weight of a dense distillation on CIFAR; docs/decisions/012 and 016 say why."""
    value = 20.0 if method.endswith("-adaptive") else 5.0
    if method.startswith("icarl+"):
        value *= 0.1 / released("icarl", _KIND).schedules.increment.lr
    return value


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
