import logging
from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

from densekd.data.dataset import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    FileImages,
    PixelImages,
    Split,
    image_shape,
)
from densekd.data.folder import (
    check_images,
    find_classes,
    find_images,
    list_classes,
)
from densekd.data.folder_images import load_folder

from support.class_folders import fill_folder, image_names


def greens(split: Split, label: int) -> set[int]:
    """Which of the images of `fill_folder` are in a split in memory."""
    assert isinstance(split.images, PixelImages)
    return set(split.images.pixels[split.labels == label][:, 1, 0, 0].tolist())


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    for level, (name, count) in enumerate((("cat", 10), ("ant", 5), ("dog", 20))):
        fill_folder(tmp_path / "animals" / name, count, level=level)
    return tmp_path / "animals"


def test_class_folders_become_a_data_set(animals: Path) -> None:
    data = load_folder(animals, image_size=8)
    assert data.name == f"folder:{animals}"
    assert data.classes == ("ant", "cat", "dog")
    assert (data.mean, data.std) == (IMAGENET_MEAN, IMAGENET_STD)
    assert Counter(data.train.labels.tolist()) == {0: 4, 1: 8, 2: 16}
    assert Counter(data.test.labels.tolist()) == {0: 1, 1: 2, 2: 4}
    for label, (level, count) in enumerate(((1, 5), (0, 10), (2, 20))):
        assert not greens(data.train, label) & greens(data.test, label)
        assert greens(data.train, label) | greens(data.test, label) == set(range(count))
        assert isinstance(data.train.images, PixelImages)
        reds = data.train.images.pixels[data.train.labels == label][:, 0]
        assert reds.shape[1:] == (8, 8)
        assert (reds == level).all()


def test_the_split_depends_on_the_seed_and_on_the_class_alone(animals: Path) -> None:
    def tested(seed: int) -> list[set[int]]:
        data = load_folder(animals, image_size=4, seed=seed)
        return [greens(data.test, label) for label in range(3)]

    first, other = tested(0), tested(1)
    assert tested(0) == first
    assert other != first
    fill_folder(animals / "aardvark", 9)
    data = load_folder(animals, image_size=4)
    assert [greens(data.test, label) for label in (1, 2, 3)] == first


def test_the_order_in_which_files_were_made_does_not_matter(animals: Path, tmp_path: Path) -> None:
    for file in sorted(animals.glob("*/*"), reverse=True):
        copy = tmp_path / "copy" / file.parent.name / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    a = load_folder(animals, image_size=4, memory_bytes=0)
    b = load_folder(tmp_path / "copy", image_size=4, memory_bytes=0)
    assert image_names(a.train) == image_names(b.train)
    assert image_names(a.test) == image_names(b.test)


@pytest.mark.parametrize("part", ["val", "test"])
def test_train_and_val_or_test_are_the_splits(tmp_path: Path, part: str) -> None:
    fill_folder(tmp_path / "train" / "b", 3)
    fill_folder(tmp_path / "train" / "a", 2)
    fill_folder(tmp_path / part / "a", 1)
    fill_folder(tmp_path / part / "b", 2)
    data = load_folder(tmp_path, image_size=4)
    assert data.classes == ("a", "b")
    assert data.train.labels.tolist() == [0, 0, 1, 1, 1]
    assert data.test.labels.tolist() == [0, 1, 1]
    assert greens(data.test, 1) == {0, 1}


def test_val_is_preferred_to_test_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for part, count in (("train", 4), ("val", 3), ("test", 2)):
        fill_folder(tmp_path / part / "a", count)
    assert len(load_folder(tmp_path, image_size=4).test) == 3
    assert f"Left out '{tmp_path / 'test'}': only train and val are used." in caplog.messages


def test_a_class_without_test_images_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in ("train/a", "train/b", "val/b"):
        fill_folder(tmp_path / folder, 2)
    data = load_folder(tmp_path, image_size=4)
    assert data.classes == ("a", "b")
    assert data.test.labels.tolist() == [1, 1]
    assert "none to test on, of: 'a'." in caplog.text


