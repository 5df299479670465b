"""What the studies of frozen features share: the features, computed once, and draws of photos."""

import argparse
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from densekd.data.folder import ClassFiles, find_images
from densekd.data.stratify import first_of_each
from densekd.model.frozen.backbone import FrozenBackbone, pretrained_backbone
from densekd.model.frozen.model import FrozenModel

SIZE, BATCH = 224, 64
CIFAR_TRAIN, CIFAR_TEST, NOISE = 40, 10, 100  # images of each class or kind

Crops = Iterator[tuple[Tensor, int]]  # uint8 [3, 224, 224] and a label


class Photos(NamedTuple):
    """Features of length 1 of some photos, ``[n, 1280]``, and their labels, int64 ``[n]``."""

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


def run_studies(studies: Mapping[str, Callable[[dict[str, Photos], int], None]]) -> None:
    """Carry out the studies that the command line asks for: all, unless it names one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, help="has clothing/ and cifar-100-python/")
    parser.add_argument("cache", type=Path, help="the features are kept here")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--only", choices=studies)
    given = parser.parse_args()
    photos = all_photos(given.data, given.cache)
    for name, study in studies.items():
        if given.only in (None, name):
            print(f"\n### {name}")
            study(photos, given.seeds)


def all_photos(data_dir: Path, cache: Path) -> dict[str, Photos]:
    """Read the features of all sets from ``cache``, and compute those that are missing.

    Args:
        data_dir: has ``clothing`` (``train`` and ``test`` with class folders) and CIFAR-100.
        cache: a folder for the features in half precision, a file for each set.
    """
    backbone = pretrained_backbone("lite0")
    cifar, digits = load_cifar("cifar100", data_dir, download=False), load_digits()
    clothing = data_dir / "clothing"
    train, test = (find_images(clothing).parts[part] for part in ("train", "test"))
    sets: dict[str, Crops] = {
        "clothing train": _files(train),
        "clothing mirrored": ((crop.flip(-1), label) for crop, label in _files(train)),
        "clothing test": _files(test),
        "digits": crops_of(digits.test),
        "noise": _noise(),
        "cifar test": crops_of(first_of_each(cifar.test, CIFAR_TEST)),
        "cifar train": crops_of(first_of_each(cifar.train, CIFAR_TRAIN)),
    }
    cache.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, crops in sets.items():
        file = cache / f"{name.replace(' ', '-')}.safetensors"
        if not file.is_file():
            save_file(compute_features(backbone, name, crops), file)
        tensors = load_file(file)
        found[name] = Photos(tensors["features"].float(), tensors["labels"])
    return found


def print_table(columns: Sequence[str], rows: dict[str, list[str]]) -> None:
    print(f"\n| {' | '.join(['', *columns])} |\n{'|---' * (len(columns) + 1)}|")
    for name, cells in rows.items():
        print(f"| {' | '.join([name, *cells])} |", flush=True)


def compute_features(backbone: FrozenBackbone, name: str, crops: Crops) -> dict[str, Tensor]:
    features, labels = [], list[int]()
    shown = track(crops, name, console=Console(stderr=True))
    while batch := list(itertools.islice(shown, BATCH)):
        features.append(backbone.features(torch.stack([crop for crop, _ in batch])))
        labels += [label for _, label in batch]
    return {"features": torch.cat(features).half(), "labels": torch.tensor(labels)}


def _files(classes: ClassFiles) -> Crops:
    for label, name in enumerate(sorted(classes)):
        for file in classes[name]:
            yield _crop(open_rgb(file, SIZE)), label


def crops_of(split: Split) -> Crops:
    assert isinstance(split.images, PixelImages)
    for pixels, label in zip(split.images.pixels, split.labels.tolist(), strict=True):
        yield _crop(Image.fromarray(pixels.permute(1, 2, 0).numpy())), label


def _noise() -> Crops:
    """Noise of single pixels, of 8 x 8 blurred patches, and plain colours."""
    generator = np.random.default_rng(0)
    for kind, side in enumerate((SIZE, 8, 1)):
        for _ in range(NOISE):
            pixels = generator.integers(0, 256, (side, side, 3), dtype=np.uint8)
            yield _crop(Image.fromarray(pixels)), kind


def _crop(image: Image.Image) -> Tensor:
    return centre_crop(image, SIZE, FrozenModel.resample)
