"""A model whose whole network is trained, by one of the methods of `densekd.methods`."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from densekd.config.own_parts import own_references
from densekd.config.schema import Config, as_toml, resolve
from densekd.config.settings_tree import read_toml
from densekd.data.dataset import PixelImages, Split, join_splits
from densekd.files import DamagedFile, read_regular_file, write_atomically
from densekd.model.images import evenly_spaced
from densekd.model.model import Model, ModelOutputs
from densekd.model.pointer import step_ancestors
from densekd.model.store import Store
from densekd.model.trained.settings import LARGEST_IMAGE, MOST_CLASSES
from densekd.nn.registry import is_pretrained, make_backbone
from densekd.nn.transformers_backbone import only_local_files
from densekd.runs.build import make_engine, make_learner
from densekd.training.checkpoint import (
    State,
    load_state,
    save_state,
    sound_content,
)
from densekd.training.engine import Engine, has_accelerator
from densekd.training.inference import cosines
from densekd.training.learner import Learner

_MOST_SETTINGS = 1 << 20  # bytes


class TrainedModel(Model):
    """A model with a learner, which learns more by the method that the model was made with."""

    def __init__(
        self, folder: Path, step: int, facts: dict[str, Any], config: Config, learner: Learner
    ) -> None:
        super().__init__(folder, step, facts)
        self.config, self.learner = config, learner.in_float32()
        assert config.data.image_size is not None
        self.image_size, self.network = config.data.image_size, config.network
        self.method, self.classes = learner.method.name, learner.classes

    @classmethod
    def read_from(cls, folder: Path, step: int, place: Path) -> Self:
        """Read a state that `write_state` wrote to ``place``, even before it is committed."""
        facts, tensors = load_state(place / "state")
        file = place / "config.toml"
        if sha256(read_regular_file(file, _MOST_SETTINGS)).hexdigest() != facts["config"]:
            raise DamagedFile(f"{file} is damaged: it isn't what was saved.")
        config = resolve(read_toml(file))
        _check_limits(file, config, facts["learner"])
        _check_network(file, config.network, tensors)
        with only_local_files():
            learner = make_learner(
                config, (facts["mean"], facts["std"]), make_engine(on_this_computer(config))
            )
        learner.load_state(State(facts["learner"], tensors))
        return cls(folder, step, facts, config, learner)

    def outputs(self, pixels: Tensor) -> ModelOutputs:
        """Scores of images; this model can't tell unknown images, so all count as known."""
        return _all_known(self.learner.scores(PixelImages(pixels), self.means).cpu())

    def prepare(self) -> None:
        """Compute the class means, if the method predicts by them."""
        _ = self.means

    @cached_property
    def means(self) -> Tensor | None:
        """The class means ``[classes, D]``, if the method predicts by nearest mean."""
        return self.learner.prediction_means()

    def stored_images(self, *, tested: bool, most: int | None = None) -> Split:
        """The test images or the exemplars, or ``most`` of them."""
        split = self._test_images() if tested else self.learner.memory.exemplars()
        if most is None or len(split) <= most:
            return split  # not a copy
        return split.take(evenly_spaced(torch.arange(len(split)), most))

    def _test_images(self) -> Split:
        store = Store(self.folder)
        steps = step_ancestors(self.folder, self.step)
        kept = (load_state(store.path(step) / "kept").tensors for step in steps)
        with sound_content(store.path(self.step)):
            parts = [Split(PixelImages(each["pixels"]), each["labels"]) for each in kept]
            return join_splits(parts[::-1])

    def training_counts(self) -> list[int]:
        """The number of exemplars of each class."""
        labels = self.learner.memory.exemplars().labels
        return torch.bincount(labels, minlength=len(self.classes)).tolist()

    def exportable(self) -> tuple[nn.Module, Callable[[Tensor], ModelOutputs]]:
        """The network with its normalisation, in 32 bits on the CPU."""
        learner = _float32_copy(self.learner)
        means = learner.prediction_means()

        def outputs(pixels: Tensor) -> ModelOutputs:
            return _all_known(learner.scores(PixelImages(pixels), means))

        return _Pipeline(learner, means, self.temperature).eval(), outputs

    def parameters(self) -> int:
        """The number of the network's parameters."""
        return sum(parameter.numel() for parameter in self.learner.network.parameters())


def on_this_computer(config: Config) -> Config:
    """The settings, but on the CPU if this computer lacks the model's accelerator."""
    if has_accelerator(config.engine.accelerator):
        return config
    return replace(config, engine=replace(config.engine, accelerator="cpu"))


def _check_limits(file: Path, config: Config, learned: Mapping[str, Any]) -> None:
    """Raise `DamagedFile` if the settings name code, or sizes that would take too much memory."""
    for name in own_references(config).values():
        raise DamagedFile(f"{file} names code, {name}, but a model must open without running any.")
    size, classes = config.data.image_size, learned["classes"]
    if size is None or not 1 <= size <= LARGEST_IMAGE:
        raise DamagedFile(f"{file} has the image size {size}, not one from 1 to {LARGEST_IMAGE}.")
    sizes = learned["sizes"]
    if len(classes) > MOST_CLASSES:
        raise DamagedFile(
            f"{file.parent} has more than {MOST_CLASSES:,} classes, which is too many to read."
        )
    if not all(isinstance(name, str) for name in classes):
        raise DamagedFile(f"{file.parent} has classes without names.")
    if not all(type(each) is int and each > 0 for each in sizes) or sum(sizes) != len(classes):
        raise DamagedFile(
            f"{file.parent} has {len(classes)} classes, but tasks of {sizes} classes."
        )


def _check_network(file: Path, network: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise `DamagedFile`, before it takes memory, if a network is larger than the saved one."""
    if is_pretrained(network):
        return
    with torch.device("meta"):
        draft = make_backbone(network)
    assert isinstance(draft, nn.Module)
    needed = sum(parameter.numel() for parameter in draft.parameters())
    if needed > sum(tensor.numel() for tensor in tensors.values()):
        raise DamagedFile(
            f"{file} names another network, {network}, than the one whose weights were saved."
        )


def _all_known(scores: Tensor) -> ModelOutputs:
    return ModelOutputs(scores, torch.ones_like(scores[:, 0], dtype=torch.bool))


class _Pipeline(nn.Module):
    """Everything from pixels to probabilities; with ``means``, it predicts by nearest mean."""

    means: Tensor | None

    def __init__(self, learner: Learner, means: Tensor | None, temperature: float) -> None:
        super().__init__()
        self.augment = learner.settings.augment
        self.network = learner.network
        self.register_buffer("means", means)
        self.temperature = temperature

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """uint8 ``[n, 3, H, W]`` to probabilities, scores and that all images are known."""
        out = self.network(self.augment.normalise(pixels))
        values = out.logits if self.means is None else cosines(out.features, self.means)
        return (values / self.temperature).softmax(1), *_all_known(values)


def _float32_copy(learner: Learner) -> Learner:
    """A copy on the CPU that computes in 32 bits, whatever precision the model is trained in."""
    copied = copy.copy(learner)
    engine = Engine("cpu", precision="32")
    augment = copy.deepcopy(learner.settings.augment).cpu()
    copied.settings = replace(learner.settings, engine=engine, augment=augment)
    copied.network = copy.deepcopy(learner.network).cpu()
    return copied


def write_state(
    place: Path, learner: Learner, config: Config, facts: dict[str, Any], test: Split
) -> None:
    """Write a state to the folder ``place``; `TrainedModel.read_from` reads it.

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
