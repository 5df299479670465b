"""What an update is asked to do, before anything is changed."""

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch

from densekd.config.schema import Config
from densekd.config.settings_tree import digest
from densekd.data.dataset import (
    Channels,
    OnProgress,
    PixelImages,
    Split,
    channel_statistics,
    fingerprint,
)
from densekd.data.folder import find_images
from densekd.data.scenario import Task
from densekd.data.stratify import oversampling_counts
from densekd.model.images import Lesson, find_lesson, read_lesson, usual_size
from densekd.model.model import Model, empty_learner
from densekd.model.records import Plan, Update
from densekd.model.settings import Part, TeachOptions, largest_size, scheduled, settings
from densekd.model.store import Pointer, Store
from densekd.training.learner import Learner


@dataclass(frozen=True)
class Request:
    """All that an update is made of.

    Args:
        store: the model's files.
        pointer: which state counts; None for a new model.
        model: the model in that state.
        lesson: what is to be learned.
        settings: the model's settings from now on.
        config: the same with a schedule that suits the lesson.
        options: what the user gave.
    """

    store: Store
    pointer: Pointer | None
    model: Model | None
    lesson: Lesson
    settings: Config
    config: Config
    options: TeachOptions

    @property
    def known(self) -> tuple[str, ...]:
        """The names of the classes learned before."""
        return () if self.model is None else self.model.classes

    @property
    def step(self) -> int:
        """The number of the state that will be made."""
        return 0 if self.pointer is None else self.pointer.steps

    @property
    def parent(self) -> int | None:
        """The number of the state that it is made from."""
        return None if self.pointer is None else self.pointer.step

    @property
    def part(self) -> Part:
        """Which schedule counts."""
        return "base" if self.model is None else "increment"

    @cached_property
    def asked(self) -> str:
        """What tells whether another request is the same."""
        return _asked(self.lesson, self.options)

    @cached_property
    def normalisation(self) -> tuple[Channels, Channels]:
        """Mean and deviation of the channels, for ever those of the first images."""
        if self.model is not None:
            return self.model.facts["mean"], self.model.facts["std"]
        return channel_statistics(_pixels(self.lesson.train))

    @cached_property
    def task(self) -> Task:
        """The lesson as a learner takes it."""
        number = 0 if self.model is None else len(self.model.learner.sizes)
        lesson, first = self.lesson, len(self.known)
        tested = lesson.kept.take(torch.nonzero(lesson.kept.labels >= first).flatten())
        return Task(number, lesson.learned, first, lesson.train, tested)

    def learner(self, config: Config) -> Learner:
        """What the model has learned, about to learn by these settings."""
        learner = empty_learner(config, *self.normalisation)
        if self.model is not None:
            learner.load_state(self.model.learner.state())
        if len(self.lesson.more):
            learner.memory.add(self.lesson.more)
        return learner

    def plan(self, config: Config, seconds: float | None, *, resumed: bool) -> Plan:
        """What will be done by these settings; see `Plan`."""
        lesson, names = self.lesson, [*self.known, *self.lesson.learned]
        method, task = config.method.make(config.schedules()), self.task.number
        assert config.data.image_size is not None
        phases = method.increment if task else method.base
        return Plan(
            self.step,
            task,
            _counts(lesson.train, names),
            _counts(lesson.more, names),
            _counts(lesson.kept, names),
            config.data.image_size,
            config.network,
            method.name,
            tuple((phase.name, phase.schedule.epochs) for phase in phases),
            seconds,
            resumed,
        )


def read_request(
    folder: Path, source: Path, options: TeachOptions, on_progress: OnProgress
) -> Request:
    """Read all that an update needs; see `densekd.model.teach.teach`."""
    _check_places(folder, source)
    store = Store(folder)
    pointer = store.pointer()
    model = None if pointer is None else Model.open(folder)
    known = () if model is None else model.classes
    found = find_lesson(source, known, options.known)
    size = options.image_size or usual_size(found, largest_size())
    lasting = settings(None if model is None else model.config, options, size)
    size = lasting.data.image_size or size
    lesson = read_lesson(source, found, size, known, lasting.seed, on_progress)
    part: Part = "base" if model is None else "increment"
    shown = images_shown(lesson, lasting)
    config = scheduled(lasting, part, options, shown, len(lesson.learned))
    return Request(store, pointer, model, lesson, lasting, config, options)


def images_shown(lesson: Lesson, config: Config) -> int:
    """How many new images an epoch has, repetitions counted."""
    return (
        int(oversampling_counts(lesson.train.labels).sum())
        if config.data.even
        else len(lesson.train)
    )


def done_before(
    folder: Path, source: Path, options: TeachOptions, on_progress: OnProgress
) -> Update | None:
    """The model's last update, if it is the one that is asked for."""
    if Store(folder).pointer() is None:
        return None
    model = Model.open(folder)
    last = model.entry.update
    found = find_images(source)
    names = {name for own in found.parts.values() for name, files in own.items() if files}
    if names != {*last.learned, *last.replayed}:
        return None
    known, size = model.classes[: -len(last.learned)], model.image_size
    lesson = read_lesson(source, found, size, known, model.config.seed, on_progress)
    return last if _asked(lesson, options) == model.facts["asked"] else None


def _asked(lesson: Lesson, options: TeachOptions) -> str:
    images = [fingerprint(split) for split in (lesson.train, lesson.more, lesson.kept)]
    return digest([images, lesson.learned, lesson.replayed, asdict(options)])


def _counts(split: Split, names: list[str]) -> dict[str, int]:
    """The number of images of each class that has some, by name."""
    ranks, counts = split.labels.unique(return_counts=True)
    return {names[r]: n for r, n in zip(ranks.tolist(), counts.tolist(), strict=True)}


def _pixels(split: Split) -> torch.Tensor:
    assert isinstance(split.images, PixelImages)
    return split.images.pixels


def _check_places(folder: Path, source: Path) -> None:
    """Refuse what would mix up a model and its images."""
    model, images = folder.resolve(), source.resolve()
    if model.is_relative_to(images) or images.is_relative_to(model):
        raise ValueError(
            f"The model {folder} and the images {source} must not lie in each other; "
            "give the model a folder of its own."
        )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder for the model.")
    ours = {"current.json", "lock", "pending", "steps"}
    # Hidden files are what a kill left of ours, or what a system puts into every folder.
    others = [p.name for p in folder.iterdir() if p.name not in ours and p.name[0] != "."]
    if Store(folder).pointer() is None and others:
        raise ValueError(
            f"{folder} is no model, and has other files in it, such as {others[0]!r}; the model "
            "comes first and the images second: give a new folder for the model."
        )
