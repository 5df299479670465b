"""Data sets from arrays, torch, Hugging Face, folders and functions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from densekd.data.convert import ConvertOptions, as_dataset, as_images
from densekd.data.dataset import Dataset, PixelImages
from densekd.data.scenario import Scenario
from densekd.data.sources import SourceOptions, load
from densekd.parts import OwnPartError, refer


class Squares(TorchDataset[Any]):
    """Images whose pixels are ten times the class."""

    def __init__(self, form: str, per_class: int = 2, classes: list[str] | None = None) -> None:
        self.form, self.labels = form, [0, 1, 2] * per_class
        if classes:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        label = self.labels[i]
        grey = np.full((6, 8, 3), 10 * label, np.uint8)
        forms = {
            "pillow": Image.fromarray(grey),
            "array": grey,
            "bytes": torch.from_numpy(grey).permute(2, 0, 1),
            "floats": torch.from_numpy(grey).permute(2, 0, 1) / 255,
            "normalised": torch.full((3, 6, 8), -1.5),
        }
        return forms[self.form], torch.tensor(label) if self.form == "bytes" else label


def levels(dataset: Dataset) -> list[tuple[int, int]]:
    """The pixel and the label of each training image."""
    assert isinstance(dataset.train.images, PixelImages)
    pixels: Tensor = dataset.train.images.pixels
    assert pixels.shape[1:] == (3, 6, 8)
    return list(zip(pixels[:, 0, 0, 0].tolist(), dataset.train.labels.tolist(), strict=True))


@pytest.mark.parametrize("form", ["pillow", "array", "bytes", "floats"])
def test_torch_data_sets_with_items_of_any_form(form: str) -> None:
    names = ["a", "b", "c"]
    made = as_dataset((Squares(form, classes=names), Squares(form, 1)), "squares")
    assert levels(made) == [(0, 0), (10, 1), (20, 2)] * 2
    assert (made.classes, made.name, len(made.test)) == (("a", "b", "c"), "squares", 3)
    assert len(Scenario.of(made, base=1, steps=2)) == 3


def test_a_mapping_and_data_without_test_images() -> None:
    both = as_dataset({"train": Squares("array"), "val": Squares("array", 1)})
    assert len(both.test) == 3
    assert both.classes == ("0", "1", "2")
    divided = as_dataset(Squares("array", 10))
    assert (len(divided.train), len(divided.test)) == (24, 6)


def test_arrays_and_tensors_with_numbers_or_names() -> None:
    x = np.zeros((4, 6, 8, 3), np.uint8)
    named = as_dataset((x, ["b", "a", "b", "a"], x, ["a", "a", "b", "b"]))
    assert named.classes == ("a", "b")
    assert named.train.labels.tolist() == [1, 0, 1, 0]
    tensors = as_dataset((torch.rand(4, 3, 6, 8), torch.tensor([0, 5, 5, 0]), x, [0, 0, 5, 5]))
    assert tensors.classes == ("0", "5")
    mixed = as_dataset((x, ["b", 10, np.int64(9), torch.tensor(10)], x, [9, 10, "b", "b"]))
    assert (mixed.classes, mixed.train.labels.tolist()) == (("9", "10", "b"), [2, 1, 0, 1])
    assert as_dataset((x, [True, False] * 2, x, [True] * 4)).classes == ("False", "True")


def test_hugging_face_data() -> None:
    made = as_dataset(hugging_face(train=[0, 1, 0, 1], test=[0, 1]), "mine.py:hf")
    assert (made.classes, len(made.train), made.name) == (("x", "y"), 4, "mine.py:hf")


def hugging_face(**labels: list[int]) -> Any:
    """Splits of images of one colour with these labels, -1 for none."""
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["x", "y"])
    features = datasets.Features({"image": datasets.Image(), "label": names})
    picture = Image.fromarray(np.full((6, 8, 3), 9, np.uint8))
    parts = {
        part: datasets.Dataset.from_dict(
            {"image": [picture] * len(own), "label": own}, features=features
        )
        for part, own in labels.items()
    }
    return datasets.DatasetDict(parts)


def test_hugging_face_data_whose_test_images_have_no_labels() -> None:
    given = hugging_face(train=[0, 1] * 5, test=[-1, -1], validation=[0, 1, 1])
    assert as_dataset(given).test.labels.tolist() == [0, 1, 1]
    drawn = as_dataset(hugging_face(train=[0, 1] * 5, test=[]))
    assert (len(drawn.train), len(drawn.test)) == (8, 2)


def test_a_folder_and_a_data_set_itself(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(4):
            Image.new("RGB", (6, 6), (i, 0, 0)).save(tmp_path / name / f"{i}.png")
    made = as_dataset(tmp_path, options=ConvertOptions(image_size=6))
    assert made.classes == ("cat", "dog")
    assert as_dataset(made, made.name) == made


def test_a_function_draws_the_same_in_every_call() -> None:
    def noise() -> tuple[Any, ...]:
        x = torch.rand(4, 3, 6, 8)
        return x, [0, 1, 0, 1], np.random.rand(2, 6, 8), [0, 1]  # noqa: NPY002

    first, second = as_dataset(noise), as_dataset(noise)
    for one, other in ((first.train, second.train), (first.test, second.test)):
        assert torch.equal(one.images.state()["pixels"], other.images.state()["pixels"])


def test_a_reference_is_a_source() -> None:
    name = refer(lambda: (Squares("array"), Squares("array", 1)), name="squares")
    assert load(name).name == name
    resized = load(name, SourceOptions(image_size=4)).train.images
    assert isinstance(resized, PixelImages)
    assert resized.pixels.shape[2:] == (4, 4)
    with pytest.raises(ValueError, match="classes_file has no meaning"):
        load(name, SourceOptions(classes_file=Path("x")))


class Wrong(Squares):
    def __getitem__(self, i: int) -> Any:
        return {"image": 1}


X = np.zeros((3, 6, 8, 3), np.uint8)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (7, "flowers must be a Dataset, a folder, arrays .* not int"),
        (lambda: None, "not NoneType"),
        ((X, [0, 1], X, [0, 1, 1]), "3 images have 2 labels"),
        ((X, [0.5, 1, 1], X, [0, 1, 1]), "a name or a whole number, not 0.5"),
        ((X, [0.5, "a", "a"], X, ["a"] * 3), "a name or a whole number, not 0.5"),
        ((X.astype(np.int64), [0, 1, 1], X, [0, 1, 1]), "must be uint8 or floats"),
        ((X, [0, 1, 1], X[:, :4], [0, 1, 1]), r"training images have \(6, 8\) pixels"),
        ((Wrong("array"), Wrong("array")), r"item 0 is of type dict; it must be a pair"),
        ((Squares("normalised"), Squares("array")), "leave out their normalisation"),
        ((Squares("array", classes=["a"]), Squares("array")), "label 1 is none of its 1 classes"),
        ({"test": Squares("array")}, "'train' must be among them"),
        ((X, [0, 1, 1], X, [0, 1, 2]), "label 2 is none of its 2 classes"),
        ((X[:0], [], X, [0, 1, 1]), "has no training images"),
        ("nowhere", "flowers can't be used: .*nowhere"),
    ],
)
def test_what_is_no_data_is_refused_by_name(value: Any, sentence: str) -> None:
    with pytest.raises(OwnPartError, match=sentence) as found:
        as_dataset(value, "flowers")
    assert "flowers" in str(found.value)


def test_a_size_that_arrays_do_not_have_is_refused() -> None:
    x, y = np.zeros((4, 6, 6, 3), np.uint8), [0, 1, 0, 1]
    same = as_dataset((x, y, x, y), options=ConvertOptions(image_size=6))
    for value in ((x, y, x, y), same):
        with pytest.raises(OwnPartError, match=r"flowers has images of 6 x 6 .* image_size"):
            as_dataset(value, "flowers", ConvertOptions(image_size=16))


def test_images_without_pixels_are_refused() -> None:
    with pytest.raises(ValueError, match="no pixels"):
        as_images(np.zeros((4, 0, 0, 3), np.uint8))
    assert len(as_images(np.zeros((0, 8, 8, 3), np.uint8))) == 0


@pytest.mark.parametrize(
    "pictures",
    [
        np.zeros((4, 8, 8, 3), object),  # pixels that NumPy keeps as objects
        np.full(4, None),
        np.array([1, 2], object),
        np.array(None),
        [None],
        [np.zeros((8, 8, 3), object)],
        [[0, 1], [1, 0]],
        np.array([b"a.png"]),
        np.zeros(2, "datetime64[s]"),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_what_is_no_image_is_refused(pictures: Any) -> None:
    with pytest.raises(ValueError, match=r"must be (uint8|a file)"):
        as_images(pictures)


def test_a_row_of_objects_is_a_sequence() -> None:
    rows = np.empty(2, object)
    rows[0], rows[1] = Image.new("RGB", (8, 8)), np.zeros((8, 8, 3), np.uint8)
    assert len(as_images(rows)) == 2
