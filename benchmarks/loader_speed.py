"""Measure how fast training images are read: packed, from files, and by a plain Pillow pipeline.

The photos are like ImageNet's: 500 x 375 pixels and about 110 kB, enlarged (bicubic) from those of
a folder and cut to that shape, each encoded at the JPEG quality that comes nearest to 110 kB. All
ways make training crops of 224 x 224 pixels in batches, normalised, and take turns within each
round. The plain pipeline decodes the whole image, crops, resizes, flips, converts to float and
normalises, image by image.

Prints medians over rounds of processor time on one core, and the ratios within a round. The loop is
`Learner.learn` with a network that does nothing, on the packed images.

--workers measures, by the clock, two processes of the loader against one, on two idle cores. Each
packed photo is read 32 times in an epoch then. The device is torch's `meta`, on which flipping and
normalising cost nothing, as on a GPU: on the CPU they would take part of the two cores.

    python benchmarks/loader_speed.py FOLDER [--count 256] [--rounds 5] [--workers]
"""

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from common import seconds
from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from densekd.data.augment import Augment
from densekd.data.batches import Batches
from densekd.data.crops import draw_box
from densekd.data.dataset import IMAGENET_MEAN, IMAGENET_STD, Split
from densekd.data.folder import find_images
from densekd.data.folder_images import load_folder
from densekd.data.pack import PackOptions, pack
from densekd.data.packed import load_packed
from densekd.data.scenario import Task
from densekd.seeds import Seeds
from densekd.training.engine import Engine
from densekd.training.learner import Learner, Settings

BATCH, SIZE, WIDTH, HEIGHT, BYTES = 128, 224, 500, 375, 110_000
REPEATED = 32
AUGMENT = Augment(IMAGENET_MEAN, IMAGENET_STD, crop="resized")


class Nothing(nn.Module):
    """A network that costs nothing: the upper left pixel."""

    def forward(self, images: Tensor) -> Tensor:
        return images[:, :, 0, 0]


def make_photos(source: Path, target: Path, count: int) -> None:
    classes = find_images(source).table().paths
    chosen = classes[:: max(1, len(classes) // count)][:count]
    for i, file in enumerate(track(chosen, "making photos")):
        image = Image.open(file).convert("RGB")
        scale = max(WIDTH / image.width, HEIGHT / image.height)
        left, top = (image.width - WIDTH / scale) / 2, (image.height - HEIGHT / scale) / 2
        box = (left, top, left + WIDTH / scale, top + HEIGHT / scale)
        photo = image.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC, box=box)
        folder = target / ("train" if i % 8 else "val") / "photo"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:04}.jpg").write_bytes(encode(photo))


def encode(photo: Image.Image) -> bytes:
    low, high, best = 1, 100, b""
    while low <= high:
        out, quality = io.BytesIO(), (low + high) // 2
        photo.save(out, "JPEG", quality=quality)
        if abs(len(out.getvalue()) - BYTES) < abs(len(best) - BYTES):
            best = out.getvalue()
        low, high = (quality + 1, high) if len(out.getvalue()) < BYTES else (low, quality - 1)
    return best


def plain(files: list[Path], random: np.random.Generator) -> Iterator[Tensor]:
    """The usual pipeline, one image at a time."""
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (IMAGENET_MEAN, IMAGENET_STD))
    for start in range(0, len(files), BATCH):
        ready = []
        for file in files[start : start + BATCH]:
            image = Image.open(file).convert("RGB")
            crop = image.crop(draw_box(*image.size, random))
            crop = crop.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
            if random.random() < 0.5:
                crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            pixels = torch.from_numpy(np.array(crop)).permute(2, 0, 1).contiguous()
            ready.append(pixels.float().div_(255).sub_(mean).div_(std))
        yield torch.stack(ready)


def read(split: Split, epochs: int) -> None:
    batches = Batches(split, BATCH, AUGMENT, Seeds(0), workers=0)
    for epoch in range(epochs):
        for _ in batches.epoch(epoch):
            pass


def reader(split: Split, workers: int) -> Callable[[], object]:
    """What reads an epoch for another device, by processes that run already."""
    augment = Augment(IMAGENET_MEAN, IMAGENET_STD, crop="resized").to("meta")
    batches = Batches(split, BATCH, augment, Seeds(0), workers=workers)

    def read_epoch() -> None:
        for _ in batches.epoch(0):
            pass

    read_epoch()
    return read_epoch


def learn(split: Split, epochs: int) -> None:
    settings = Settings(AUGMENT, engine=Engine("cpu", precision="32"), workers=0)
    learner = Learner(Nothing(), "finetune", 0, settings, epochs=epochs)
    learner.learn(Task(0, ("photo",), 0, split, split.take(torch.arange(0))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        photos, packed = Path(folder) / "photos", Path(folder) / "packed"
        make_photos(given.folder, photos, given.count)
        pack(find_images(photos).table(), packed, PackOptions(), 0)
        files = load_folder(photos, image_size=SIZE, memory_bytes=0).train
        paths = [photos / file for file in sorted(photos.glob("train/*/*"))]
        split = load_packed(packed, image_size=SIZE).train
        size = sum(path.stat().st_size for path in paths) / len(paths)
        print(f"{len(paths)} photos of {size / 1e3:.0f} kB, packed {packed.stat().st_size} bytes")
        random, epochs = np.random.default_rng(0), given.epochs
        ways: dict[str, Callable[[], object]] = {
            "plain": lambda: [len(x) for _ in range(epochs) for x in plain(paths, random)],
            "files": lambda: read(files, epochs),
            "packed": lambda: read(split, epochs),
            "loop": lambda: learn(split, epochs),
        }
        images, clock = epochs * len(paths), time.process_time
        if given.workers:
            clock = time.perf_counter
            often = split.take(torch.arange(len(split)).repeat(REPEATED))
            ways = {f"{n} workers": reader(often, n) for n in (1, 2)}
            images = len(often)
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in track(range(given.rounds), "measuring"):
            for name, way in ways.items():
                rates[name].append(images / seconds(way, clock))
    show(rates, "by the clock" if given.workers else "processor time of one core")


def show(rates: dict[str, list[float]], how: str) -> None:
    table = Table("way", "images/s", "ratio", title=f"medians of {how}")
    first = next(iter(rates))
    for name, found in rates.items():
        below = "packed" if name == "loop" else first
        ratios = [a / b for a, b in zip(found, rates[below], strict=True)]
        ratio = f"{statistics.median(ratios):.2f} of {below}"
        table.add_row(name, f"{statistics.median(found):,.0f}", ratio)
    Console().print(table)


if __name__ == "__main__":
    main()
