"""The settings of an update, from the user's options and the model's settings; its epochs."""

import dataclasses
import logging
import time
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from densekd.config.defaults import default_settings
from densekd.config.own_parts import own_references
from densekd.config.schema import Config, as_toml, resolve
from densekd.config.settings_tree import given, merge, nested, override
from densekd.methods.registry import baseline_of
from densekd.model.options import TeachOptions
from densekd.training.callbacks import Callback, Stopped, TrainingProgress

logger = logging.getLogger(__name__)

Part = Literal["base", "increment"]

# Chosen by measurement; docs/decisions/022 has the numbers.
METHOD = "fdkd"
# Without a GPU, larger images take longer than people like to wait.
_LARGEST, _LARGEST_ON_CUDA = 64, 224
_SMALL_NETWORK, _LARGE_NETWORK = "resnet20", "resnet18"
_BATCH = 32
# With fewer new images than this, new images and exemplars share a batch.
_FEW = 128
_LR = 0.05
# An update trains on this many images, repetitions counted, within these limits of epochs.
_IMAGES_SEEN = {"base": 30_000, "increment": 10_000}
_FEWEST_EPOCHS, _MOST_EPOCHS = 10, 60
# With a budget, at most this many times the usual epochs: further ones gain nothing.
_BUDGET_FACTOR = 4
# The share of a budget for training; the rest is for testing and saving.
_TRAINING_SHARE = 0.9
# Time batches for this many seconds, but at most this share of a budget.
_TRIAL_SECONDS, _TRIAL_SHARE = 5.0, 0.05
_TRIAL_BATCHES = 3

# Pixels of a side. A model above these limits isn't opened, since it may be someone else's.
LARGEST_IMAGE = 4096
MOST_CLASSES = 100_000

# Settings that can't change once a model exists.
_FIXED = {
    ("network",): "network",
    ("data", "image_size"): "image size",
    ("method", "name"): "method",
    ("method", "options", "head"): "head",
}


def largest_size() -> int:
    """The largest image size to choose for a new model."""
    return _LARGEST_ON_CUDA if torch.cuda.is_available() else _LARGEST


def update_settings(before: Config | None, options: TeachOptions, size: int) -> Config:
    """All settings of an update except its schedule, for which see `with_schedule`.

    ``before`` has the model's settings; None for a new model, whose images have ``size``. Raises
    ValueError if the options don't suit a model.
    """
    named = {
        "network": options.network,
        "data.image_size": options.image_size,
        "method.name": options.method,
    }
    tree = nested({key: value for key, value in named.items() if value is not None})
    chosen = override(tree, options.overrides)
    if before is None:
        config = resolve(_new_model_tree(chosen, size))
    else:
        # The epochs of an earlier update would shorten this one's, too.
        kept = dataclasses.replace(before, epochs=None)
        config = resolve(merge(tomllib.loads(as_toml(kept)), chosen))
        _check_fixed(before, config)
    if not 1 <= (config.data.image_size or size) <= LARGEST_IMAGE:
        raise ValueError(
            f"The image size must be from 1 to {LARGEST_IMAGE}, not {config.data.image_size}."
        )
    for name in own_references(config).values():
        raise ValueError(
            f"{name} is code of your own, but a model must open without running any; leave it out, "
            "or use it in `densekd run`."
        )
    if config.engine.ranks != 1:
        raise ValueError("A model is taught on one device; leave engine.devices and nodes at 1.")
    return config


def with_schedule(
    config: Config, part: Part, options: TeachOptions, images: int, classes: int
) -> Config:
    """Choose the epochs for ``images`` new images of ``classes`` classes, unless they are given.

    For the paper's methods, whose schedules aren't published ones, also choose the batch size and
    whether new images and exemplars share a batch.
    """
    chosen = override({}, options.overrides)
    if baseline_of(config.method.name) is None:
        if given(chosen, "training", part, "batch_size") is None:
            schedule = dataclasses.replace(getattr(config.training, part), batch_size=_BATCH)
            training = dataclasses.replace(config.training, **{part: schedule})
            config = dataclasses.replace(config, training=training)
        if part == "increment" and given(chosen, "method", "options", "streams") is None:
            # Batch statistics of few images, or of one class, don't fit other images, and
            # cross-entropy over one new class teaches nothing.
            streams: Any = "merged" if classes == 1 or images < _FEW else "split"
            method_options = dataclasses.replace(config.method.options, streams=streams)
            method = dataclasses.replace(config.method, options=method_options)
            config = dataclasses.replace(config, method=method)
    if given(chosen, "training", part, "epochs") is not None:
        if options.epochs is not None:
            logger.warning("--epochs has no effect, because training.%s.epochs overrides it.", part)
        if options.budget is not None:
            logger.warning("training.%s.epochs has no effect, because --budget overrides it.", part)
        return config
    return with_epochs(config, part, options.epochs or usual_epochs(part, images))


