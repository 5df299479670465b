"""What an update is made from: images, settings and the plan, before anything changes."""

import logging
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch

from densekd.config.schema import Config
from densekd.config.settings_tree import digest
from densekd.data.dataset import (
    OnProgress,
    PixelImages,
    Split,
    channel_statistics,
    fingerprint,
)
from densekd.data.folder import find_images
from densekd.data.scenario import Task
from densekd.data.stratify import oversampling_counts
from densekd.model.images import (
    UpdateImages,
    find_update_images,
    median_size,
    read_update_images,
)
from densekd.model.model import Model
from densekd.model.settings import (
    Part,
    TeachOptions,
    affordable_epochs,
    largest_size,
    seconds_per_epoch,
    update_settings,
    with_epochs,
    with_schedule,
)
from densekd.model.store import Pointer, Store, Update
from densekd.runs.build import Normalisation, make_engine, make_learner
from densekd.training.callbacks import Callback
from densekd.training.learner import Learner

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """What an update is going to do."""

    step: int  # that it will make
    task: int  # the number of updates before it
    learned: dict[str, int]  # training images of each new class
    replayed: dict[str, int]  # training images of each known class
    tested: dict[str, int]  # new test images of each class
    image_size: int
    network: str
    method: str
    phases: tuple[tuple[str, int], ...]  # name and epochs
    seconds: float | None  # of training, if measured
    resumed: bool  # whether it continues an interrupted update


@dataclass(frozen=True)
class UpdateRequest:
    """Everything that an update is made from."""

    store: Store
    pointer: Pointer | None  # None for a new model
    model: Model | None
    images: UpdateImages
    settings: Config  # the model's settings from now on
    config: Config  # the same with the schedule of this update
    options: TeachOptions
    digest: str  # identifies the update by its images and options

    @property
    def known(self) -> tuple[str, ...]:
        """The classes that the model knows."""
        return () if self.model is None else self.model.classes

    @property
    def step(self) -> int:
        """The step that the update will make."""
        return 0 if self.pointer is None else self.pointer.steps

    @property
    def part(self) -> Part:
        """Which schedule applies."""
        return "base" if self.model is None else "increment"

    @cached_property
    def normalisation(self) -> Normalisation:
        """Mean and deviation of the channels, always those of the first step's images."""
        if self.model is not None:
            return self.model.facts["mean"], self.model.facts["std"]
        assert isinstance(self.images.train.images, PixelImages)
        return channel_statistics(self.images.train.images.pixels)

    @cached_property
    def task(self) -> Task:
        """The images as a learner takes them."""
        number = 0 if self.model is None else len(self.model.learner.sizes)
        images, first = self.images, len(self.known)
        test = images.test.take(torch.nonzero(images.test.labels >= first).flatten())
        return Task(number, images.new_classes, first, images.train, test)

    def learner(self, config: Config) -> Learner:
        """The model's learner with these settings, ready to learn `task`."""
        learner = make_learner(config, self.normalisation, make_engine(config))
        if self.model is not None:
            learner.load_state(self.model.learner.state())
        if len(self.images.replay):
            learner.memory.add(self.images.replay)
        return learner

    def plan(self, config: Config, *, resumed: bool = False) -> Plan:
        """The plan of the update with these settings."""
        images, names = self.images, [*self.known, *self.images.new_classes]
        method, task = config.method.make(config.schedules()), self.task.number
        assert config.data.image_size is not None
        phases = method.increment if task else method.base
        return Plan(
            self.step,
            task,
            _counts(images.train, names),
            _counts(images.replay, names),
            _counts(images.test, names),
            config.data.image_size,
            config.network,
            method.name,
            tuple((phase.name, phase.schedule.epochs) for phase in phases),
            None,
            resumed,
        )

    def timed(self, callback: Callback, began: float) -> tuple[Config, float]:
        """Time an epoch, and give the settings that fit into the budget, if there is one.

        Args:
            callback: may ask to stop.
            began: when the update began, by the monotonic clock.

        Returns:
            The settings, and the seconds that their training takes.
        """
        config, part, budget = self.config, self.part, self.options.budget
        learner = self.learner(config)
        epoch = seconds_per_epoch(
            lambda trial: learner.learn(self.task, callback=trial), callback, budget
        )
        if budget is not None:
            # Later phases are scaled with the first, so count their time with its epochs.
            share = self._epochs(config) / getattr(config.training, part).epochs
            left = 60 * budget - (time.monotonic() - began)
            images = _images_per_epoch(self.images, config)
            epochs = affordable_epochs(part, images, left, epoch * share)
            if epochs < 1:
                logger.warning("Not even one epoch fits into %g minutes; training one.", budget)
            config = with_epochs(config, part, max(1, epochs))
        return config, epoch * self._epochs(config)

    def _epochs(self, config: Config) -> int:
        return sum(epochs for _, epochs in self.plan(config).phases)


