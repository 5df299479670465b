"""Predict many image files in several threads, each of which decodes and computes a batch."""

import math
import os
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import torch

from densekd.data.decode import image_endings
from densekd.model.frozen.backbone import BATCH
from densekd.model.model import Model, Prediction
from densekd.model.parallel import compute_readable, map_batches


class FilePrediction(NamedTuple):
    """The likeliest classes of an image file, or why it can't be read."""

    file: Path
    prediction: Prediction
    unreadable: str | None


def predict_files(model: Model, files: Sequence[Path], top: int = 1) -> Generator[FilePrediction]:
    """The ``top`` likeliest classes of each file, in the order of the files."""
    model.prepare()
    # With larger batches, the other threads would wait for the last batch.
    size = max(1, min(BATCH, math.ceil(len(files) / torch.get_num_threads())))
    batches = [files[i : i + size] for i in range(0, len(files), size)]
    with closing(map_batches(lambda some: _predict_batch(model, some, top), batches)) as found:
        for batch in found:
            yield from batch


def image_files(folder: Path) -> list[Path]:
    """All image files in a folder and its sub-folders, sorted; hidden ones are skipped."""
    found = []
    for place, inner, names in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        endings = image_endings()
        found += [
            Path(place, name)
            for name in sorted(names)
            if not name.startswith(".") and Path(name).suffix.lower() in endings
        ]
    return found


def _predict_batch(model: Model, files: Sequence[Path], top: int) -> list[FilePrediction]:
    found = compute_readable(files, model.crop, lambda pixels: model.predict(pixels, top))
    return [
        FilePrediction(file, Prediction([]), each)
        if isinstance(each, str)
        else FilePrediction(file, each, None)
        for file, each in zip(files, found, strict=True)
    ]
