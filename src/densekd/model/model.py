"""A model that was taught: open it, predict, describe it, list its history, undo updates."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from densekd.data.dataset import Split
from densekd.data.decode import UnreadableImage, centre_crop, in_threads, open_rgb, upright_rgb
from densekd.files import DamagedFile, expand_home
from densekd.model.pointer import Pointer, step_ancestors, warn_once, write_pointer
from densekd.model.store import FROZEN, HistoryEntry, Store
from densekd.training.checkpoint import load_facts, sound_content

PhotoInput = Path | bytes | Image.Image | NDArray[np.uint8]


class Guess(NamedTuple):
    """A class that an image may show."""

    name: str
    probability: float


class Prediction(list[Guess]):
    """The likeliest classes of an image, best first.

    ``known`` is False if the image looks like nothing that the model was taught.
    """

    def __init__(self, guesses: Iterable[Guess], known: bool = True) -> None:
        super().__init__(guesses)
        self.known = known

    @property
    def name(self) -> str | None:
        """The likeliest class; None if the image looks like nothing that was taught."""
        return self[0].name if self.known else None


class ModelOutputs(NamedTuple):
    """The outputs of a model for a batch of images."""

    scores: Tensor  # uncalibrated, float [n, classes]
    known: Tensor  # whether each image looks like something that was taught, bool [n]


class Model(ABC):
    """One step of a model that was taught; open it with `Model.open`.

    ``facts`` is the record of the step.

    Example:
        >>> import densekd
        >>> from PIL import Image
        >>> for name, colour in {"sky": "blue", "grass": "green"}.items():
        ...     folder = Path("photos", name)
        ...     folder.mkdir(parents=True)
        ...     for number in range(5):
        ...         Image.new("RGB", (40, 40 + number), colour).save(folder / f"{number}.png")
        >>> update = densekd.teach("nature.model", "photos", quiet=True)
        >>> model = densekd.Model.open("nature.model")
        >>> model.predict([Path("photos/sky/0.png")])[0].name
        'sky'
    """

    classes: tuple[str, ...]  # in learning order
    image_size: int  # the height and width that images are resized to
    network: str
    method: str
    resample = Image.Resampling.BILINEAR
    refused = 0.0  # the largest share of images of known classes to call unknown

    def __init__(self, folder: Path, step: int, facts: dict[str, Any]) -> None:
        self.folder, self.step, self.facts = folder, step, facts
        # Dividing the scores by it before the softmax calibrates the probabilities.
        self.temperature: float = facts["temperature"]
        if type(self.temperature) is not float or not 0 < self.temperature < math.inf:
            raise TypeError(f"{self.temperature!r} can't be a temperature")

    @classmethod
    def open(cls, folder: Path | str, step: int | None = None) -> Self:
        """Open the current step or another one, verified by checksums.

        Raises ValueError if the step doesn't exist or is damaged. While another process updates the
        model, this opens the state before or after the update.
        """
        folder = expand_home(folder)
        store = Store(folder)
        pointer = store.require_pointer()
        step = pointer.step if step is None else step
        if not 0 <= step < pointer.steps:
            raise ValueError(
                f"{folder} has no step {step}; its steps are 0 to {pointer.steps - 1}, which "
                f"`densekd history {folder}` lists."
            )
        try:
            model = read_model(folder, step, store.path(step))
        except (DamagedFile, FileNotFoundError) as error:
            raise ValueError(
                f"Step {step} of {folder} can't be opened ({error}); `densekd undo {folder} "
                f"--to N` goes back to another, and `densekd check {folder}` says what is damaged."
            ) from error
        if not isinstance(model, cls):
            raise ValueError(f"{folder} is a {type(model).__name__}, not a {cls.__name__}.")
        return model

    @property
    def entry(self) -> HistoryEntry:
        """The step's entry in the model's history."""
        store = Store(self.folder)
        return store.entry(self.step, store.require_pointer())

    def crop(self, image: PhotoInput) -> Tensor:
        """Resize and crop one image as for training; gives uint8 ``[3, H, W]``."""
        return centre_crop(_rgb(image, self.image_size), self.image_size, self.resample)

    def read(self, images: Sequence[PhotoInput]) -> Tensor:
        """Resize and crop images as for training; gives uint8 ``[n, 3, H, W]``.

        Takes paths, contents of files, Pillow images, and uint8 arrays ``[H, W]`` (grey),
        ``[H, W, 3]`` (RGB) or ``[H, W, 4]`` (RGBA).
        Raises `UnreadableImage` if a file is damaged or not an image.
        """
        # The rows of a single image would be read as grey images.
        if isinstance(images, np.ndarray) and images.ndim == 3 and images.shape[2] in (3, 4):
            raise ValueError("This array looks like one image; give a list of images: [image].")
        read = list(in_threads(self._named_crop, images))
        return torch.stack(read) if read else torch.empty(0, 3, *2 * [self.image_size]).byte()

    def _named_crop(self, image: PhotoInput) -> Tensor:
        try:
            return self.crop(image)
        except UnreadableImage as error:
            name = f"{str(image)!r} can't be read: " if isinstance(image, Path) else ""
            raise UnreadableImage(f"{name}{error}.") from error

    @abstractmethod
    def outputs(self, pixels: Tensor) -> ModelOutputs:
        """Scores of images, uint8 ``[n, 3, H, W]``, and whether each is known."""

    def prepare(self) -> None:  # noqa: B027 - most models have nothing to prepare
        """Compute what all predictions share; call it before several threads predict."""

    def scores(self, pixels: Tensor) -> Tensor:
        """Uncalibrated scores: uint8 ``[n, 3, H, W]`` to float ``[n, classes]``."""
        return self.outputs(pixels).scores

    def probabilities(self, pixels: Tensor) -> Tensor:
        """Calibrated probabilities: uint8 ``[n, 3, H, W]`` to float ``[n, classes]``."""
        return (self.scores(pixels) / self.temperature).softmax(1)

    def predict(self, images: Sequence[PhotoInput] | Tensor, top: int = 1) -> list[Prediction]:
        """The ``top`` likeliest classes of each image; takes what `read` takes, or its result."""
        if top < 1:
            raise ValueError(f"Can't give the {top} likeliest classes; ask for at least 1.")
        values, known = self.outputs(images if isinstance(images, Tensor) else self.read(images))
        shares = (values / self.temperature).softmax(1)
        # Sort by score: probabilities close to 0 or 1 round to the same number.
        best = values.topk(min(top, len(self.classes)), 1).indices
        chosen = zip(best.tolist(), shares.gather(1, best).tolist(), known.tolist(), strict=True)
        return [
            Prediction([Guess(self.classes[r], p) for r, p in zip(ranks, own, strict=True)], sure)
            for ranks, own, sure in chosen
        ]

    @abstractmethod
    def stored_images(self, *, tested: bool, most: int | None = None) -> Split:
        """The kept images, or ``most`` of them, spread evenly.

        Either those held out to measure accuracy on, or the others.
        """

    @abstractmethod
    def training_counts(self) -> list[int]:
        """The number of images of each class that the model keeps to learn from."""

    @abstractmethod
    def exportable(self) -> tuple[nn.Module, Callable[[Tensor], ModelOutputs]]:
        """The whole model for export, and a function that gives the outputs to expect of it.

        The module takes uint8 ``[n, 3, H, W]`` and gives probabilities and scores, both
        ``[n, classes]``, and whether each image looks like something that was taught, bool ``[n]``.
        """

    def evaluation_weights(self) -> dict[str, Tensor]:
        """The exported head's buffers as fitted without test images; empty without such a head."""
        return {}

    def refused_share(self) -> float | None:
        """The share of known-class images that it calls unknown; None without a threshold."""
        return None

    @abstractmethod
    def parameters(self) -> int:
        """The number of parameters."""


