"""A model that was opened, to be used."""

from collections.abc import Sequence
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
from densekd.data.dataset import Channels, PixelImages, Split, join_splits
from densekd.data.decode import UnreadableImage, centre_crop, in_threads, open_rgb, upright_rgb
from densekd.files import write_atomically
from densekd.model.records import HistoryEntry
from densekd.model.store import Store, entry_of
from densekd.runs.build import make_engine, make_learner
from densekd.training.checkpoint import DamagedCheckpoint, State, load_state, save_state
from densekd.training.learner import Learner

PhotoInput = Path | Image.Image | NDArray[np.uint8]


class Guess(NamedTuple):
    """A class that an image may show."""

    name: str
    probability: float


class Model:
    """A model in one of its states; `Model.open` gives one.

    Args:
        folder: where the model is.
        step: the number of the state.
        config: its settings.
        learner: what was learned.
        facts: what is written down of the state.
    """

    def __init__(
        self, folder: Path, step: int, config: Config, learner: Learner, facts: dict[str, Any]
    ) -> None:
        self.folder, self.step, self.config, self.learner = folder, step, config, learner
        self.facts = facts
        # What scores are divided by before the softmax, so that probabilities can be trusted.
        self.temperature: float = facts["temperature"]

    @classmethod
    def open(cls, folder: Path, step: int | None = None) -> "Model":
        """The model as it is, or as it was after an earlier step; verified by checksums.

        Whatever another process is doing to the model, this gives the one before or the one after.
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
        """The state that was written to ``place``, whether or not it counts yet."""
        facts, tensors = load_state(place / "state")
        file = place / "config.toml"
        if sha256(file.read_bytes()).hexdigest() != facts["config"]:
            raise DamagedCheckpoint(f"{file} is damaged: it isn't what was saved.")
        config = resolve(read_toml(file))
        learner = empty_learner(config, facts["mean"], facts["std"])
        learner.load_state(State(facts["learner"], tensors))
        learner.network.eval()
        return cls(folder, step, config, learner, facts)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of all classes, in the order in which they were learned."""
        return self.learner.classes

    @property
    def image_size(self) -> int:
        """The height and width that images are brought to."""
        assert self.config.data.image_size is not None
        return self.config.data.image_size

    @property
    def entry(self) -> HistoryEntry:
        """How it came about."""
        return entry_of(self.step, self.facts, Store(self.folder).existing().step == self.step)

    def read(self, images: Sequence[PhotoInput]) -> Tensor:
        """Images as the network was trained on them.

        Args:
            images: paths of files, Pillow's images, or arrays of uint8 ``[H, W, 3]`` or ``[H, W]``.

        Returns:
            uint8 ``[n, 3, H, W]``.

        Raises:
            UnreadableImage: a file isn't an image, or damaged.
        """
        size = self.image_size
        read = list(in_threads(lambda image: centre_crop(_rgb(image, size), size), images))
        return torch.stack(read) if read else torch.empty(0, 3, size, size).byte()

    def scores(self, images: Tensor) -> Tensor:
        """What the method predicts by: uint8 ``[n, 3, H, W]`` to float ``[n, classes]``."""
        return self.learner.scores(PixelImages(images), self.means).cpu()

    def probabilities(self, images: Tensor) -> Tensor:
        """Calibrated, over all classes: uint8 ``[n, 3, H, W]`` to float ``[n, classes]``."""
        return (self.scores(images) / self.temperature).softmax(1)

    def predict(self, images: Sequence[PhotoInput] | Tensor, top: int = 1) -> list[list[Guess]]:
        """For each image the ``top`` likeliest classes, the likeliest first.

        Args:
            images: as `read` takes or gives them.
            top: how many, all of them if there are fewer.
        """
        if top < 1:
            raise ValueError(f"Can't give the {top} likeliest classes; ask for at least 1.")
        pixels = images if isinstance(images, Tensor) else self.read(images)
        values = self.scores(pixels)
        shares = (values / self.temperature).softmax(1)
        # By the scores, since probabilities that are nearly 0 or 1 round to the same number.
        best = values.topk(min(top, len(self.classes)), 1).indices
        chosen = zip(best.tolist(), shares.gather(1, best).tolist(), strict=True)
        return [
            [Guess(self.classes[rank], share) for rank, share in zip(*each, strict=True)]
            for each in chosen
        ]

    def kept(self) -> Split:
        """The images that all classes are tested on, which were never learned from."""
        store = Store(self.folder)
        held = (load_state(store.path(step) / "kept").tensors for step in store.line(self.step))
        parts = [Split(PixelImages(each["pixels"]), each["labels"]) for each in held]
        return join_splits(parts[::-1])

    @cached_property
    def means(self) -> Tensor | None:
        """The class means ``[classes, D]`` if it predicts by them."""
        return self.learner.means_to_predict_by()


def write_state(
    place: Path, learner: Learner, config: Config, facts: dict[str, Any], kept: Split
) -> None:
    """Write a state to a folder, as `Model.read_from` reads it.

    Args:
        place: the folder.
        learner: what was learned.
        config: its settings.
        facts: what else is to be written down.
        kept: images to test on, beyond those of the state that it was made from.
    """
    text = as_toml(config)
    write_atomically(place / "config.toml", text)
    save_state(place / "kept", State({}, {**kept.images.state(), "labels": kept.labels}))
    state = learner.state()
    seal = sha256(text.encode()).hexdigest()
    save_state(
        place / "state", State({**facts, "learner": state.facts, "config": seal}, state.tensors)
    )


def empty_learner(config: Config, mean: Channels, std: Channels) -> Learner:
    """A learner that has learned nothing yet."""
    return make_learner(config, (mean, std), make_engine(config))


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
