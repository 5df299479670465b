"""An update that trains a network: read its images, choose settings and schedule, carry it out."""

import logging
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Self

import torch

from densekd.config.schema import Config, as_toml, resolve
from densekd.config.settings_tree import digest, read_toml
from densekd.data.dataset import OnProgress, Split, fingerprint, image_statistics, join_splits
from densekd.data.folder import FoundImages, find_images
from densekd.data.scenario import Task
from densekd.data.stratify import oversampling_counts
from densekd.files import write_sealed_text
from densekd.model.calibration import calibrate, class_changes, split_accuracy
from densekd.model.images import UpdateImages, check_learnable, median_size, read_update_images
from densekd.model.options import TeachOptions
from densekd.model.request import Plan, TeachObserver, UpdateRequest
from densekd.model.store import Store, Update, unequal_error
from densekd.model.trained.model import TrainedModel, on_this_computer, write_state
from densekd.model.trained.settings import (
    Part,
    affordable_epochs,
    largest_size,
    seconds_per_epoch,
    update_settings,
    with_epochs,
    with_schedule,
)
from densekd.runs.build import Normalisation, make_engine, make_learner
from densekd.training.checkpoint import Checkpoints
from densekd.training.learner import Learned, Learner

# The number of images on which a saved state is compared with the one in memory.
_VERIFIED_IMAGES = 64

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainedRequest(UpdateRequest):
    """An update that trains the whole network by one of the methods."""

    model: TrainedModel | None
    images: UpdateImages
    stored_config: Config  # the model's settings after the update
    update_config: Config  # the same, with the schedule of this update

    @classmethod
    def read(
        cls, store: Store, source: Path, options: TeachOptions, on_progress: OnProgress
    ) -> Self | Update:
        """Read the images, and choose the settings."""
        pointer, found, model = store.pointer(), find_images(source), None
        if pointer is not None:
            model = TrainedModel.open(store.folder, pointer.step)
            if _is_repeated(model, source, found, options, on_progress):
                return model.entry.update
            store.verify(model.step)  # raise now rather than after minutes of training
        known = () if model is None else model.classes
        check_learnable(source, found, known, options.known, needs_new=True)
        size = options.image_size or median_size(found, largest_size())
        settings = update_settings(None if model is None else model.config, options, size)
        size = settings.data.image_size or size
        images = read_update_images(source, found, size, known, settings.seed, on_progress)
        part: Part = "base" if model is None else "increment"
        per_epoch = _images_per_epoch(images, settings)
        config = with_schedule(settings, part, options, per_epoch, len(images.new_classes))
        asked = _digest(images, options)
        if model is None and options.network is None:
            logger.warning(
                "The epochs, image size, method or settings given make a network that is trained "
                "on these images alone. Without them, the model gets a pretrained network, which "
                "usually recognises more."
            )
        if model is not None and not options.trains:
            logger.warning(
                "The network of %s was trained on its own images only. A new model on a pretrained "
                "network, taught with the images of all classes, usually recognises more: `densekd "
                "learn NEW_MODEL FOLDER`.",
                store.folder,
            )
        return cls(store, pointer, options, asked, model, images, settings, config)

    @property
    def part(self) -> Part:
        """The part of the settings whose schedule applies."""
        return "base" if self.model is None else "increment"

    @cached_property
    def normalisation(self) -> Normalisation:
        """Mean and deviation of the channels, always those of the first step's images."""
        if self.model is not None:
            return self.model.facts["mean"], self.model.facts["std"]
        return image_statistics(self.images.train.images)

    @cached_property
    def task(self) -> Task:
        """The images as a task for a learner."""
        number = 0 if self.model is None else len(self.model.learner.sizes)
        images, first = self.images, len(self.known)
        test = images.test.take(torch.nonzero(images.test.labels >= first).flatten())
        return Task(number, images.new_classes, first, images.train, test)

    def learner(self, config: Config) -> Learner:
        """The model's learner with these settings, ready to learn `task`."""
        learner = make_learner(config, self.normalisation, make_engine(on_this_computer(config)))
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
            resumed=resumed,
        )

    def timed(self, observer: TeachObserver, began: float) -> tuple[Config, float]:
        """Time an epoch; gives settings that fit into the budget, and the seconds to train by them.

        ``began`` is when the update began, on the monotonic clock.
        """
        observer.doing("measuring")
        config, part, budget = self.update_config, self.part, self.options.budget
        learner = self.learner(config)
        epoch = seconds_per_epoch(
            lambda trial: learner.learn(self.task, callback=trial), observer, budget
        )
        if budget is not None:
            # Later phases are scaled with the first, so add their time to its epochs.
            share = self._epochs(config) / getattr(config.training, part).epochs
            left = 60 * budget - (time.monotonic() - began)
            images = _images_per_epoch(self.images, config)
            epochs = affordable_epochs(part, images, left, epoch * share)
            if epochs < 1:
                logger.warning("Not even one epoch fits into %g minutes; training one.", budget)
            config = with_epochs(config, part, max(1, epochs))
        return config, epoch * self._epochs(config)

    def timed_plan(self, observer: TeachObserver, began: float) -> Plan:
        """The plan, with the measured time for training."""
        config, seconds = self.timed(observer, began)
        return replace(self.plan(config), seconds=seconds)

    def carry_out(self, observer: TeachObserver, began: float) -> Update:
        """Train, test, save, verify and commit."""
        checkpoints = Checkpoints(self.pending / "epochs")
        config = _schedule(self, observer, began)
        observer.planned(self.plan(config, resumed=checkpoints.newest() is not None))
        learner = self.learner(config)
        learned = learner.learn(self.task, callback=observer, checkpoints=checkpoints)
        observer.doing("testing")
        earlier = [] if self.model is None else [self.model.stored_images(tested=True)]
        test = join_splits([*earlier, self.images.test])
        values = learner.in_float32().scores(test.images).cpu()
        update = _result(self, learner, learned, test, values.argmax(1) == test.labels)
        mean, std = self.normalisation
        facts = {
            "asked": self.digest,
            "parent": self.parent,
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "mean": mean,
            "std": std,
            **calibrate(values, test.labels),
            "update": asdict(update),
        }
        observer.doing("saving")
        prepared = self.pending / "state"
        # Not with this update's schedule, which is rounded: the next update scales the original.
        write_state(prepared, learner, self.stored_config, facts, self.images.test)
        _verify(self, learner, prepared)
        self.store.commit(prepared, self.step)
        return update

    def _epochs(self, config: Config) -> int:
        return sum(epochs for _, epochs in self.plan(config).phases)


