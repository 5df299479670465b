"""The images of an update: new classes, more images of known ones, and what is held out."""

import logging
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from densekd.allocator import physical_memory
from densekd.data.dataset import OnProgress, Split
from densekd.data.folder import (
    TRAIN,
    WHOLE,
    FoundImages,
    check_usable,
    quote_names,
)
from densekd.data.folder_images import median_side, read_images
from densekd.model.options import OnKnownClass
from densekd.seeds import Seeds

# Hold out this share of a class's images for testing, or none if the class has too few.
_TEST_SHARE = 0.15
FEWEST_TO_TEST = 5
MAX_TEST_IMAGES = 100  # of a class
_MEMORY_SHARE = 0.5

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpdateImages:
    """The images of an update; labels are ranks in learning order, new classes last."""

    new_classes: tuple[str, ...]
    replayed: tuple[str, ...]  # known classes that got more images
    train: Split  # of new classes
    replay: Split  # of known classes
    test: Split  # of both, held out


def check_learnable(
    source: Path,
    found: FoundImages,
    known: Sequence[str],
    on_known: OnKnownClass,
    *,
    needs_new: bool,
) -> None:
    """Raise ValueError if the classes of the images in a folder can't be learned.

    ``needs_new`` says whether an update must have a new class.
    """
    counts = {p: {c: len(files) for c, files in own.items()} for p, own in found.parts.items()}
    check_usable(source, counts)
    names = sorted({name for own in counts.values() for name, count in own.items() if count})
    old = [name for name in names if name in known]
    if old and on_known == "refuse":
        raise ValueError(
            f"{quote_names(old)} {'is' if len(old) == 1 else 'are'} known already; remove the "
            f"images from {source}, or use --known {'replay' if needs_new else 'add'} to learn "
            "from them too."
        )
    if len(old) == len(names) and needs_new:
        raise ValueError(
            f"{source} has no new class; this model was trained by a method, so it can only learn "
            "more about known classes together with a new one."
        )
    if len({*names, *known}) == 1:
        logger.warning(
            "A model of one class takes nearly every image for %r; teach it another class, too.",
            *names,
        )
    warn_if_alike(names, known)


def warn_if_alike(names: Sequence[str], known: Sequence[str]) -> None:
    """Warn about new names that differ from a known one only by case or encoding."""
    alike = {_normalised(name): name for name in known}
    for name in names:
        other = alike.get(_normalised(name), name)
        if other != name and name not in known:
            logger.warning(
                "The new class %r and the known %r differ only by case or encoding; they are "
                "treated as different classes.",
                *(name, other),
            )


def median_size(found: FoundImages, largest: int) -> int:
    """The median of the images' shorter sides, but at least 8 and at most ``largest``."""
    side = median_side(found.table().paths)
    return largest if side is None else min(largest, max(8, round(side)))


def read_update_images(
    source: Path,
    found: FoundImages,
    size: int,
    known: Sequence[str],
    seed: int,
    on_progress: OnProgress | None = None,
) -> UpdateImages:
    """Read the images that were ``found``, resize them to ``size``, and hold some out for testing.

    ``seed`` draws the test images, from ``val`` if the folder has one.
    """
    _check_memory(len(found.table().files), size)
    images, table = read_images(found, size, physical_memory(), on_progress, check=True)
    check_usable(source, table.counts())
    names = table.class_of_each
    for_training, for_test = train_test_masks(names, table.part_of_each, seed)
    new = tuple(sorted(set(names) - set(known)))
    ranks = {name: rank for rank, name in enumerate([*known, *new])}
    whole = Split(images, torch.tensor([ranks[name] for name in names]))
    is_new = whole.labels >= len(known)
    chosen = (for_training & is_new, for_training & ~is_new, for_test)
    train, replay, test = (whole.take(each.nonzero().flatten()) for each in chosen)
    untested = [name for name in new if not (test.labels == ranks[name]).any()]
    if untested:
        logger.warning(
            "Too few images to hold some out for testing: %s. All of them are used for training.",
            quote_names(untested),
        )
    replayed = tuple(name for name in known if name in set(names))
    return UpdateImages(new, replayed, train, replay, test)


def train_test_masks(
    names: Sequence[str], parts: Sequence[str], seed: int
) -> tuple[Tensor, Tensor]:
    """Masks of the training and the test images; ``val`` images above the limit are in neither.

    The draw for a class depends on no other class, so adding a class changes no other's split.
    """
    own = defaultdict[str, list[int]](list)
    for i, (name, part) in enumerate(zip(names, parts, strict=True)):
        if part != TRAIN:
            own[name].append(i)
    test = torch.zeros(len(names), dtype=torch.bool)
    for name, places in own.items():
        count = len(places)
        if WHOLE in parts:
            count = max(1, round(count * _TEST_SHARE)) if count >= FEWEST_TO_TEST else 0
        order = torch.randperm(len(places), generator=Seeds(seed).at(name).generator("split"))
        test[torch.tensor(places)[order[: min(count, MAX_TEST_IMAGES)]]] = True
    train = torch.tensor([part in (TRAIN, WHOLE) for part in parts], dtype=torch.bool)
    return train & ~test, test


def _check_memory(images: int, size: int) -> None:
    needed = images * 3 * size**2
    memory = physical_memory()
    if needed > _MEMORY_SHARE * memory:
        raise ValueError(
            f"{images:,} images of {size} x {size} pixels take {needed / 1e9:.1f} GB, too much for "
            f"the {memory / 1e9:.1f} GB of memory here; choose a smaller --image-size."
        )


def _normalised(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def evenly_spaced(places: Tensor, most: int | None) -> Tensor:
    """The places, or ``most`` of them, spread evenly."""
    if most is None or len(places) <= most:
        return places
    return places[torch.linspace(0, len(places) - 1, most).long()]
