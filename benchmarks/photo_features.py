"""What the studies of frozen features share: the features, computed once, and draws of photos."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import track
from safetensors.torch import load_file, save_file
from torch import Tensor

from densekd.data.cifar import load_cifar
from densekd.data.dataset import PixelImages, Split
from densekd.data.decode import centre_crop, open_rgb
from densekd.data.digits_npz import load_digits
from densekd.data.folder import find_images
from densekd.data.stratify import first_of_each
from densekd.nn.efficientnet_lite import EfficientNetLite, efficientnet_lite

BATCH = 8  # the activations of more images leave a processor's cache
CIFAR_TRAIN, CIFAR_TEST, NOISE = 40, 10, 100  # images of each class or kind

Crops = Iterator[tuple[Tensor, int]]  # uint8 [3, size, size] and a label


class Photos(NamedTuple):
    """The features of some photos, ``[n, 1280]``, and their labels, int64 ``[n]``."""

    x: Tensor
    labels: Tensor

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1

    def take(self, index: Tensor) -> "Photos":
        return Photos(self.x[index], self.labels[index])

    def of(self, classes: Sequence[int]) -> "Photos":
        """Return the photos of some classes, whose labels then count from 0 in this order."""
        rank = torch.full((self.classes,), -1)
        rank[torch.tensor(classes)] = torch.arange(len(classes))
        kept = torch.nonzero(rank[self.labels] >= 0).flatten()
        return Photos(self.x[kept], rank[self.labels[kept]])

    def draw(self, counts: Sequence[int], seed: int) -> tuple["Photos", "Photos"]:
        """Divide the photos: so many of each class at random, and all others."""
        generator, chosen = torch.Generator().manual_seed(seed), list[Tensor]()
        for label, count in enumerate(counts):
            own = torch.nonzero(self.labels == label).flatten()
            chosen.append(own[torch.randperm(len(own), generator=generator)[:count]])
        rest = torch.ones(len(self.labels), dtype=torch.bool)
        rest[torch.cat(chosen)] = False
        return self.take(torch.cat(chosen)), self.take(torch.nonzero(rest).flatten())


def join(parts: Iterable[Photos]) -> Photos:
    xs, labels = zip(*parts, strict=True)
    return Photos(torch.cat(xs), torch.cat(labels))


def all_photos(data_dir: Path, cache: Path) -> dict[str, Photos]:
    """Read the features of all sets from ``cache``, and compute those that are missing.

    Args:
        data_dir: has ``clothing`` (``train`` and ``test`` with class folders) and CIFAR-100.
        cache: a folder for the features in half precision, a file for each set.
    """
    network = efficientnet_lite("lite0")
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    cifar, digits = load_cifar("cifar100", data_dir, download=False), load_digits()
    clothing = data_dir / "clothing"
    sets: dict[str, Callable[[int], Crops]] = {
        "clothing train": lambda size: _files(clothing, "train", size),
        "clothing mirrored": lambda size: (
            (crop.flip(-1), label) for crop, label in _files(clothing, "train", size)
        ),
        "clothing test": lambda size: _files(clothing, "test", size),
        "digits": lambda size: _pixels(digits.test, size),
        "noise": _noise,
        "cifar test": lambda size: _pixels(first_of_each(cifar.test, CIFAR_TEST), size),
        "cifar train": lambda size: _pixels(first_of_each(cifar.train, CIFAR_TRAIN), size),
    }
    cache.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, crops in sets.items():
        file = cache / f"{name.replace(' ', '-')}.safetensors"
        if not file.is_file():
            save_file(_compute(network, name, crops), file)
        tensors = load_file(file)
        found[name] = Photos(tensors["features"].float(), tensors["labels"])
    return found


def print_table(title: str, columns: Sequence[str], rows: dict[str, list[str]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(['', *columns])} |\n{'|---' * (len(columns) + 1)}|")
    for name, cells in rows.items():
        print(f"| {' | '.join([name, *cells])} |", flush=True)


def _compute(
    network: EfficientNetLite, name: str, crops: Callable[[int], Crops]
) -> dict[str, Tensor]:
    size, mean, std = network.preprocessing
    assert size is not None
    assert mean is not None
    assert std is not None
    shift, scale = (torch.tensor(x).view(3, 1, 1) for x in (mean, std))
    features, labels, batch = [], [], list[Tensor]()

    def forward() -> None:
        images = (torch.stack(batch).float() / 255 - shift) / scale
        with torch.inference_mode():
            features.append(network(images.contiguous(memory_format=torch.channels_last)).pooled)
        batch.clear()

    for crop, label in track(crops(size[0]), name, console=Console(stderr=True)):
        batch.append(crop)
        labels.append(label)
        if len(batch) == BATCH:
            forward()
    if batch:
        forward()
    return {"features": torch.cat(features).half(), "labels": torch.tensor(labels)}


def _files(folder: Path, part: str, size: int) -> Crops:
    classes = find_images(folder).parts[part]
    for label, name in enumerate(sorted(classes)):
        for file in classes[name]:
            yield centre_crop(open_rgb(file, size), size), label


def _pixels(split: Split, size: int) -> Crops:
    assert isinstance(split.images, PixelImages)
    for pixels, label in zip(split.images.pixels, split.labels.tolist(), strict=True):
        yield centre_crop(Image.fromarray(pixels.permute(1, 2, 0).numpy()), size), label


def _noise(size: int) -> Crops:
    """Noise of single pixels, of 8 x 8 blurred patches, and plain colours."""
    generator = np.random.default_rng(0)
    for kind, side in enumerate((size, 8, 1)):
        for _ in range(NOISE):
            pixels = generator.integers(0, 256, (side, side, 3), dtype=np.uint8)
            yield centre_crop(Image.fromarray(pixels), size), kind
