"""The settings of an update: what a user gave, what the model has, and what suits its images."""

import dataclasses
import tomllib
from dataclasses import dataclass
from typing import Any, Literal

import torch

from densekd.config.schema import Config, as_toml, resolve
from densekd.config.settings_tree import given, merge, override
from densekd.methods.method import Streams
from densekd.methods.registry import HOSTS
from densekd.model.images import Known

Part = Literal["base", "increment"]

# Chosen by measurement; docs/decisions/022 has the numbers.
METHOD = "fdkd"
# Without a graphics processor, larger images take longer than people like to wait.
_LARGEST, _LARGEST_ON_CUDA = 64, 224
_SMALL_NETWORK, _LARGE_NETWORK = "resnet20", "resnet18"
_BATCH = 32
# Below this, new images are learned in one batch with exemplars.
_FEW = 128
_LR = 0.05
# So many images in all, repetitions counted, but each image at least and at most so often.
_IMAGES_SEEN = {"base": 30_000, "increment": 10_000}
_FEWEST, _MOST = 10, 60

# What a model is built of, and what would make of it another.
_FIXED = {
    ("network",): "network",
    ("data", "image_size"): "image size",
    ("method", "name"): "method",
    ("method", "options", "head"): "head",
}


@dataclass(frozen=True)
class TeachOptions:
    """How to teach; what is None is chosen.

    Args:
        image_size: the height and width that images are brought to, for a new model.
        network: such as ``resnet20``, for a new model.
        method: such as ``fdkd``, for a new model.
        epochs: how often the images are seen.
        budget: the minutes that the update may take, instead of ``epochs``.
        known: whether a folder named like a known class is refused, or has more images of it.
        overrides: other settings, such as ``training.increment.lr=0.05``.
    """

    image_size: int | None = None
    network: str | None = None
    method: str | None = None
    epochs: int | None = None
    budget: float | None = None
    known: Known = "refuse"
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.epochs is not None and self.budget is not None:
            raise ValueError("Give either epochs or a budget, and not both.")
        for name, value in (("epochs", self.epochs), ("image size", self.image_size)):
            if value is not None and value < 1:
                raise ValueError(f"The {name} must be at least 1, not {value}.")
        if self.budget is not None and not 0 < self.budget < float("inf"):
            raise ValueError(f"The budget must be a number of minutes above 0, not {self.budget}.")


def largest_size() -> int:
    """The largest images that a new model has unless it is told to."""
    return _LARGEST_ON_CUDA if torch.cuda.is_available() else _LARGEST


def settings(before: Config | None, options: TeachOptions, size: int) -> Config:
    """All settings of an update but for how long it is trained; see `scheduled`.

    Args:
        before: the model's settings; None for a new one.
        options: what the user gave.
        size: the height and width that images of a new model are brought to.
    """
    chosen = override(_given(options), options.overrides)
    if before is None:
        config = resolve(merge(_usual(given(chosen, "method", "name") or METHOD, size), chosen))
    else:
        config = resolve(merge(tomllib.loads(as_toml(before)), chosen))
        _check_fixed(before, config)
    if config.engine.devices != 1:
        raise ValueError("A model is taught on one device; leave engine.devices at 1.")
    return config


def scheduled(
    config: Config, part: Part, options: TeachOptions, images: int, classes: int
) -> Config:
    """The settings with what suits so many images of so many new classes, unless it is given.

    That is the number of epochs; and for the paper's methods, whose schedules aren't released ones,
    the size of a batch, and whether new images and exemplars come in one.
    """
    chosen = override({}, options.overrides)
    if config.method.host not in HOSTS:
        if given(chosen, "training", part, "batch_size") is None:
            config = _changed(config, part, batch_size=_BATCH)
        if part == "increment" and given(chosen, "method", "options", "streams") is None:
            # A batch of few images, or of one class, has statistics that fit nothing else, and
            # a cross-entropy over one new class teaches nothing.
            few = classes == 1 or images < _FEW
            config = _with_streams(config, "merged" if few else "split")
    if given(chosen, "training", part, "epochs") is not None:
        return config
    return with_epochs(config, part, options.epochs or usual_epochs(part, images))


def usual_epochs(part: Part, images: int) -> int:
    """How often so many images are seen."""
    return min(_MOST, max(_FEWEST, round(_IMAGES_SEEN[part] / max(1, images))))


def with_epochs(config: Config, part: Part, epochs: int) -> Config:
    """The same schedules in so many epochs; what follows them is shortened in proportion."""
    training = config.training
    share = epochs / getattr(training, part).epochs
    schedules = training.schedules.scaled(share)
    base = schedules.base if part == "base" else training.base
    scaled = dataclasses.replace(
        training, base=base, increment=schedules.increment, finish=schedules.finish
    )
    return dataclasses.replace(config, training=scaled)


def _usual(method: str, size: int) -> dict[str, Any]:
    """What suits a new model of images of a size."""
    tree: dict[str, Any] = {
        "network": _SMALL_NETWORK if size <= _LARGEST else _LARGE_NETWORK,
        "data": {"source": "folder:.", "image_size": size, "even": True},
        "augment": {"padding": max(1, size // 8), "flip": True},
        "method": {"name": method},
    }
    if str(method).partition("+")[0] not in HOSTS:
        tree["training"] = {part: {"lr": _LR} for part in ("base", "increment")}
    return tree


def _given(options: TeachOptions) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    if options.network is not None:
        tree["network"] = options.network
    if options.image_size is not None:
        tree["data"] = {"image_size": options.image_size}
    if options.method is not None:
        tree["method"] = {"name": options.method}
    return tree


def _changed(config: Config, part: Part, **changes: Any) -> Config:
    schedule = dataclasses.replace(getattr(config.training, part), **changes)
    training = dataclasses.replace(config.training, **{part: schedule})
    return dataclasses.replace(config, training=training)


def _with_streams(config: Config, streams: Streams) -> Config:
    chosen = dataclasses.replace(config.method.options, streams=streams)
    return dataclasses.replace(config, method=dataclasses.replace(config.method, options=chosen))


def _check_fixed(before: Config, after: Config) -> None:
    for path, name in _FIXED.items():
        old, new = (given(dataclasses.asdict(config), *path) for config in (before, after))
        if old != new:
            raise ValueError(
                f"The model's {name} is {old} and can't become {new}; leave it out, or teach a new "
                "model."
            )