def read_request(
    folder: Path, source: Path, options: TeachOptions, on_progress: OnProgress
) -> UpdateRequest:
    """Read and check everything that an update needs; see `densekd.model.teach.teach`."""
    _check_places(folder, source)
    store = Store(folder)
    pointer = store.pointer()
    model = None if pointer is None else Model.open(folder)
    known = () if model is None else model.classes
    found = find_update_images(source, known, options.known)
    size = options.image_size or median_size(found, largest_size())
    settings = update_settings(None if model is None else model.config, options, size)
    size = settings.data.image_size or size
    images = read_update_images(source, found, size, known, settings.seed, on_progress)
    part: Part = "base" if model is None else "increment"
    per_epoch = _images_per_epoch(images, settings)
    config = with_schedule(settings, part, options, per_epoch, len(images.new_classes))
    identity = _digest(images, options)
    return UpdateRequest(store, pointer, model, images, settings, config, options, identity)


def same_last_update(
    folder: Path, source: Path, options: TeachOptions, on_progress: OnProgress
) -> Update | None:
    """The model's last update, if it had the same images and options."""
    if Store(folder).pointer() is None:
        return None
    model = Model.open(folder)
    last = model.entry.update
    found = find_images(source)
    names = {name for own in found.parts.values() for name, files in own.items() if files}
    if names != {*last.learned, *last.replayed}:
        return None
    known, size = model.classes[: -len(last.learned)], model.image_size
    images = read_update_images(source, found, size, known, model.config.seed, on_progress)
    return last if _digest(images, options) == model.facts["asked"] else None


def _digest(images: UpdateImages, options: TeachOptions) -> str:
    splits = [fingerprint(split) for split in (images.train, images.replay, images.test)]
    return digest([splits, images.new_classes, images.replayed, asdict(options)])


def _images_per_epoch(images: UpdateImages, config: Config) -> int:
    """The number of new images in an epoch, repetitions counted."""
    if config.data.oversample_rare:
        return int(oversampling_counts(images.train.labels).sum())
    return len(images.train)


def _counts(split: Split, names: list[str]) -> dict[str, int]:
    """The number of images of each class that has some."""
    ranks, counts = split.labels.unique(return_counts=True)
    return {names[r]: n for r, n in zip(ranks.tolist(), counts.tolist(), strict=True)}


def _check_places(folder: Path, source: Path) -> None:
    """Raise if the folders of model and images overlap or are mixed up."""
    model, images = folder.resolve(), source.resolve()
    if model.is_relative_to(images) or images.is_relative_to(model):
        raise ValueError(
            f"The model {folder} and the images {source} must not contain each other; "
            "give the model a folder of its own."
        )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder for the model.")
    ours = {"current.json", "lock", "pending", "steps"}
    # Ignore hidden files: a killed update or the operating system may have left them.
    others = [p.name for p in folder.iterdir() if p.name not in ours and p.name[0] != "."]
    if Store(folder).pointer() is None and others:
        raise ValueError(
            f"{folder} is not a model, and has other files in it, such as {others[0]!r}; the model "
            "comes first and the images second: give a new folder for the model."
        )
