"""A trained model: open it, predict, describe it, list its history, undo updates."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from densekd.config.schema import Config, as_toml, resolve
from densekd.config.settings_tree import read_toml
from densekd.data.dataset import PixelImages, Split, join_splits
from densekd.data.decode import UnreadableImage, centre_crop, in_threads, open_rgb, upright_rgb
from densekd.files import write_atomically
from densekd.model.store import HistoryEntry, Pointer, Store
from densekd.runs.build import make_engine, make_learner
from densekd.training.checkpoint import DamagedCheckpoint, State, load_state, save_state
from densekd.training.learner import Learner

PhotoInput = Path | Image.Image | NDArray[np.uint8]


class Guess(NamedTuple):
    """A class that an image may show."""

    name: str
    probability: float


class Model:
    """One step of a model; open it with `Model.open`. ``facts`` is what was recorded about it."""

    def __init__(
        self, folder: Path, step: int, config: Config, learner: Learner, facts: dict[str, Any]
    ) -> None:
        self.folder, self.step, self.config, self.learner = folder, step, config, learner
        self.facts = facts
        # Scores are divided by it before the softmax, which calibrates the probabilities.
        self.temperature: float = facts["temperature"]

    @classmethod
    def open(cls, folder: Path, step: int | None = None) -> "Model":
        """Open the current step or an earlier one, verified by checksums.

        While another process updates the model, this opens the state before or after the update.
        """
        store = Store(folder)
        pointer = store.existing()
        step = pointer.step if step is None else step
        if not 0 <= step < pointer.steps:
            raise ValueError(
                f"{folder} has no step {step}; its steps are 0 to {pointer.steps - 1}, which "
                f"`densekd history {folder}` lists."
            )
        try:
            return cls.read_from(folder, step, store.path(step))
        except (DamagedCheckpoint, FileNotFoundError) as error:
            raise ValueError(
                f"Step {step} of {folder} can't be opened ({error}); "
                f"`densekd undo {folder} --to N` goes back to another."
            ) from error

    @classmethod
    def read_from(cls, folder: Path, step: int, place: Path) -> "Model":
        """Read a state that `write_state` wrote to ``place``, also before it is committed."""
        facts, tensors = load_state(place / "state")
        file = place / "config.toml"
        if sha256(file.read_bytes()).hexdigest() != facts["config"]:
            raise DamagedCheckpoint(f"{file} is damaged: it isn't what was saved.")
        config = resolve(read_toml(file))
        learner = make_learner(config, (facts["mean"], facts["std"]), make_engine(config))
        learner.load_state(State(facts["learner"], tensors))
        learner.network.eval()
        return cls(folder, step, config, learner, facts)

    @property
    def classes(self) -> tuple[str, ...]:
        """All classes in learning order."""
        return self.learner.classes

    @property
    def image_size(self) -> int:
        """The height and width that images are resized to."""
        assert self.config.data.image_size is not None
        return self.config.data.image_size

    @property
    def entry(self) -> HistoryEntry:
        """The step's entry in the model's history."""
        store = Store(self.folder)
        return store.entry(self.step, store.existing())

    def read(self, images: Sequence[PhotoInput]) -> Tensor:
        """Resize and crop images as for training; gives uint8 ``[n, 3, H, W]``.

        Takes paths, Pillow images, and uint8 arrays ``[H, W, 3]`` or ``[H, W]``. Raises
        `UnreadableImage` if a file is damaged or not an image.
        """
        size = self.image_size
        read = list(in_threads(lambda image: centre_crop(_rgb(image, size), size), images))
        return torch.stack(read) if read else torch.empty(0, 3, size, size).byte()

    def scores(self, images: Tensor) -> Tensor:
        """Uncalibrated scores: uint8 ``[n, 3, H, W]`` to float ``[n, classes]``."""
        return self.learner.scores(PixelImages(images), self.means).cpu()

    def probabilities(self, images: Tensor) -> Tensor:
        """Calibrated probabilities: uint8 ``[n, 3, H, W]`` to float ``[n, classes]``."""
        return (self.scores(images) / self.temperature).softmax(1)

    def predict(self, images: Sequence[PhotoInput] | Tensor, top: int = 1) -> list[list[Guess]]:
        """The ``top`` likeliest classes of each image, which is what `read` takes or gives."""
        if top < 1:
            raise ValueError(f"Can't give the {top} likeliest classes; ask for at least 1.")
        pixels = images if isinstance(images, Tensor) else self.read(images)
        values = self.scores(pixels)
        shares = (values / self.temperature).softmax(1)
        # Sort by score: probabilities close to 0 or 1 round to the same number.
        best = values.topk(min(top, len(self.classes)), 1).indices
        chosen = zip(best.tolist(), shares.gather(1, best).tolist(), strict=True)
        return [
            [Guess(self.classes[rank], share) for rank, share in zip(*each, strict=True)]
            for each in chosen
        ]

    def test_images(self) -> Split:
        """The held-out images of all classes, on which accuracy is measured."""
        store = Store(self.folder)
        steps = (load_state(store.path(step) / "kept") for step in store.ancestors(self.step))
        parts = [Split(PixelImages(s.tensors["pixels"]), s.tensors["labels"]) for s in steps]
        return join_splits(parts[::-1])

    @cached_property
    def means(self) -> Tensor | None:
        """The class means ``[classes, D]``, if the method predicts by nearest mean."""
        return self.learner.prediction_means()


def write_state(
    place: Path, learner: Learner, config: Config, facts: dict[str, Any], test: Split
) -> None:
    """Write a state to the folder ``place``; `Model.read_from` reads it.

    ``test`` has the test images that this step adds to those of its ancestors.
    """
    text = as_toml(config)
    write_atomically(place / "config.toml", text)
    save_state(place / "kept", State({}, {**test.images.state(), "labels": test.labels}))
    state = learner.state()
    seal = sha256(text.encode()).hexdigest()
    save_state(
        place / "state", State({**facts, "learner": state.facts, "config": seal}, state.tensors)
    )


def history(folder: Path) -> list[HistoryEntry]:
    """All steps of a model, in the order in which they were made."""
    store = Store(folder)
    pointer = store.existing()
    return [store.entry(step, pointer) for step in range(pointer.steps)]


def undo(folder: Path, to: int | None = None) -> HistoryEntry:
    """Go back to the parent of the current step, or to any other; nothing is deleted."""
    store = Store(folder)
    store.existing()
    with store.locked():
        pointer = store.existing()
        if to is None:
            to = store.facts(pointer.step)["parent"]
        if to is None:
            raise ValueError(
                f"{folder} was taught only once, so there is nothing to go back to; "
                "delete the folder to start over."
            )
        Model.open(folder, to)  # raises if the step is damaged or doesn't exist
        pointer = Pointer(to, pointer.steps)
        store.point(pointer)
        return store.entry(to, pointer)


@dataclass(frozen=True)
class ClassInfo:
    """One class of a model."""

    name: str
    step: int  # that learned it
    exemplars: int  # images kept for replay
    tested: int  # test images
    accuracy: float | None  # on these; None without any


@dataclass(frozen=True)
class ModelInfo:
    """A model's classes, architecture and calibration."""

    entry: HistoryEntry
    method: str
    network: str
    parameters: int
    image_size: int
    exemplars: int  # images kept for replay
    tested: int  # test images
    temperature: float  # scores are divided by it before the softmax
    calibration_error: float | None  # on the test images, to which the temperature was fitted
    uncalibrated_error: float | None  # at a temperature of 1
    bytes: int  # of all steps on disk
    classes: tuple[ClassInfo, ...]  # in learning order


