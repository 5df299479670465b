"""A folder of images as something to learn: new classes, more of known ones, and what to test."""

import logging
import os
import statistics
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from densekd.data.dataset import OnProgress, PixelImages, Split
from densekd.data.decode import UnreadableImage, decode_all, width_and_height
from densekd.data.folder import (
    TRAIN,
    WHOLE,
    FoundImages,
    check_usable,
    find_images,
    quote_names,
    warn_left_out,
)
from densekd.seeds import Seeds

Known = Literal["refuse", "replay"]

# Of a class's images, what is held out to test on; none if it has fewer than five.
_HELD_OUT = 0.15
_ENOUGH = 5
# The most images of a class that are kept to test on.
MOST_KEPT = 100
# How many files are looked at to see how large images are.
_SAMPLE = 200
# The share of the memory that images may take.
_SHARE = 0.5

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lesson:
    """What is to be learned; labels are ranks in learning order, new classes last.

    Args:
        learned: the names of the new classes.
        replayed: the names of known classes of which there are more images.
        train: images of new classes to learn from.
        more: images of known classes to learn from.
        kept: images of both to test on.
    """

    learned: tuple[str, ...]
    replayed: tuple[str, ...]
    train: Split
    more: Split
    kept: Split


def find_lesson(source: Path, known: Sequence[str], on_known: Known) -> FoundImages:
    """The image files in a folder, if their classes can be learned.

    Args:
        source: has a folder of images for each class, or ``train`` and ``val`` with such folders.
        known: the names of the classes that were learned.
        on_known: what to do with folders that are named like these.
    """
    found = find_images(source)
    counts = {p: {c: len(files) for c, files in own.items()} for p, own in found.parts.items()}
    check_usable(source, counts)
    names = sorted({name for own in counts.values() for name, count in own.items() if count})
    old = [name for name in names if name in known]
    if old and on_known == "refuse":
        raise ValueError(
            f"{quote_names(old)} {'is' if len(old) == 1 else 'are'} known already; take the images "
            f"out of {source}, or use them as more images of known classes with --known replay."
        )
    if len(old) == len(names):
        raise ValueError(
            f"{source} has no new class; more images of known classes are learned along with new "
            "classes only."
        )
    alike = {_plain(name): name for name in known}
    for name in names:
        other = alike.get(_plain(name), name)
        if other != name and name not in known:
            logger.warning(
                "The new class %r and the known %r differ only by case or encoding; they are taken "
                "for different classes.",
                *(name, other),
            )
    return found


def usual_size(found: FoundImages, most: int) -> int:
    """The height and width to bring images to: the median of their shorter sides, up to a limit."""
    files = [file for own in found.parts.values() for each in own.values() for file in each]
    sides = []
    for file in files[:: -(-len(files) // _SAMPLE)]:
        try:
            sides.append(min(width_and_height(file)))
        except UnreadableImage:
            continue  # which is told when all are read
    return min(most, max(8, round(statistics.median(sides)))) if sides else most


def read_lesson(
    source: Path,
    found: FoundImages,
    size: int,
    known: Sequence[str],
    seed: int,
    on_progress: OnProgress | None = None,
) -> Lesson:
    """Read the images, and set apart what is tested on.

    Args:
        source: the folder.
        found: what `find_lesson` found there.
        size: the height and width that images are brought to.
        known: the names of the classes that were learned.
        seed: draws the images to test on where the folder isn't divided.
        on_progress: called with the number of files read so far, and of all.
    """
    items = [
        (file, name, part)
        for part, own in found.parts.items()
        for name, files in own.items()
        for file in files
    ]
    _check_memory(len(items), size)
    pixels, read, unreadable = decode_all([item[0] for item in items], size, on_progress)
    warn_left_out([*found.left_out, *unreadable])
    names, parts = [items[i][1] for i in read], [items[i][2] for i in read]
    counts = {
        part: Counter(n for n, p in zip(names, parts, strict=True) if p == part)
        for part in found.parts
    }
    check_usable(source, counts)
    learn, keep = _roles(names, parts, seed)
    new = tuple(sorted(set(names) - set(known)))
    ranks = {name: rank for rank, name in enumerate([*known, *new])}
    whole = Split(PixelImages(pixels), torch.tensor([ranks[name] for name in names]))
    is_new = whole.labels >= len(known)
    chosen = (learn & is_new, learn & ~is_new, keep)
    train, more, kept = (whole.take(each.nonzero().flatten()) for each in chosen)
    replayed = tuple(name for name in known if name in set(names))
    untested = [name for name in new if not (kept.labels == ranks[name]).any()]
    if untested:
        logger.warning(
            "Too few images to test: %s. All of them are learned from.", quote_names(untested)
        )
    return Lesson(new, replayed, train, more, kept)


def _roles(names: Sequence[str], parts: Sequence[str], seed: int) -> tuple[Tensor, Tensor]:
    """Which images are learned from, and which are kept to test on; the rest is left out.

    What is kept of a class depends on no other, so a new class moves none.
    """
    own = defaultdict[str, list[int]](list)
    for i, (name, part) in enumerate(zip(names, parts, strict=True)):
        if part != TRAIN:
            own[name].append(i)
    keep = torch.zeros(len(names), dtype=torch.bool)
    for name, places in own.items():
        count = len(places)
        if WHOLE in parts:
            count = max(1, round(count * _HELD_OUT)) if count >= _ENOUGH else 0
        order = torch.randperm(len(places), generator=Seeds(seed).at(name).generator("split"))
        keep[torch.tensor(places)[order[: min(count, MOST_KEPT)]]] = True
    learn = torch.tensor([part in (TRAIN, WHOLE) for part in parts])
    return learn & ~keep, keep


def _check_memory(images: int, size: int) -> None:
    needed = images * 3 * size**2
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > _SHARE * there:
        raise ValueError(
            f"{images:,} images of {size} x {size} pixels take {needed / 1e9:.1f} GB, too much for "
            f"the {there / 1e9:.1f} GB of memory here; choose a smaller --image-size."
        )


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()
