"""ImageNet, or any folder laid out like it, and its 100-class subsets."""

import logging
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np

from densekd.data.dataset import Dataset, OnProgress
from densekd.data.folder import (
    TRAIN,
    FoundImages,
    check_asked_for,
    find_divided,
    list_classes,
    list_folder,
)
from densekd.data.folder_images import (
    FOLDER_IMAGE_SIZE,
    MEMORY_BYTES,
    folder_dataset,
    read_images,
)
from densekd.data.packed import open_packed, packed_dataset
from densekd.data.scenario import read_names
from densekd.files import expand_home

# Which 100 classes: those of a paper's code, or a draw from the ids in the folder.
Subset = Literal["ccil", "ucir", "podnet", "drawn"]

PAPERS: dict[Subset, str] = {"ccil": "CCIL", "ucir": "UCIR", "podnet": "PODNet and AFC"}

logger = logging.getLogger(__name__)


def load_imagenet(
    path: str | Path,
    *,
    subset: Subset | None = None,
    image_size: int = FOLDER_IMAGE_SIZE,
    classes_file: Path | None = None,
    memory_bytes: int = MEMORY_BYTES,
    on_progress: OnProgress | None = None,
) -> Dataset:
    """Load ``path/train/ID`` and ``path/val/ID`` for each WordNet id; options as in `load_folder`.

    Files are opened only if all images fit into memory. See `find_imagenet` for the classes. The
    path may also name a packed file.
    """
    path = expand_home(path)
    if path.is_file():
        packed = open_packed(path)
        only = _chosen_classes(packed.classes, classes_file, subset)
        if only is not None and classes_file is not None:
            only = sorted(only)  # the same order as from folders
        return packed_dataset(packed, image_size, only)
    found = find_imagenet(path, classes_file, subset=subset)
    images, table = read_images(found, image_size, memory_bytes, on_progress, check=False)
    order = table.classes if subset and classes_file is None else None
    return folder_dataset(f"imagenet:{path}", images, table, order)


def find_imagenet(
    path: Path, classes_file: Path | None = None, *, subset: Subset | None = None
) -> FoundImages:
    """Find the files of the classes that a text file lists, else of a ``subset`` of 100, or of all.

    A subset's classes are in the order that its authors shuffle with seed 1993, others are sorted.
    Raises ValueError if a chosen class has no training images.
    """
    top = list_folder(path)
    for part in (TRAIN, "val"):
        if part not in top.folders:
            raise ValueError(
                f"{path} has no folder {part!r}: ImageNet is expected as train/<WordNet id>/ and "
                "val/<WordNet id>/."
            )
    classes = _chosen_classes([*list_classes(path / TRAIN).folders], classes_file, subset)
    found = find_divided(top, "val", classes)
    if classes is None:
        return found
    check_asked_for(path / TRAIN, classes, found.parts[TRAIN])
    order = classes if classes_file is None else sorted(classes)
    parts = found.parts.items()
    return found._replace(parts={p: {c: own[c] for c in order if c in own} for p, own in parts})


def _chosen_classes(
    there: Sequence[str], classes_file: Path | None, subset: Subset | None
) -> list[str] | None:
    """The classes that a text file lists, else those of a ``subset``; None for all."""
    if classes_file is not None:
        return read_names(classes_file)
    if subset == "drawn":
        return imagenet100_classes(there)
    return paper_classes(subset) if subset else None


def paper_classes(subset: Subset) -> list[str]:
    """The 100 classes of a paper's code."""
    text = resources.files("densekd.data").joinpath("imagenet100.toml").read_text("utf-8")
    return str(tomllib.loads(text)[subset]).split()


def imagenet100_classes(wnids: Sequence[str]) -> list[str]:
    """Draw the 100 classes of ImageNet-100 from the sorted ids, with legacy NumPy seed 1993."""
    if len(wnids) < 100:
        raise ValueError(
            f"ImageNet-100 is drawn from ImageNet's 1000 classes, but there are {len(wnids)}; "
            "take them all with imagenet:PATH."
        )
    if len(wnids) not in (100, 1000):
        logger.warning(
            "ImageNet-100 is drawn from %d classes instead of 1000, so it isn't the usual one.",
            len(wnids),
        )
    drawn = np.random.RandomState(1993).choice(sorted(wnids), 100, replace=False)
    return sorted(str(wnid) for wnid in drawn)