def model_info(folder: Path, step: int | None = None) -> ModelInfo:
    """Describe the current step of a model, or an earlier one."""
    model, store = Model.open(folder, step), Store(folder)
    learned_in = {
        name: number
        for number in store.ancestors(model.step)
        for name in store.facts(number)["update"]["learned"]
    }
    entry, memory = model.entry, model.learner.memory
    counts = torch.bincount(memory.exemplars().labels, minlength=len(model.classes)).tolist()
    classes = tuple(
        ClassInfo(each.name, learned_in[each.name], count, each.tested, each.after)
        for each, count in zip(entry.update.classes, counts, strict=True)
    )
    calibration = model.facts["calibration"]
    return ModelInfo(
        entry,
        model.learner.method.name,
        model.config.network,
        sum(parameter.numel() for parameter in model.learner.network.parameters()),
        model.image_size,
        len(memory),
        sum(each.tested for each in classes),
        model.temperature,
        calibration["error"],
        calibration["error_before"],
        sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        classes,
    )


def _rgb(image: PhotoInput, size: int) -> Image.Image:
    if isinstance(image, Path):
        try:
            return open_rgb(image, size)
        except UnreadableImage as error:
            raise UnreadableImage(f"{str(image)!r} can't be read: {error}.") from error
    if isinstance(image, Image.Image):
        return upright_rgb(image.copy())
    shape, grey = image.shape, image.ndim == 2
    if image.dtype != np.uint8 or not (grey or (image.ndim == 3 and shape[2] in (3, 4))):
        raise ValueError(
            "An image in an array must be uint8 of shape [H, W, 3] or [H, W], not "
            f"{image.dtype} of shape {list(shape)}."
        )
    return upright_rgb(Image.fromarray(image))
