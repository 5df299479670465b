"""What a learner is made of, and how that is written to JSON and read again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

import torch
from torch import nn

from densekd.data.augment import Augment, Crop
from densekd.data.batches import default_workers
from densekd.data.dataset import Channels, Images, PixelImages, image_shape, image_statistics
from densekd.data.memory import ExemplarMemory, Quota
from densekd.methods.defaults import default_lambda, method_defaults
from densekd.methods.method import DataKind, Method
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.nn.adapter import as_lazy_backbone
from densekd.nn.network import Backbone, own_statistics
from densekd.nn.registry import make_backbone
from densekd.seeds import Seeds
from densekd.training.engine import Engine

# Pad by an eighth of an image's size: 4 pixels for CIFAR's 32.
_PADDING = 8
# A learner is made before its data is known, as for small images; the first images then decide the
# lambda of a distillation. Learners saved by earlier versions keep that of small images.
_KIND: DataKind = "small"
_MOST_EPOCHS = 10**6


class _AugmentOptions(TypedDict, total=False):
    """The options of any augmentation, besides padding and statistics."""

    flip: bool
    brightness: float
    crop: Crop


_KEPT = tuple(_AugmentOptions.__annotations__)


class InferredAugment(Augment):
    """An augmentation that takes mean and deviation from the first images it gets.

    Args:
        padding: in pixels; by default 1/8 of the images' size.
        others: ``flip``, ``brightness`` and ``crop`` of `densekd.data.augment.Augment`.
    """

    def __init__(self, *, padding: int | None = None, **others: Unpack[_AugmentOptions]) -> None:
        super().__init__((0.5,) * 3, (0.5,) * 3, padding=padding or 0, **others)
        self.by_size = padding is None

    def like(self, used: Augment) -> Augment:
        """This augmentation with the statistics of ``used``, and its padding unless given."""
        return self._with(used.mean, used.std, used.padding if self.by_size else self.padding)

    def on(self, images: Images, backbone: object) -> Augment:
        """The augmentation for these images; a pretrained backbone brings its own statistics."""
        mean, std = own_statistics(backbone) or image_statistics(images)
        by_size = min(image_shape(images)) // _PADDING
        return self._with(mean, std, by_size if self.by_size else self.padding)

    def _with(self, mean: Channels, std: Channels, padding: int) -> Augment:
        kept: dict[str, Any] = {name: getattr(self, name) for name in _KEPT}
        return Augment(mean, std, padding=padding, **kept)


@dataclass(frozen=True)
class Settings:
    """Settings that don't depend on the method.

    Args:
        augment: how images are augmented and normalised.
        seed: of all random streams.
        engine: the devices, and their precision.
        workers: processes that decode images in files; None for a number that suits the
            processors and the images.
        image_size: the height and width that images of various sizes are brought to.
        oversample_rare: show rare classes more often; see
            `densekd.data.stratify.oversample_rare`.

    Example:
        >>> from densekd import Learner, Settings, load
        >>> from densekd.data.augment import Augment
        >>> data = load("digits")
        >>> augment = Augment(data.mean, data.std, padding=1, flip=False)
        >>> learner = Learner("resnet8", "gkd", settings=Settings(augment, seed=7))
    """

    augment: Augment = field(default_factory=InferredAugment)
    seed: int = 1993
    engine: Engine = field(default_factory=Engine)
    workers: int | None = None
    image_size: int | None = None
    oversample_rare: bool = False

    def __post_init__(self) -> None:
        _check_number("seed", self.seed, -(2**63), 2**64)
        if self.workers is not None:
            _check_number("workers", self.workers, 0, 1024)
        if self.image_size is not None:
            _check_number("image_size", self.image_size, 1, 4096)

    def workers_for(self, images: Images) -> int:
        """How many processes of each rank decode these images."""
        if self.workers is None:
            return default_workers(images, self.engine.devices)
        ready = isinstance(images, PixelImages) and self.augment.crop == "padded"
        return 0 if ready else self.workers


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, not {value!r}.")


@dataclass(frozen=True)
class LearnerSpec:
    """The parts of a `densekd.training.learner.Learner` as the user gave them, names or objects."""

    backbone: Backbone | nn.Module | str
    method: Method | str
    memory: ExemplarMemory | int
    settings: Settings
    epochs: int | None = None

    def __post_init__(self) -> None:
        kinds = {"method": (Method, str), "memory": (ExemplarMemory, int), "settings": (Settings,)}
        for name, expected in kinds.items():
            value = getattr(self, name)
            if not isinstance(value, expected) or isinstance(value, bool):
                words = " or ".join(kind.__name__ for kind in expected)
                raise ValueError(f"{name} must be of the type {words}, not {value!r}.")
        if self.epochs is not None:
            _check_number("epochs", self.epochs, 1, _MOST_EPOCHS)

    def make_backbone(self) -> Backbone:
        """The backbone; a named one draws its weights from the seed."""
        if isinstance(self.backbone, str):
            return draw_backbone(self.backbone, self.settings.seed)
        return as_lazy_backbone(self.backbone)

    def make_method(self, kind: DataKind = _KIND) -> Method:
        """The method; a named one has the defaults for small images, but the lambda of ``kind``."""
        if isinstance(self.method, Method):
            if self.epochs is not None:
                raise ValueError("epochs go with the name of a method; a Method has its own.")
            return self.method
        known = method_defaults(self.method, _KIND)
        schedules = known.schedules
        if self.epochs is not None:
            schedules = schedules.scaled(self.epochs / schedules.base.epochs)
        lambda_base = default_lambda(self.method, kind, schedules=_KIND)
        options = DenseOptions(lambda_base=lambda_base)
        return make_method(self.method, options, schedules, known.options)

    def make_memory(self) -> ExemplarMemory:
        """The memory; a named baseline has the selection of exemplars it was published with."""
        if isinstance(self.memory, ExemplarMemory):
            return self.memory
        name = self.method if isinstance(self.method, str) else ""
        return ExemplarMemory(Quota(self.memory), method_defaults(name, _KIND).selection)

    def describe(self) -> dict[str, Any]:
        """The parts as JSON; None for one that JSON can't hold, such as a module."""
        memory, augment = self.make_memory(), describe_augment(self.settings.augment)
        quota = [memory.quota.per_class, memory.quota.total]
        named = {"quota": quota, "selection": memory.selection}
        names = ("seed", "workers", "image_size", "oversample_rare")
        kept = {name: getattr(self.settings, name) for name in names}
        kept["precision"] = self.settings.engine.precision
        return {
            "backbone": self.backbone if isinstance(self.backbone, str) else None,
            "method": self.method if isinstance(self.method, str) else None,
            "memory": None if callable(memory.selection) else named,
            "settings": None if augment is None else {"augment": augment, **kept},
            "epochs": self.epochs,
        }


