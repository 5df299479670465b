"""ImageNet, or any folder laid out like it, and its 100-class subsets."""

import logging
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np

from densekd.data.dataset import Dataset, OnProgress
from densekd.data.folder import TRAIN, FoundImages, find_divided, list_classes, list_folder
from densekd.data.folder_images import MEMORY_BYTES, folder_dataset, read_images
from densekd.data.packed import open_packed, packed_dataset
from densekd.data.scenario import read_names

# Which 100 classes: those of a paper's code, or a draw from the ids that are there.
Subset = Literal["ccil", "ucir", "podnet", "drawn"]

PAPERS: dict[Subset, str] = {"ccil": "CCIL", "ucir": "UCIR", "podnet": "PODNet and AFC"}

logger = logging.getLogger(__name__)


def load_imagenet(
    path: str | Path,
    *,
    subset: Subset | None = None,
    image_size: int = 224,
    classes_file: Path | None = None,
    memory_bytes: int = MEMORY_BYTES,
    on_progress: OnProgress | None = None,
) -> Dataset:
    """Load ``path/train/ID`` and ``path/val/ID`` for each WordNet id; options as in `load_folder`.

    Files are opened only if all images fit into memory. See `find_imagenet` for the classes. The
    path may also be that of a packed file.
    """
    path = Path(path).expanduser()
    if path.is_file():
        return _load_packed(path, subset, image_size, classes_file)
    found = find_imagenet(path, classes_file, subset=subset)
    images, table = read_images(found, image_size, memory_bytes, on_progress, check=False)
    order = None if classes_file or not subset else subset_classes(path, subset)
    return folder_dataset(f"imagenet:{path}", images, table, order)


def _load_packed(
    path: Path, subset: Subset | None, image_size: int, classes_file: Path | None
) -> Dataset:
    packed, only = open_packed(path), None
    if classes_file is not None:
        only = read_names(classes_file)
    elif subset == "drawn":
        only = imagenet100_classes(packed.classes)
    elif subset:
        only = paper_classes(subset)
    return packed_dataset(packed, image_size, only)


def find_imagenet(
    path: Path, classes_file: Path | None = None, *, subset: Subset | None = None
) -> FoundImages:
    """Find the files of the classes that a text file lists, else of a ``subset`` of 100, or of all.

    Raises if one of them has no training images.
    """
    top = list_folder(path)
    for part in (TRAIN, "val"):
        if part not in top.folders:
            raise ValueError(
                f"{path} has no folder {part!r}: ImageNet is expected as train/<WordNet id>/ and "
                "val/<WordNet id>/."
            )
    classes = None
    if classes_file is not None:
        classes = read_names(classes_file)
    elif subset:
        classes = subset_classes(path, subset)
    found = find_divided(top, "val", classes)
    missing = [name for name in classes or () if not found.parts[TRAIN].get(name)]
    if classes is not None and missing:
        raise ValueError(
            f"{path / TRAIN} has no images of the class {missing[0]!r}, and in all lacks "
            f"{len(missing)} of the {len(classes)} classes asked for."
        )
    if subset and classes_file is None:
        own = {
            p: {c: files[c] for c in classes or () if c in files}
            for p, files in found.parts.items()
        }
        return found._replace(parts=own)
    return found


def subset_classes(path: Path, subset: Subset) -> list[str]:
    """The 100 classes of a subset, in the order that their authors shuffle with seed 1993."""
    if subset == "drawn":
        return imagenet100_classes([*list_classes(path / TRAIN).folders])
    return paper_classes(subset)


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
