import functools
import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from densekd.data.dataset import Dataset, PixelImages
from densekd.data.hub import hub_dataset, load_hub

NAMES = ["ant", "bee", "wasp"]


@functools.cache
def library() -> Any:
    """Imported only by the test process that runs this file, since that takes long."""
    return pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the library offline and its cache in a temporary folder."""
    import huggingface_hub

    monkeypatch.setattr(library().config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(library().config, "HF_DATASETS_CACHE", tmp_path / "cache")
    library().disable_progress_bars()
    yield
    library().enable_progress_bars()


def image(value: int, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> Image.Image:
    """Make an image of one colour, which identifies it."""
    return Image.new(mode, size, (value, 0, 255) if mode == "RGB" else value)


def rows(
    labels: list[int],
    start: int = 0,
    pictures: list[Any] | None = None,
    more: dict[str, tuple[Any, list[Any]]] | None = None,
) -> Any:
    """A split whose i-th image has ``start + i`` as its red, with ``more`` columns."""
    pictures = pictures or [image(start + i) for i in range(len(labels))]
    columns = {
        "picture": (library().Image(), pictures),
        "kind": (library().ClassLabel(names=NAMES), labels),
    } | (more or {})
    features = library().Features({name: feature for name, (feature, _) in columns.items()})
    content = {name: values for name, (_, values) in columns.items()}
    return library().Dataset.from_dict(content, features=features)


def saved(path: Path, **parts: Any) -> str:
    library().DatasetDict(parts).save_to_disk(path)
    return str(path)


def reds(dataset: Dataset) -> tuple[list[int], list[int]]:
    assert isinstance(dataset.train.images, PixelImages)
    assert isinstance(dataset.test.images, PixelImages)
    return (
        dataset.train.images.pixels[:, 0, 0, 0].tolist(),
        dataset.test.images.pixels[:, 0, 0, 0].tolist(),
    )


def test_columns_are_found_by_their_type(tmp_path: Path) -> None:
    note = {"note": (library().Value("string"), list("abcd"))}
    train = rows([2, 0, 1, 1], more=note)
    name = saved(tmp_path / "set", train=train, test=rows([1, 2], start=100))
    steps: list[tuple[int, int]] = []
    dataset = load_hub(name, on_progress=lambda *step: steps.append(step))
    assert dataset.classes == tuple(NAMES)
    assert dataset.train.labels.tolist() == [2, 0, 1, 1]
    assert dataset.test.labels.tolist() == [1, 2]
    assert reds(dataset) == ([0, 1, 2, 3], [100, 101])
    assert isinstance(dataset.train.images, PixelImages)
    assert dataset.train.images.pixels.shape == (4, 3, 4, 6)
    assert dataset.mean == pytest.approx((1.5 / 255, 0, 1))
    assert steps == [(i, 6) for i in range(1, 7)]
    assert dataset.name == f"hub:{name}"


@pytest.mark.parametrize(("size", "shape"), [(None, (4, 6)), (5, (5, 5))])
def test_all_images_come_to_one_size(
    size: int | None, shape: tuple[int, int], tmp_path: Path
) -> None:
    mixed = rows([0, 1, 2], pictures=[image(7), image(8, (60, 20)), image(9, (1, 1), "L")])
    dataset = load_hub(saved(tmp_path / "set", train=mixed, test=rows([0])), image_size=size)
    assert isinstance(dataset.train.images, PixelImages)
    pixels = dataset.train.images.pixels
    assert pixels.shape == (3, 3, *shape)
    assert pixels[:2, 0].float().std((1, 2)).tolist() == [0, 0]
    assert pixels[2].unique().tolist() == [9]
    assert reds(dataset)[0] == [7, 8, 9]


def test_images_of_the_right_size_are_not_touched(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    part = rows([0], pictures=[Image.fromarray(noise)])
    dataset = load_hub(saved(tmp_path / "set", train=part, test=part), image_size=5)
    assert isinstance(dataset.train.images, PixelImages)
    assert dataset.train.images.pixels[0].permute(1, 2, 0).tolist() == noise.tolist()


def test_without_test_labels_a_fifth_of_each_class_is_drawn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    labels = [0] * 10 + [1] * 25 + [2]
    name = saved(tmp_path / "set", train=rows(labels), test=rows([-1, -1]))
    dataset = load_hub(name)
    assert "has no test labels" in caplog.text
    assert dataset.test.labels.bincount(minlength=3).tolist() == [2, 5, 0]
    train, test = reds(dataset)
    assert sorted(train + test) == list(range(36))
    assert [labels[red] for red in test] == dataset.test.labels.tolist()
    assert reds(load_hub(name)) == (train, test)
    assert reds(load_hub(name, seed=1)) != (train, test)


def test_validation_is_used_if_test_has_no_labels(tmp_path: Path) -> None:
    parts = {"train": rows([0, 1]), "test": rows([-1]), "validation": rows([2], start=50)}
    assert reds(load_hub(saved(tmp_path / "set", **parts))) == ([0, 1], [50])


def test_a_single_saved_split_is_loaded(tmp_path: Path) -> None:
    rows([0] * 5).save_to_disk(tmp_path / "set")
    assert len(load_hub(str(tmp_path / "set")).test) == 1


def test_a_folder_of_images_is_loaded(tmp_path: Path) -> None:
    for part, count in (("train", 2), ("test", 1)):
        for label, red in (("ant", 10), ("bee", 20)):
            folder = tmp_path / "set" / part / label
            folder.mkdir(parents=True)
            for i in range(count):
                image(red + i).save(folder / f"{i}.png")
    dataset = load_hub(str(tmp_path / "set"))
    assert dataset.classes == ("ant", "bee")
    assert [sorted(part) for part in reds(dataset)] == [[10, 11, 20, 21], [10, 20]]


def test_columns_can_be_named(tmp_path: Path) -> None:
    more: dict[str, tuple[Any, list[Any]]] = {
        "mask": (library().Image(), [image(90), image(91)]),
        "coarse": (library().ClassLabel(names=["crawls", "flies"]), [0, 1]),
        "number": (library().Value("int64"), [20, 3]),
    }
    name = saved(tmp_path / "set", train=rows([0, 1], more=more), test=rows([0, 1], more=more))
    with pytest.raises(ValueError, match=r"2 columns of Image.*image column.*picture, mask"):
        load_hub(name)
    with pytest.raises(ValueError, match=r"2 columns of ClassLabel.*kind, coarse"):
        load_hub(name, image_column="mask")
    dataset = load_hub(name, image_column="mask", label_column="coarse")
    assert dataset.classes == ("crawls", "flies")
    assert reds(dataset)[0] == [90, 91]
    numbered = load_hub(name, image_column="picture", label_column="number")
    assert numbered.classes == ("3", "20")
    assert numbered.train.labels.tolist() == [1, 0]


def test_bad_columns_are_named(tmp_path: Path) -> None:
    name = saved(tmp_path / "set", train=rows([0, 1]).remove_columns("picture"))
    with pytest.raises(ValueError, match="has no column of images, only kind"):
        load_hub(name)
    name = saved(tmp_path / "other", train=rows([0, 1]))
    with pytest.raises(ValueError, match="'kind' is not a column of images; picture would be"):
        load_hub(name, image_column="kind")
    with pytest.raises(ValueError, match="'sort' is not a column of labels; kind would be"):
        load_hub(name, label_column="sort")
    with pytest.raises(ValueError, match="image_size must be at least 1, not 0"):
        load_hub(name, image_size=0)


def test_an_unreadable_image_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = io.BytesIO()
    image(5, (64, 64)).save(content, "PNG")
    broken = [{"bytes": content.getvalue()[:60], "path": None}, {"bytes": b"text", "path": None}]
    part = rows([0, 1, 2, 0], pictures=[*broken, image(40), None])
    name = saved(tmp_path / "set", train=part, test=rows([0]))
    with caplog.at_level(logging.WARNING, "densekd"):
        dataset = load_hub(name)
    assert dataset.train.labels.tolist() == [2]
    assert reds(dataset)[0] == [40]
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        f"Left out image {i} of hub" for i in (0, 1, 3)
    ]
    name = saved(tmp_path / "none", train=part.select([0, 1]))
    with pytest.raises(ValueError, match="train has no image that can be read"):
        load_hub(name)


def test_a_data_set_that_cannot_be_loaded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=r"hub:nobody/nothing can't be loaded \(Couldn't reach"):
        load_hub("nobody/nothing")
    with pytest.raises(ValueError, match=r"none can't be loaded.*folder of a saved data set\.$"):
        load_hub(str(tmp_path / "none"))
    name = saved(tmp_path / "set", test=rows([0]))
    with pytest.raises(ValueError, match="no images to learn from: its splits are test"):
        load_hub(name)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'densekd\[hub\]'"):
        load_hub(name)


def test_progress_bars_are_off_while_loading_and_restored(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for label in NAMES:
        folder = tmp_path / "set" / "train" / label
        folder.mkdir(parents=True)
        image(1).save(folder / "0.png")
    library().enable_progress_bars()
    dataset = load_hub(str(tmp_path / "set"))
    assert capfd.readouterr() == ("", "")
    assert not library().are_progress_bars_disabled()
    assert torch.equal(dataset.train.labels, torch.tensor([0, 1, 2]))


def test_images_that_do_not_fit_into_memory_are_refused() -> None:
    parts, columns = {"train": rows([0, 1])}, {"image": None, "label": None}
    with pytest.raises(ValueError, match=r"2 images, too many .*smaller image_size"):
        hub_dataset("large", parts, columns, image_size=10**8)


def test_an_image_without_a_known_label_is_left_out_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts = {"train": rows([0, -1, 2]), "test": rows([1, -1, 2], start=50)}
    dataset = load_hub(saved(tmp_path / "set", **parts))
    assert reds(dataset) == ([0, 2], [50, 52])
    assert dataset.train.labels.tolist() == [0, 2]
    assert dataset.test.labels.tolist() == [1, 2]
    assert caplog.text.count("Left out 1 images") == 2
