"""Folders of small noisy pictures, one colour per class, for a model to learn."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from densekd.model.options import TeachOptions

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 200, 40),
    "blue": (40, 40, 220),
    "yellow": (220, 220, 40),
    "grey": (120, 120, 120),
    "7": (230, 230, 230),
    "dark blue é": (20, 20, 90),
}
# The smallest training that still learns: a few tenths of a second.
TINY = TeachOptions(
    image_size=8,
    network="resnet8",
    epochs=2,
    overrides=("memory.per_class=4", "engine.accelerator=cpu"),
)


def picture(name: str, number: int, size: int = 10) -> Image.Image:
    """Return a picture of a class; the number picks the noise."""
    source = np.random.default_rng([number, *name.encode()])
    noise = source.integers(-30, 31, (size, size, 3))
    return Image.fromarray((np.array(COLOURS[name]) + noise).clip(0, 255).astype(np.uint8))


def fill(folder: Path, counts: Mapping[str, int], *, first: int = 0, ending: str = "png") -> Path:
    """Replace a folder by one with a sub-folder per class and ``counts`` pictures in it."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(first, first + count):
            picture(name, number).save(folder / name / f"{number:04}.{ending}")
    return folder