def test_a_class_only_in_the_test_part_is_an_error(tmp_path: Path) -> None:
    for folder in ("train/a", "val/a", "val/b"):
        fill_folder(tmp_path / folder, 2)
    with pytest.raises(ValueError, match=r"no training images of the class 'b'; add some"):
        load_folder(tmp_path, image_size=4)


def test_the_memory_limit_decides_between_memory_and_files(
    animals: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "densekd")
    limit = 35 * 3 * 8 * 8
    kept = load_folder(animals, image_size=8, memory_bytes=limit)
    assert isinstance(kept.train.images, PixelImages)
    assert "6720 of 6720 bytes" in caplog.text
    caplog.clear()
    lazy = load_folder(animals, image_size=8, memory_bytes=limit - 1)
    assert isinstance(lazy.train.images, FileImages)
    assert lazy.train.images.size == 8
    assert "6720 bytes are over the limit of 6719" in caplog.text
    # Both ways have the same test images.
    assert torch.equal(kept.test.labels, lazy.test.labels)
    tested = [int(name[-7:-4]) for name in image_names(lazy.test) if name.startswith("dog")]
    assert set(tested) == greens(kept.test, 2)


@pytest.mark.parametrize("memory_bytes", [0, 1 << 30])
def test_progress_counts_the_files(animals: Path, memory_bytes: int) -> None:
    done: list[tuple[int, int]] = []
    load_folder(
        animals,
        image_size=4,
        memory_bytes=memory_bytes,
        on_progress=lambda *count: done.append(count),
    )
    assert done == [(i, 35) for i in range(1, 36)]


def test_a_size_of_zero_is_refused(animals: Path) -> None:
    with pytest.raises(ValueError, match="image_size must be at least 1, not 0"):
        load_folder(animals, image_size=0)


def test_files_of_each_class_are_sorted(animals: Path) -> None:
    classes, left_out = find_classes(animals)
    assert list(classes) == ["ant", "cat", "dog"] == [*list_classes(animals).folders]
    assert [file.name for file in classes["ant"]] == [f"{i:03}.png" for i in range(5)]
    assert left_out == []
    assert list(find_classes(animals, only=["dog"])[0]) == ["dog"]


def test_a_report_counts_what_can_be_decoded(animals: Path) -> None:
    done: list[tuple[int, int]] = []
    counts, unreadable = check_images(
        find_images(animals).table(), lambda *count: done.append(count)
    )
    assert counts == {"all": {"ant": 5, "cat": 10, "dog": 20}}
    assert unreadable == []
    assert done[-1] == (35, 35)


def test_a_report_of_a_divided_folder_names_the_faults(tmp_path: Path) -> None:
    for folder in ("train/a", "train/b", "val/a"):
        fill_folder(tmp_path / folder, 3)
    cut, text = tmp_path / "val/a/001.png", tmp_path / "train/b/notes.txt"
    cut.write_bytes(cut.read_bytes()[:45])
    text.write_text("text")
    found = find_images(tmp_path)
    counts, (unreadable,) = check_images(found.table())
    assert counts == {"train": {"a": 3, "b": 3}, "val": {"a": 2, "b": 0}}
    (unused,) = found.left_out
    assert unused[0] == text
    assert ".txt" in unused[1]
    assert unreadable[0] == cut
    assert "truncated" in unreadable[1]


def test_small_images_are_not_enlarged_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("RGB", (40, 48)).save(tmp_path / name / f"{number}.png")
    (tmp_path / "ant" / "broken.png").write_bytes(b"no image")
    data = load_folder(tmp_path)
    assert image_shape(data.train.images) == (224, 224)
    (warning,) = [text for text in caplog.messages if "enlarged" in text]
    assert "images of about 40 pixels" in warning
    assert "31 times as long" in warning
    assert "--image-size 40" in warning
    caplog.clear()
    load_folder(tmp_path, image_size=40)
    assert "enlarged" not in caplog.text
