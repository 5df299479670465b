"""A model on a frozen pretrained backbone: only a linear head is fitted, to stored features."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from PIL import Image
from torch import Tensor, nn

from densekd.data.dataset import PixelImages, Split
from densekd.data.decode import centre_crop, in_threads
from densekd.files import DamagedFile
from densekd.model.frozen.backbone import FrozenBackbone, load_backbone
from densekd.model.frozen.head import LinearHead
from densekd.model.frozen.photos import Photos, join_photos, load_photos, open_kept
from densekd.model.frozen.unknown import REFUSED, UnknownRule
from densekd.model.images import evenly_spaced
from densekd.model.model import Model, ModelOutputs
from densekd.model.store import FROZEN, Store
from densekd.training.checkpoint import (
    State,
    load_state,
    save_state,
    sound_content,
)

# The evaluation head's name in stored states.
_EVALUATION_HEAD = "tested_head"


class FrozenModel(Model):
    """A backbone, a head for the classes so far, and the features of every photo it was taught.

    The features are stored with the step that added them. The state has the label of each photo,
    so that classes can be renamed, merged and forgotten without touching features.
    """

    resample = Image.Resampling.BICUBIC  # as the backbones were trained

    def __init__(
        self,
        folder: Path,
        step: int,
        facts: dict[str, Any],
        tensors: dict[str, Tensor],
        backbone: FrozenBackbone,
    ) -> None:
        super().__init__(folder, step, facts)
        self.backbone, self.tensors = backbone, tensors
        self.image_size, self.network = backbone.size, backbone.network
        self.method, self.classes = FROZEN, tuple(facts["classes"])
        # The first is fitted to all photos, the second only to those that aren't held out.
        self.head, self.evaluation_head = (
            LinearHead(*(tensors[f"{name}.{key}"] for key in LinearHead._fields))
            for name in ("head", _EVALUATION_HEAD)
        )
        self.labels = tensors["labels"]  # of all photos; -1 for those that were removed
        self.unknown = UnknownRule(*(tensors[f"unknown.{name}"] for name in UnknownRule._fields))
        # The largest share of photos of known classes to call unknown.
        self.refused = REFUSED

    @classmethod
    def read_from(cls, folder: Path, step: int, place: Path) -> Self:
        """Read what `write_frozen_state` wrote to ``place``, even before it is committed."""
        facts, tensors = load_state(place / "state")
        if not facts["classes"]:
            raise ValueError(
                f"Step {step} of {folder} has no class left, since all of its photos were erased; "
                f"`densekd undo {folder} --to N` goes to another."
            )
        origin = facts["backbone"]
        at = place if origin == step else Store(folder).path(origin)
        model = cls(folder, step, facts, tensors, load_backbone(at / "backbone"))
        model.check_content(place)
        return model

    def check_content(self, place: Path) -> None:
        """Raise `DamagedFile` unless names, numbers and shapes fit; a checksum can't tell that."""
        names, tensors = self.classes, self.tensors
        count, width = len(names), self.backbone.width
        shapes = {
            "head.weight": (count, width),
            "head.bias": (count,),
            f"{_EVALUATION_HEAD}.weight": (count, width),
            f"{_EVALUATION_HEAD}.bias": (count,),
            "unknown.means": (count, width),
            "unknown.cosine_weight": (),
            "unknown.scores": (tensors["unknown.scores"].numel(),),
            "labels": (self.labels.numel(),),
        }
        if (
            any(tensors[name].shape != shape for name, shape in shapes.items())
            or any(tensors[name].dtype != torch.float32 for name in shapes if name != "labels")
            or self.labels.dtype != torch.int64
            or bool((self.labels.ge(count) | self.labels.lt(-1)).any())
            or len({*names}) < count
            or not all(isinstance(name, str) for name in names)
        ):
            raise DamagedFile(
                f"{place} has the right checksum, but its names, numbers or shapes don't fit."
            )

    def outputs(self, pixels: Tensor) -> ModelOutputs:
        """Scores of images, and whether they look like anything that was taught."""
        features = self.backbone.features(pixels)
        scores = self.head.scores(features)
        familiar = self.unknown.familiarity(features, scores)
        return ModelOutputs(scores, familiar >= self.unknown.threshold(self.refused))

    @cached_property
    def photos(self) -> Photos:
        """All photos of the steps that this one builds on, even those that were removed."""
        store = Store(self.folder)
        place = store.path(self.step)
        try:
            with sound_content(place):
                parts = [load_photos(store.path(step) / "photos") for step in self.facts["photos"]]
                photos = join_photos(parts)
            if photos.features.shape != (len(self.labels), self.backbone.width):
                raise DamagedFile(f"The photos of {place} aren't those of its labels.")
        except (DamagedFile, FileNotFoundError) as error:
            raise store.damaged_error(error) from error
        return photos

    @property
    def taught(self) -> set[tuple[str, bytes]]:
        """The class and the hash of each photo that it was taught, except removed ones."""
        rows = zip(self.photos.hashes.numpy(), self.labels.tolist(), strict=True)
        return {(self.classes[rank], row.tobytes()) for row, rank in rows if rank >= 0}

    @property
    def tested(self) -> Tensor:
        """Whether each photo is used for testing instead of training, bool ``[n]``."""
        return is_tested(self.photos.test, self.labels)

    def stored_images(self, *, tested: bool, most: int | None = None) -> Split:
        """The kept images, or ``most`` of them, decoded: the held-out ones, or the others."""
        kept = self.photos.kept & (self.labels >= 0) & (self.tested == tested)
        places = evenly_spaced(kept.nonzero().flatten(), most)
        pixels = self.crops([self.photos.jpegs[place] for place in places.tolist()])
        return Split(PixelImages(pixels), self.labels[places])

    def training_counts(self) -> list[int]:
        """The number of training photos of each class, without those held out."""
        used = self.labels[(self.labels >= 0) & ~self.tested]
        return torch.bincount(used, minlength=len(self.classes)).tolist()

    def exportable(self) -> tuple[nn.Module, Callable[[Tensor], ModelOutputs]]:
        """Everything from pixels to probabilities as one module, and the model's `outputs`."""
        return _Pipeline(self).eval(), self.outputs

    def evaluation_weights(self) -> dict[str, Tensor]:
        """The head that was fitted without the test images."""
        return _head_buffers(self.evaluation_head)

    def refused_share(self) -> float | None:
        """The share of photos that it calls unknown when fitted without them."""
        scores = self.unknown.scores
        threshold = self.unknown.threshold(self.refused)
        return None if math.isinf(threshold) else float((scores < threshold).double().mean())

    def parameters(self) -> int:
        """The number of parameters of backbone and head."""
        own = sum(parameter.numel() for parameter in self.backbone.parameters())
        return own + self.head.weight.numel() + self.head.bias.numel()

    def crops(self, jpegs: Sequence[bytes]) -> Tensor:
        """The crops of kept images, uint8 ``[n, 3, H, W]``."""
        size = self.image_size
        crops = [*in_threads(lambda jpeg: centre_crop(open_kept(jpeg), size, self.resample), jpegs)]
        return torch.stack(crops) if crops else torch.empty(0, 3, size, size, dtype=torch.uint8)