def _is_repeated(
    model: TrainedModel,
    source: Path,
    found: FoundImages,
    options: TeachOptions,
    on_progress: OnProgress,
) -> bool:
    """Whether the model's last update had the same images and options."""
    last = model.entry.update
    names = {name for own in found.parts.values() for name, files in own.items() if files}
    if names != {*last.learned, *last.replayed}:
        return False
    known, size = model.classes[: -len(last.learned)], model.image_size
    images = read_update_images(source, found, size, known, model.config.seed, on_progress)
    return _digest(images, options) == model.facts.get("asked")


def _digest(images: UpdateImages, options: TeachOptions) -> str:
    splits = [fingerprint(split) for split in (images.train, images.replay, images.test)]
    return digest([splits, images.new_classes, images.replayed, asdict(options)])


def _images_per_epoch(images: UpdateImages, config: Config) -> int:
    """The number of new images in an epoch, counting repetitions."""
    if config.data.oversample_rare:
        return int(oversampling_counts(images.train.labels).sum())
    return len(images.train)


def _counts(split: Split, names: list[str]) -> dict[str, int]:
    """The number of images of each class, without empty classes."""
    ranks, counts = split.labels.unique(return_counts=True)
    return {names[r]: n for r, n in zip(ranks.tolist(), counts.tolist(), strict=True)}


def _schedule(request: TrainedRequest, observer: TeachObserver, began: float) -> Config:
    """The settings that an interrupted update began with; or choose and save new ones."""
    file, config = request.pending / "config.toml", request.update_config
    if file.exists():
        return resolve(read_toml(file, sealed=True))
    if request.options.budget is not None:
        config, _ = request.timed(observer, began)
    write_sealed_text(file, as_toml(config))
    return config


def _result(
    request: TrainedRequest, learner: Learner, learned: Learned, test: Split, after: torch.Tensor
) -> Update:
    """The record of an update; ``after`` says whether each test image is predicted right."""
    images, known = request.images, len(request.known)
    before = None
    if request.model is not None:
        before = request.model.learner.scores(test.images).argmax(1).cpu() == test.labels
    phases = learner.method.increment if known else learner.method.base
    return Update(
        request.step,
        images.new_classes,
        images.replayed,
        len(images.train) + len(images.replay),
        phases[0].schedule.epochs,
        None if before is None else split_accuracy(before, test.labels, known),
        split_accuracy(after, test.labels, known),
        class_changes(learner.classes, test.labels, before, after, known),
        learned.seconds,
    )


def _verify(request: TrainedRequest, learner: Learner, prepared: Path) -> None:
    """Raise unless the saved state equals the one in memory and predicts the same."""
    saved = TrainedModel.read_from(request.store.folder, request.step, prepared).learner
    predicting, ours, theirs = learner.in_float32(), learner.state(), saved.state()
    same = all(torch.equal(x.cpu(), theirs.tensors[k].cpu()) for k, x in ours.tensors.items())
    both = join_splits([request.images.train, request.images.test])
    probe = both.take(torch.arange(min(_VERIFIED_IMAGES, len(both)))).images
    # Some devices don't always sum in the same order, so scores may differ by rounding.
    if not (
        same
        and ours.facts["classes"] == theirs.facts["classes"]
        and torch.allclose(predicting.scores(probe), saved.scores(probe), rtol=1e-3, atol=1e-3)
    ):
        raise unequal_error(prepared)