def draw_backbone(network: str, seed: int, size: tuple[int, int] | None = None) -> Backbone:
    """Make a network by name; weights that aren't pretrained are drawn from the seed.

    A custom network is tried on images of ``size``.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Seeds(seed).number("init"))
        return make_backbone(network, size)


def restore_parts(description: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that `LearnerSpec.describe` gave, or those given; the device is chosen anew."""
    names = ("backbone", "method", "memory", "settings", "epochs")
    found: dict[str, Any] = {name: description.get(name) for name in names}
    if found["memory"]:
        quota, selection = found["memory"]["quota"], found["memory"]["selection"]
        found["memory"] = ExemplarMemory(Quota(*quota), selection)
    if found["settings"]:
        kept = dict(found["settings"])
        engine = Engine(precision=kept.pop("precision", "auto"))
        augment = restore_augment(kept["augment"])
        found["settings"] = Settings(**{**kept, "augment": augment, "engine": engine})
    found |= {name: part for name, part in given.items() if part is not None}
    if isinstance(found["method"], Method):
        found["epochs"] = None
    missing = [name for name, part in found.items() if part is None and name != "epochs"]
    if missing:
        raise ValueError(
            f"This learner's own {missing[0]} could not be saved with it; give what it was made "
            f"of: Learner.load(folder, {missing[0]}=...)."
        )
    return found


def describe_augment(augment: Augment) -> dict[str, Any] | None:
    """The augmentation as JSON; None for a custom class."""
    kept = {name: getattr(augment, name) for name in _KEPT}
    if type(augment) is InferredAugment:
        return {"padding": None if augment.by_size else augment.padding, **kept}
    if type(augment) is Augment:
        return {"padding": augment.padding, **kept, "mean": augment.mean, "std": augment.std}
    return None


def restore_augment(description: Mapping[str, Any]) -> Augment:
    """The augmentation that was described."""
    if "mean" not in description:
        return InferredAugment(**description)
    lists = {name: tuple(description[name]) for name in ("mean", "std")}
    return Augment(**{**description, **lists})


def augment_in_use(
    made: Augment, description: Mapping[str, Any], settings: Settings | None
) -> Augment:
    """The augmentation of a loaded learner; one that infers statistics keeps those measured."""
    used = restore_augment(description["used"]) if description.get("used") else made
    if settings is None:
        return used
    # If ``used`` is still to be inferred, it has no statistics yet.
    if isinstance(made, InferredAugment) and not isinstance(used, InferredAugment):
        return made.like(used)
    return made