def usual_epochs(part: Part, images: int) -> int:
    """The default number of epochs for this many images."""
    return min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, round(_IMAGES_SEEN[part] / max(1, images))))


def affordable_epochs(part: Part, images: int, seconds: float, epoch_seconds: float) -> int:
    """The number of epochs that fit into ``seconds``; 0 if none does."""
    epochs = int(_TRAINING_SHARE * seconds / max(epoch_seconds, 1e-9))
    return min(max(0, epochs), _BUDGET_FACTOR * usual_epochs(part, images))


def with_epochs(config: Config, part: Part, epochs: int) -> Config:
    """Scale the schedules to this many epochs; later phases are scaled in proportion."""
    training, further = config.training, config.make_method().base[1:]
    # Scale the schedule of CCIL's generations, too: it is as long as for the whole of CIFAR-100.
    if part == "base" and training.finish is None and further:
        training = dataclasses.replace(training, finish=further[0].schedule)
    schedules = training.scaled(epochs / getattr(training, part).epochs)
    base = schedules.base if part == "base" else training.base
    scaled = dataclasses.replace(
        training, base=base, increment=schedules.increment, finish=schedules.finish
    )
    return dataclasses.replace(config, training=scaled)


def seconds_per_epoch(
    learn: Callable[[Callback], object], callback: Callback, budget: float | None
) -> float:
    """Time an epoch of the first phase: train with ``learn``, and stop it after a few batches.

    Raises `Stopped` if ``callback`` asks to stop. ``budget`` is in minutes, for the whole update.
    """
    limit = _TRIAL_SECONDS if budget is None else min(_TRIAL_SECONDS, _TRIAL_SHARE * 60 * budget)
    trial = _Trial(callback, limit)
    try:
        learn(trial)
    except Stopped:
        if trial.user_stopped:
            raise
    batch = (trial.last - trial.began) / max(1, trial.done - 1)
    return batch * trial.batches


class _Trial(Callback):
    """Times batches from the second on, since the first warms up, and then stops the training."""

    def __init__(self, callback: Callback, seconds: float) -> None:
        self.callback, self.seconds = callback, seconds
        self.done = self.batches = 0
        self.began = self.last = 0.0
        self.user_stopped = False

    def report(self, report: TrainingProgress) -> None:
        self.batches = report.batches

    def stop(self) -> bool:
        self.done += 1
        self.last = time.monotonic()
        if self.done == 1:
            self.began = self.last
        self.user_stopped = self.callback.stop()
        enough = self.done >= _TRIAL_BATCHES and self.last - self.began >= self.seconds
        return self.user_stopped or (enough and self.batches > 0)


def _new_model_tree(chosen: Mapping[str, Any], size: int) -> dict[str, Any]:
    """The settings of a new model: the ``chosen`` ones, and defaults for images of ``size``."""
    method = given(chosen, "method", "name") or METHOD
    tree: dict[str, Any] = {
        "network": _SMALL_NETWORK if size <= _LARGEST else _LARGE_NETWORK,
        "data": {"source": "folder:.", "image_size": size, "oversample_rare": True},
        "augment": {"padding": max(1, size // 8), "flip": True},
        "method": {"name": method},
    }
    if baseline_of(str(method)) is not None:
        return merge(tree, chosen)
    # The paper's methods were measured with the settings for small images: keep these at any size.
    small = default_settings(merge(tree, chosen, {"data": {"image_size": _LARGEST}}))
    rates = {"training": {part: {"lr": _LR} for part in ("base", "increment")}}
    return merge({key: small[key] for key in ("method", "training")}, rates, tree, chosen)


def _check_fixed(before: Config, after: Config) -> None:
    for path, name in _FIXED.items():
        old, new = (given(dataclasses.asdict(config), *path) for config in (before, after))
        if old != new:
            raise ValueError(
                f"The model's {name} is {old} and can't become {new}; leave it out, or teach a new "
                "model."
            )
