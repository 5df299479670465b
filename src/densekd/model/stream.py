"""Many images through a model: several threads at a time decode a batch and look at it."""

import math
import os
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

from densekd.data.decode import UnreadableImage, centre_crop, image_endings, muted, open_rgb
from densekd.model.model import Guess, Model

_BATCH = 64


class Answer(NamedTuple):
    """What a file shows: the likeliest classes, or why it can't be read."""

    file: Path
    guesses: list[Guess]
    unreadable: str | None


def answers(model: Model, files: Sequence[Path], top: int = 1) -> Generator[Answer]:
    """What each file shows, in their order.

    Args:
        model: that says so.
        files: of images.
        top: how many classes of each.
    """
    if not files:
        return
    threads = torch.get_num_threads()
    size = min(_BATCH, math.ceil(len(files) / threads))
    parts = [files[i : i + size] for i in range(0, len(files), size)]
    workers = min(threads, len(parts))
    _ = model.means  # once, and not in every thread
    waiting: deque[Future[list[Answer]]] = deque()
    # Each thread has cores of its own: decoding in one would else make the others wait within
    # every layer of the network.
    pool = ThreadPoolExecutor(
        workers, initializer=torch.set_num_threads, initargs=(threads // workers,)
    )
    try:
        with muted, pool:
            for part in parts:
                waiting.append(pool.submit(_answered, model, part, top))
                if len(waiting) > 2 * workers:
                    yield from waiting.popleft().result()
            for future in waiting:
                yield from future.result()
    finally:
        torch.set_num_threads(threads)  # of threads that come later, which have the number set last


def image_files(folder: Path) -> list[Path]:
    """All image files in a folder and in those within it, by their names, sorted."""
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


def _answered(model: Model, files: Sequence[Path], top: int) -> list[Answer]:
    read = [_decoded(file, model.image_size) for file in files]
    pixels = [each for each in read if isinstance(each, torch.Tensor)]
    guesses = iter(model.predict(torch.stack(pixels), top) if pixels else [])
    return [
        Answer(file, [], each) if isinstance(each, str) else Answer(file, next(guesses), None)
        for file, each in zip(files, read, strict=True)
    ]


def _decoded(file: Path, size: int) -> torch.Tensor | str:
    """The pixels of a file, or why there are none."""
    try:
        return centre_crop(open_rgb(file, size), size)
    except UnreadableImage as error:
        return str(error)
