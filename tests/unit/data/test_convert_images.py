from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from densekd.data.convert import as_images, as_task
from densekd.data.dataset import PixelImages

Array = NDArray[Any]
X8 = np.zeros((4, 8, 8, 3), np.uint8)


def as_list(X: Array) -> list[Any]:
    return [Image.fromarray(x) for x in X]


KINDS: dict[str, Callable[[Array], Any]] = {
    "channels first": lambda X: X.transpose(0, 3, 1, 2),
    "strided": lambda X: np.repeat(X, 2, axis=0)[::2],
    "floats": lambda X: X / 255,
    "float32": lambda X: (X / 255).astype(np.float32),
    "tensor": lambda X: torch.from_numpy(X).permute(0, 3, 1, 2),
    "tensor of floats": lambda X: torch.from_numpy(X / 255).permute(0, 3, 1, 2),
    "tensor with channels last": torch.from_numpy,
    "Pillow": as_list,
    "arrays": list,
    "transparent": lambda X: [x.convert("RGBA") for x in as_list(X)],
    "our own": lambda X: PixelImages(torch.from_numpy(X).permute(0, 3, 1, 2)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_images_of_any_kind_give_the_same_pixels(kind: str) -> None:
    X = np.random.default_rng(0).integers(0, 256, (4, 9, 9, 3), np.uint8)
    made = as_images(KINDS[kind](X))
    assert isinstance(made, PixelImages)
    np.testing.assert_array_equal(made.pixels.numpy(), X.transpose(0, 3, 1, 2))


def test_grey_images_get_three_equal_channels() -> None:
    grey = np.random.default_rng(0).integers(0, 255, (5, 7, 6), np.uint8)
    for X in (grey, grey[:, None], grey[..., None], [Image.fromarray(x) for x in grey]):
        made = as_images(X)
        assert isinstance(made, PixelImages)
        assert made.pixels.shape == (5, 3, 7, 6)
        for channel in range(3):
            np.testing.assert_array_equal(made.pixels[:, channel].numpy(), grey)


WRONG: dict[str, tuple[Any, str]] = {
    "one image": (X8[0], r"looks like one image.*X\[None\]"),
    "one picture": (Image.new("RGB", (4, 4)), "give a list"),
    "one path": ("image.png", "give a list"),
    "flat": (X8.reshape(4, -1), r"shape \[4, 192\] are not \[n, H, W\]"),
    "four channels": (np.zeros((4, 8, 8, 4), np.uint8), r"\[4, 8, 8, 4\]"),
    "whole numbers": (X8.astype(np.int64), "uint8 or floats, not torch.int64"),
    "too bright": (X8 + 200.0, "from 200 to 200; leave out"),
    "normalised": (X8 - 1.5, "from -1.5 to"),
    "not numbers": (np.full((4, 8, 8, 3), np.nan), "must be from 0 to 1"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_images_are_refused(kind: str) -> None:
    X, words = WRONG[kind]
    with pytest.raises(ValueError, match=words):
        as_images(X)


def test_a_task_has_its_classes_in_the_order_of_their_labels() -> None:
    task = as_task(as_images(X8), ["b", 10, 9, "b"], ["a"], 1)
    assert (task.number, task.first, task.classes) == (1, 1, ("9", "10", "b"))
    assert task.train.labels.tolist() == [3, 2, 1, 3]
    assert len(task.test) == 0
    with pytest.raises(ValueError, match="'a' was learned before"):
        as_task(as_images(X8), ["b", "a", "c", "d"], ["a"], 1)


def test_truth_values_and_numbers_are_not_mixed() -> None:
    images = as_images(X8)
    with pytest.raises(ValueError, match="True equals 1"):
        as_task(images, [True, 1, False, 0], (), 0)
    assert as_task(images, [True, False, True, False], (), 0).classes == ("False", "True")


@pytest.mark.parametrize("labels", [3, None, "abcd", np.array(3)])
def test_labels_are_a_list(labels: Any) -> None:
    with pytest.raises(ValueError, match="one for each image"):
        as_task(as_images(X8), labels, (), 0)


@pytest.mark.parametrize("images", [3, None])
def test_images_are_a_list(images: Any) -> None:
    with pytest.raises(ValueError, match="array or a list"):
        as_images(images)
