"""Predict many image files: several threads decode and compute, a batch each."""

import math
import os
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from densekd.data.decode import UnreadableImage, centre_crop, image_endings, muted, open_rgb
from densekd.model.model import Guess, Model

_BATCH = 64


class FilePrediction(NamedTuple):
    """The likeliest classes of an image file, or why it can't be read."""

    file: Path
    guesses: list[Guess]
    unreadable: str | None


def predict_files(model: Model, files: Sequence[Path], top: int = 1) -> Generator[FilePrediction]:
    """The ``top`` likeliest classes of each file, in the order of the files."""
    if not files:
        return
    threads = torch.get_num_threads()
    size = min(_BATCH, math.ceil(len(files) / threads))
    batches = [files[i : i + size] for i in range(0, len(files), size)]
    workers = min(threads, len(batches))
    _ = model.means  # compute them once, not in every thread
    waiting: deque[Future[list[FilePrediction]]] = deque()
    # Give each thread cores of its own: otherwise a thread that decodes makes the others wait
    # within every layer of the network.
    pool = ThreadPoolExecutor(
        workers, initializer=torch.set_num_threads, initargs=(threads // workers,)
    )
    try:
        with muted, pool:
            for batch in batches:
                waiting.append(pool.submit(_predict_batch, model, batch, top))
                if len(waiting) > 2 * workers:
                    yield from waiting.popleft().result()
            for future in waiting:
                yield from future.result()
    finally:
        torch.set_num_threads(threads)  # later threads get the number that was set last


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
    read = [_decode(file, model.image_size) for file in files]
    pixels = [each for each in read if isinstance(each, Tensor)]
    guesses = iter(model.predict(torch.stack(pixels), top) if pixels else [])
    return [
        FilePrediction(file, [], each)
        if isinstance(each, str)
        else FilePrediction(file, next(guesses), None)
        for file, each in zip(files, read, strict=True)
    ]


def _decode(file: Path, size: int) -> Tensor | str:
    """The pixels of a file, or why it can't be read."""
    try:
        return centre_crop(open_rgb(file, size), size)
    except UnreadableImage as error:
        return str(error)
