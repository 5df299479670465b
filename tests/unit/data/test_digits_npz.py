import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn import datasets  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

from densekd.data.dataset import Dataset, PixelImages
from densekd.data.digits_npz import load_digits, load_npz

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 3, 5, 4), dtype=np.uint8)


def arrays(**changed: object) -> dict[str, Any]:
    """Return the arrays of a valid file, some ``changed``; None removes one."""
    good: dict[str, Any] = {
        "train_x": IMAGES,
        "train_y": [0, 1, 2, 2, 1, 0],
        "test_x": IMAGES[:2],
        "test_y": [2, 0],
    }
    return {key: value for key, value in (good | changed).items() if value is not None}


def pixels(dataset: Dataset) -> torch.Tensor:
    assert isinstance(dataset.train.images, PixelImages)
    return dataset.train.images.pixels


def test_digits_are_those_of_scikit_learn() -> None:
    every = datasets.load_digits()
    levels = np.rint(every.images * (255 / 16)).astype(np.uint8)
    options = {"test_size": 0.25, "stratify": every.target, "random_state": 0}
    train_x, test_x, train_y, test_y = train_test_split(levels, every.target, **options)
    digits = load_digits()
    for split, images, labels in ((digits.train, train_x, train_y), (digits.test, test_x, test_y)):
        assert isinstance(split.images, PixelImages)
        assert np.array_equal(split.images.pixels[:, 0], images)
        assert split.labels.tolist() == labels.tolist()


def test_digits_are_split_by_class() -> None:
    digits = load_digits()
    assert digits.classes == tuple("0123456789")
    assert (len(digits.train), len(digits.test)) == (1347, 450)
    counts = digits.train.labels.bincount() + digits.test.labels.bincount()
    share = digits.test.labels.bincount() / counts
    assert (share - 0.25).abs().max() < 0.01


def test_digits_are_grey_from_black_to_white() -> None:
    images = pixels(load_digits())
    assert images.shape[1:] == (3, 8, 8)
    assert torch.equal(images[:, 0], images[:, 1])
    assert torch.equal(images[:, 0], images[:, 2])
    levels = [round(level * 255 / 16) for level in range(17)]
    assert images.unique().tolist() == levels


def test_digits_are_the_same_every_time_and_never_shared() -> None:
    first, second = load_digits(), load_digits()
    assert torch.equal(pixels(first), pixels(second))
    assert torch.equal(first.test.labels, second.test.labels)
    rows = {tuple(row) for row in pixels(first).flatten(1).tolist()}
    assert isinstance(first.test.images, PixelImages)
    shared = sum(tuple(row) in rows for row in first.test.images.pixels.flatten(1).tolist())
    assert shared == 0


def test_digits_are_normalised_by_the_training_images() -> None:
    digits = load_digits()
    scaled = pixels(digits).double() / 255
    assert digits.mean == pytest.approx(scaled.mean((0, 2, 3)).tolist())
    assert digits.std == pytest.approx(scaled.std((0, 2, 3), correction=0).tolist())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (IMAGES, IMAGES),
        (IMAGES.transpose(0, 2, 3, 1), IMAGES),
        (IMAGES[:, :1], IMAGES[:, [0, 0, 0]]),
        (IMAGES[:, :1].transpose(0, 2, 3, 1), IMAGES[:, [0, 0, 0]]),
        (IMAGES[:, 0], IMAGES[:, [0, 0, 0]]),
    ],
    ids=["n3HW", "nHW3", "n1HW", "nHW1", "nHW"],
)
def test_every_layout_gives_the_same_images(
    given: NDArray[np.uint8], expected: NDArray[np.uint8], tmp_path: Path
) -> None:
    path = tmp_path / "set.npz"
    np.savez_compressed(path, **arrays(train_x=given))
    dataset = load_npz(path)
    assert pixels(dataset).tolist() == expected.tolist()
    assert pixels(dataset).is_contiguous()
    assert dataset.train.labels.tolist() == [0, 1, 2, 2, 1, 0]
    assert dataset.test.labels.tolist() == [2, 0]
    assert dataset.classes == ("0", "1", "2")
    assert dataset.name == f"npz:{path}"
    assert dataset.mean == pytest.approx((expected / 255).mean((0, 2, 3)))