def is_tested(test: Tensor, labels: Tensor) -> Tensor:
    """Whether each photo is used for testing instead of training, bool ``[n]``.

    If a class has only test photos left, they are used for training.

    Args:
        test: whether each photo was chosen for testing.
        labels: of the photos; -1 for those that were removed.
    """
    return test & (labels >= 0) & torch.isin(labels, labels[~test])


class _Pipeline(nn.Module):
    """Everything from pixels to probabilities."""

    weight: Tensor
    bias: Tensor
    means: Tensor

    def __init__(self, model: FrozenModel) -> None:
        super().__init__()
        self.backbone, self.temperature = copy.deepcopy(model.backbone).cpu(), model.temperature
        self.cosine_weight = float(model.unknown.cosine_weight)
        self.threshold = model.unknown.threshold(model.refused)
        for name, value in (*_head_buffers(model.head).items(), ("means", model.unknown.means.T)):
            self.register_buffer(name, value.contiguous())

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """uint8 ``[n, 3, H, W]`` to probabilities, scores and whether images are known."""
        features = self.backbone(pixels)
        values = features @ self.weight + self.bias
        # Same as `UnknownRule`, but the means are already transposed.
        familiar = values.amax(1) + self.cosine_weight * (features @ self.means).amax(1)
        return (values / self.temperature).softmax(1), values, familiar >= self.threshold


def _head_buffers(head: LinearHead) -> dict[str, Tensor]:
    """A head's buffers in the pipeline, transposed so that the exporter keeps them as they are."""
    return {"weight": head.weight.T.contiguous(), "bias": head.bias}


class FittedHeads(NamedTuple):
    """Everything that is fitted to the features of a state."""

    head: LinearHead  # fitted to all photos
    evaluation_head: LinearHead  # fitted without those held out
    unknown: UnknownRule


def write_frozen_state(
    place: Path, facts: dict[str, Any], labels: Tensor, fitted: FittedHeads
) -> None:
    """Write a state to the folder ``place``; `FrozenModel.read_from` reads it."""
    tensors = {"labels": labels}
    parts: dict[str, LinearHead | UnknownRule] = {
        "head": fitted.head,
        _EVALUATION_HEAD: fitted.evaluation_head,
        "unknown": fitted.unknown,
    }
    for name, part in parts.items():
        tensors |= {f"{name}.{key}": tensor for key, tensor in part._asdict().items()}
    save_state(place / "state", State({"kind": FROZEN, **facts}, tensors))
