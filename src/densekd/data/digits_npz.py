"""Data sets from arrays: scikit-learn's handwritten digits and NumPy's ``.npz`` files."""

import dataclasses
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from densekd.data.dataset import Dataset, PixelImages, Split, channel_statistics, rgb_planes
from densekd.files import expand_home

_Array = NDArray[Any]

_KEYS = ("train_x", "train_y", "test_x", "test_y")


def load_digits() -> Dataset:
    """Load scikit-learn's 1,797 handwritten digits of 8x8 pixels; a fixed quarter is test images.

    The 17 levels of grey become 0 to 255, the same in all three channels.
    """
    # The package has its own copy, since importing scikit-learn takes longer than a short run.
    return dataclasses.replace(load_npz(Path(__file__).with_name("digits.npz")), name="digits")


def load_npz(path: str | Path) -> Dataset:
    """Load a ``.npz`` file; raise ValueError for a wrong one, or one with a pickle.

    It has ``train_x``, ``train_y``, ``test_x`` and ``test_y``. The images x are uint8 of shape
    ``[n, H, W]``, ``[n, H, W, C]`` or ``[n, C, H, W]`` with C of 1 or 3. The labels y, ``[n]``,
    count from 0. An optional array ``names`` has a text for each class.
    """
    path = expand_home(path)
    arrays = _read(path)
    train, test = (
        _tensors(f"{path}: {part}", arrays[f"{part}_x"], arrays[f"{part}_y"])
        for part in ("train", "test")
    )
    sizes = [list(images.shape[2:]) for images, _ in (train, test)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"{path}: training images have {sizes[0]} pixels, test images {sizes[1]}; bring them "
            "to one size."
        )
    splits = [Split(PixelImages(pixels), labels) for pixels, labels in (train, test)]
    names, statistics = _names(path, arrays), channel_statistics(train[0])
    return Dataset(f"npz:{path}", names, splits[0], splits[1], *statistics)


def _read(path: Path) -> dict[str, _Array]:
    if not path.is_file():
        raise ValueError(f"{path} is not a file; npz:FILE takes one that numpy.savez wrote.")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not a .npz file; write one with numpy.savez.")
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [key for key in _KEYS if key not in file]
            if missing:
                raise ValueError(f"{path} lacks {', '.join(missing)}; it needs {', '.join(_KEYS)}.")
            return {key: _array(path, file, key) for key in (*_KEYS, "names") if key in file}
    # Some are also raised for too little memory, an unknown compression, or a missing password.
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, MemoryError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged ({error}); write it again.") from error


def _array(path: Path, file: Any, key: str) -> _Array:
    try:
        array = file[key]
    # Objects, which need a pickle; or a header that isn't valid Python or has absurd sizes.
    except (ValueError, TypeError, OverflowError, SyntaxError, TokenError) as error:
        raise ValueError(
            f"{path}: {key} is refused since it isn't a plain array; write it as uint8, whole "
            "numbers or text of one length."
        ) from error
    if not isinstance(array, np.ndarray):  # NumPy returns other files in the archive as bytes
        raise ValueError(f"{path}: {key} is not an array; write the file with numpy.savez.")
    return array


def _tensors(what: str, images: _Array, labels: _Array) -> tuple[Tensor, Tensor]:
    """Check the arrays of a part, and return pixels ``[n, 3, H, W]`` and labels ``[n]``."""
    if images.dtype != np.uint8:
        raise ValueError(f"{what}_x is {images.dtype}; it must be uint8, from 0 to 255.")
    if images.size == 0:
        raise ValueError(f"{what}_x has the shape {list(images.shape)}; it must not be empty.")
    try:
        pixels = rgb_planes(torch.from_numpy(images))
    except ValueError as error:
        raise ValueError(f"{what}_x: {error}") from error
    if labels.dtype.kind not in "iu":
        raise ValueError(f"{what}_y is {labels.dtype}; labels must be whole numbers.")
    if labels.shape != (len(images),):
        shape = list(labels.shape)
        raise ValueError(f"{what}_y has the shape {shape}; it must be [{len(images)}].")
    return pixels, torch.from_numpy(labels.astype(np.int64))


def _names(path: Path, arrays: dict[str, _Array]) -> tuple[str, ...]:
    names = arrays.get("names")
    if names is not None:
        if names.dtype.kind != "U" or names.ndim != 1:
            raise ValueError(
                f"{path}: names is {names.dtype} {list(names.shape)}; it must be a list of texts."
            )
        return tuple(names.tolist())
    labels = np.unique(arrays["train_y"])
    if not np.array_equal(labels, np.arange(len(labels))):
        raise ValueError(
            f"{path}: train_y goes from {labels[0]} to {labels[-1]} with {len(labels)} classes; "
            "labels must count from 0 without a gap, or names must name every class."
        )
    return tuple(str(label) for label in labels)
