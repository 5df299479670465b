"""Measure how fast images are augmented and exemplars selected.

Compares batched augmentation (pad-4 crop, flip, normalisation of 32 x 32 images) with the usual
pipeline of one Pillow image at a time, in turns, on one core. Also times herding of 50 classes x
500 images x 64 features. Prints medians over rounds.

    python benchmarks/data_speed.py [--rounds 15]
"""

import argparse
import statistics

import numpy as np
import torch
from common import seconds
from PIL import Image, ImageOps
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table
from torch import Tensor

from densekd.data.augment import Augment
from densekd.data.cifar import OFFICIAL
from densekd.data.selection import greedy, herding

BATCH = 128
MEAN, STD = OFFICIAL["cifar100"].mean, OFFICIAL["cifar100"].std


def one_by_one(images: list[Image.Image], random: np.random.Generator) -> Tensor:
    """The usual pipeline: crop, flip, convert and normalise each image, then stack."""
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    ready = []
    for image in images:
        left, top = random.integers(0, 9, 2).tolist()
        crop = ImageOps.expand(image, 4).crop((left, top, left + 32, top + 32))
        if random.random() < 0.5:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.asarray(crop).copy()).permute(2, 0, 1).contiguous()
        ready.append(pixels.float().div_(255).sub_(mean).div_(std))
    return torch.stack(ready)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    data = torch.randint(0, 256, (5000, 3, 32, 32), dtype=torch.uint8, generator=generator)
    pillow = [Image.fromarray(x.permute(1, 2, 0).numpy()) for x in data[:1000]]
    augment, random = Augment(MEAN, STD), np.random.default_rng(0)

    def batched() -> None:
        draws = augment.draw(len(data), generator)
        for start in range(0, len(data), BATCH):
            rows = slice(start, start + BATCH)
            augment(data[rows], draws.take(rows))

    fast, slow = [], []
    for _ in track(range(rounds), "augmenting"):
        fast.append(len(data) / seconds(batched))
        slow.append(len(pillow) / seconds(lambda: one_by_one(pillow, random)))
    features = [torch.randn(500, 64, generator=generator).relu() for _ in range(50)]
    times: dict[str, list[float]] = {"herding": [], "greedy": []}
    for _ in track(range(rounds), "herding"):
        times["herding"].append(seconds(lambda: herding(features, 20)))
        times["greedy"].append(seconds(lambda: greedy(features, 20)))
    table = Table("what", Column("measured", justify="right"), title="one core, medians")
    table.add_row("batched augmentation", f"{statistics.median(fast):,.0f} images/s")
    table.add_row("one Pillow image at a time", f"{statistics.median(slow):,.0f} images/s")
    ratios = [a / b for a, b in zip(fast, slow, strict=True)]
    table.add_row("ratio", f"{statistics.median(ratios):.1f}")
    for name, measured in times.items():
        table.add_row(
            f"{name}: 20 of 500 images, 50 classes", f"{statistics.median(measured) * 1e3:.0f} ms"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
