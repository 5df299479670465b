"""Many images through a model: files are decoded ahead, while the network sees those before."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

from densekd.data.decode import UnreadableImage, centre_crop, image_endings, open_rgb
from densekd.model.opened import Guess, Model

_BATCH = 64
# Batches that are decoded or wait for the network.
_AHEAD = 4
_THREADS = min(8, os.cpu_count() or 1)


class Answer(NamedTuple):
    """What a file shows: the likeliest classes, or why it can't be read."""

    file: Path
    guesses: list[Guess]
    unreadable: str | None


def answers(model: Model, files: Sequence[Path], top: int = 1) -> Iterator[Answer]:
    """What each file shows, in their order.

    Args:
        model: that says so.
        files: of images.
        top: how many classes of each.
    """
    waiting: deque[tuple[Sequence[Path], Future[list[torch.Tensor | str]]]] = deque()
    parts = iter([files[i : i + _BATCH] for i in range(0, len(files), _BATCH)])
    with ThreadPoolExecutor(_THREADS) as pool:
        for part in parts:
            waiting.append((part, pool.submit(_decoded, part, model.image_size)))
            if len(waiting) > _AHEAD:
                first, future = waiting.popleft()
                yield from _answered(model, first, future.result(), top)
        for first, future in waiting:
            yield from _answered(model, first, future.result(), top)


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


def _decoded(files: Sequence[Path], size: int) -> list[torch.Tensor | str]:
    """For each file its pixels, or why there are none."""
    read: list[torch.Tensor | str] = []
    for file in files:
        try:
            read.append(centre_crop(open_rgb(file), size))
        except UnreadableImage as error:
            read.append(str(error))
    return read


def _answered(
    model: Model, files: Sequence[Path], read: list[torch.Tensor | str], top: int
) -> Iterator[Answer]:
    pixels = [each for each in read if isinstance(each, torch.Tensor)]
    guesses = iter(model.predict(torch.stack(pixels), top) if pixels else [])
    for file, each in zip(files, read, strict=True):
        if isinstance(each, str):
            yield Answer(file, [], each)
        else:
            yield Answer(file, next(guesses), None)