def test_names_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    np.savez(path, **arrays(names=["ant", "bee", "wasp"], test_y=np.array([2, 0], np.uint8)))
    dataset = load_npz(path)
    assert dataset.classes == ("ant", "bee", "wasp")
    assert dataset.test.labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_x": None, "test_y": None}, r"lacks train_x, test_y; it needs train_x, train_y"),
        ({"train_x": IMAGES / 255}, "train_x is float64; it must be uint8"),
        ({"train_x": IMAGES[:, :2]}, r"train_x: .* shape \[6, 2, 5, 4\] .*C of 1 or 3"),
        ({"test_x": IMAGES[0, 0]}, r"test_x: .* shape \[5, 4\] .*\[n, H, W\]"),
        ({"test_x": IMAGES[:0], "test_y": []}, "test_x .* not be empty"),
        ({"test_x": IMAGES[:2, :, :4]}, r"\[5, 4\] pixels, test images \[4, 4\]"),
        ({"train_y": [0, 1, 2]}, r"train_y has the shape \[3\].*\[6\]"),
        ({"train_y": [0.5] * 6}, "train_y is float64; labels must be whole numbers"),
        ({"train_y": list("abcabc")}, "train_y is <U1; labels must be whole numbers"),
        ({"train_y": [1, 2, 3, 1, 2, 3]}, "from 1 to 3 with 3 classes; labels must count from 0"),
        ({"train_y": [0, 1, 5, 5, 1, 0]}, "from 0 to 5 with 3 classes"),
        ({"test_y": [2, 3]}, "1 test labels, such as 3, are not of the 3 classes"),
        ({"names": ["ant", "bee"]}, "2 training labels, such as 2, are not of the 2 classes"),
        ({"names": ["ant", "bee", "bee"]}, "two classes are called 'bee'"),
        ({"names": [1, 2, 3]}, r"names is int64.*\[3\].*list of texts"),
    ],
)
def test_bad_arrays_are_refused(changed: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    np.savez(path, **arrays(**changed))
    with pytest.raises(ValueError, match=message) as caught:
        load_npz(path)
    assert str(path) in str(caught.value)


class Planted:
    """Makes a folder when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.trace),)


def test_a_pickle_inside_is_refused_and_not_run(tmp_path: Path) -> None:
    path, trace = tmp_path / "set.npz", tmp_path / "trace"
    np.savez(path, **arrays(names=np.array([Planted(trace)], dtype=object)))
    with pytest.raises(ValueError, match=r"names is refused.*plain array"):
        load_npz(path)
    path.write_bytes(pickle.dumps(Planted(trace)))
    with pytest.raises(ValueError, match=r"not a \.npz file"):
        load_npz(path)
    content = io.BytesIO()
    np.savez(content, **arrays(train_x=None))
    with zipfile.ZipFile(content, "a") as file:
        file.writestr("train_x.npy", pickle.dumps(Planted(trace)))
    path.write_bytes(content.getvalue())
    with pytest.raises(ValueError, match="train_x is"):
        load_npz(path)
    assert not trace.exists()


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': (",
        "if 1:\n    1\n  2",
        "{1: 2, 'shape': 3}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (10000000000000000000000,)}",
    ],
    ids=["cut off", "indented", "other keys", "absurd shape"],
)
def test_a_forged_header_is_told_in_one_sentence(tmp_path: Path, header: str) -> None:
    content = io.BytesIO()
    np.savez(content, **arrays(train_x=None))
    with zipfile.ZipFile(content, "a") as file:
        length = len(header).to_bytes(2, "little")
        file.writestr("train_x.npy", b"\x93NUMPY\x01\x00" + length + header.encode() + bytes(64))
    path = tmp_path / "set.npz"
    path.write_bytes(content.getvalue())
    with pytest.raises(ValueError, match=r"set\.npz: train_x is refused"):
        load_npz(path)


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    with pytest.raises(ValueError, match=r"set\.npz is not a file"):
        load_npz(path)
    np.savez(path, **arrays())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"not a \.npz file"):
        load_npz(path)
    spot = whole.index(IMAGES.tobytes())
    path.write_bytes(whole[:spot] + bytes([whole[spot] ^ 1]) + whole[spot + 1 :])
    with pytest.raises(ValueError, match=r"set\.npz is damaged \(.*CRC"):
        load_npz(path)