def read_model(folder: Path, step: int, place: Path) -> Model:
    """Read a model of either kind from the step in ``place``, even before it is committed."""
    with sound_content(place):
        if load_facts(place / "state").get("kind") == FROZEN:
            from densekd.model.frozen.model import FrozenModel

            return FrozenModel.read_from(folder, step, place)
        # Imported only here, because the engine for training takes seconds to import.
        from densekd.model.trained.model import TrainedModel

        return TrainedModel.read_from(folder, step, place)


def history(folder: Path) -> list[HistoryEntry]:
    """All steps of a model, oldest first; logs a warning about missing ones."""
    store = Store(folder)
    pointer = store.require_pointer()
    steps = store.steps(pointer)
    gone = [str(step) for step in range(pointer.steps) if step not in steps]
    if gone:
        which = f"Step {gone[0]} is" if len(gone) == 1 else f"Steps {', '.join(gone)} are"
        warn_once(f"{which} missing or set aside; `densekd check {folder}` says more.")
    return [store.entry(step, pointer) for step in steps]


def undo(folder: Path, to: int | None = None) -> HistoryEntry:
    """Go back to the current step's parent, or to the step ``to``; nothing is deleted."""
    store = Store(folder)
    store.require_pointer()
    with store.locked():
        pointer = store.require_pointer()
        if to is None:
            to = store.entry(pointer.step, pointer).parent
        if to is None:
            raise ValueError(
                f"Step {pointer.step} of {folder} is a first step, so there is nothing to go back "
                f"to; `densekd history {folder}` lists the steps to choose from with --to, and "
                "`densekd learn NEW_MODEL FOLDER` starts over."
            )
        Model.open(folder, to)  # raises if the step is damaged or doesn't exist
        pointer = Pointer(to, pointer.steps)
        write_pointer(folder, pointer)
        return store.entry(to, pointer)


@dataclass(frozen=True)
class ClassInfo:
    """One class of a model."""

    name: str
    step: int  # the step that learned it
    exemplars: int  # images, or their features, that the model keeps to learn from
    tested: int  # test images
    accuracy: float | None  # on the test images; None without any


@dataclass(frozen=True)
class ModelInfo:
    """A model's classes, architecture and calibration."""

    entry: HistoryEntry
    method: str
    network: str
    parameters: int
    image_size: int
    exemplars: int  # images, or their features, that the model keeps to learn from
    tested: int  # test images
    temperature: float  # scores are divided by it before the softmax
    calibration_error: float | None  # on the images to which the temperature was fitted
    uncalibrated_error: float | None  # at a temperature of 1
    refused: float | None  # as `Model.refused_share` gives it
    bytes: int  # of all steps on disk
    classes: tuple[ClassInfo, ...]  # in learning order


def model_info(folder: Path, step: int | None = None) -> ModelInfo:
    """Describe the current step of a model, or another one."""
    model, store = Model.open(folder, step), Store(folder)
    with sound_content(store.path(model.step)):
        return _describe(model, store)


def _describe(model: Model, store: Store) -> ModelInfo:
    learned_in = model.facts.get("learned_in") or {
        name: number
        for number in step_ancestors(model.folder, model.step)
        for name in store.facts(number)["update"]["learned"]
    }
    entry, counts = model.entry, model.training_counts()
    classes = tuple(
        ClassInfo(each.name, int(learned_in[each.name]), count, each.tested, each.after)
        for each, count in zip(entry.update.classes, counts, strict=True)
    )
    errors = [model.facts["calibration"][key] for key in ("error", "error_before")]
    error, error_before = (None if each is None else float(each) for each in errors)
    return ModelInfo(
        entry,
        model.method,
        model.network,
        model.parameters(),
        model.image_size,
        sum(counts),
        sum(each.tested for each in classes),
        model.temperature,
        error,
        error_before,
        model.refused_share(),
        sum(file.stat().st_size for file in (model.folder / "steps").rglob("*") if file.is_file()),
        classes,
    )


def _rgb(image: PhotoInput, size: int) -> Image.Image:
    if isinstance(image, Path | bytes):
        return open_rgb(image, size)
    if isinstance(image, Image.Image):
        return upright_rgb(image.copy())
    shape, grey = image.shape, image.ndim == 2
    if image.dtype != np.uint8 or not (grey or (image.ndim == 3 and shape[2] in (3, 4))):
        raise ValueError(
            "An image in an array must be uint8 of shape [H, W], [H, W, 3] or [H, W, 4], not "
            f"{image.dtype} of shape {list(shape)}."
        )
    return upright_rgb(Image.fromarray(image))
