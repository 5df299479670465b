from pathlib import Path

import pytest
import torch
from PIL import Image

from densekd.data.dataset import PixelImages
from densekd.data.folder import find_images
from densekd.model import images as images_module
from densekd.model.images import (
    UpdateImages,
    check_learnable,
    evenly_spaced,
    median_size,
    read_update_images,
    train_test_masks,
)

from support.photos import fill, picture


def read(source: Path, known: tuple[str, ...] = (), seed: int = 0) -> UpdateImages:
    found = find_images(source)
    check_learnable(source, found, known, "replay", needs_new=True)
    return read_update_images(source, found, 8, known, seed)


def counts(labels: torch.Tensor) -> dict[int, int]:
    ranks, numbers = labels.unique(return_counts=True)
    return dict(zip(ranks.tolist(), numbers.tolist(), strict=True))


def test_new_classes_come_after_known_ones(tmp_path: Path) -> None:
    source = fill(tmp_path, {"blue": 10, "7": 10, "red": 10})
    found = read(source, known=("red", "green"))
    assert (found.new_classes, found.replayed) == (("7", "blue"), ("red",))
    assert counts(found.train.labels) == {2: 8, 3: 8}
    assert counts(found.replay.labels) == {0: 8}
    assert counts(found.test.labels) == {0: 2, 2: 2, 3: 2}


@pytest.mark.parametrize(("images", "kept"), [(1, 0), (4, 0), (5, 1), (10, 2), (200, 30)])
def test_number_of_test_images(images: int, kept: int, tmp_path: Path) -> None:
    found = read(fill(tmp_path, {"red": images}))
    assert (len(found.train), len(found.test)) == (images - kept, kept)


def test_the_number_of_test_images_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images_module, "MAX_TEST_IMAGES", 3)
    found = read(fill(tmp_path / "whole", {"red": 60}))
    assert (len(found.train), len(found.test)) == (57, 3)
    fill(tmp_path / "divided" / "train", {"red": 9})
    fill(tmp_path / "divided" / "val", {"red": 9}, first=100)
    found = read(tmp_path / "divided")
    assert (len(found.train), len(found.test)) == (9, 3)


def test_the_split_of_a_class_depends_on_no_other_class(tmp_path: Path) -> None:
    alone = read(fill(tmp_path, {"red": 20}))
    together = read(fill(tmp_path, {"blue": 7, "red": 20}))
    other = read(tmp_path, seed=1)
    assert isinstance(alone.test.images, PixelImages)
    assert isinstance(together.test.images, PixelImages)
    assert isinstance(other.test.images, PixelImages)
    reds = together.test.images.pixels[together.test.labels == 1]
    assert torch.equal(alone.test.images.pixels, reds)
    assert not torch.equal(other.test.images.pixels[other.test.labels == 1], reds)


def test_train_and_val_folders_are_used_as_they_are(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"red": 9, "blue": 3})
    fill(tmp_path / "val", {"red": 4, "blue": 2}, first=100)
    found = read(tmp_path)
    assert counts(found.train.labels) == {0: 3, 1: 9}
    assert counts(found.test.labels) == {0: 2, 1: 4}


def test_all_kinds_of_files_in_a_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, {"red": 6, "7": 6, "dark blue é": 6})
    for number, ending in enumerate(("JPG", "Jpeg", "GIF", "bmp", "WEBP", "tif")):
        picture("red", 100 + number).save(tmp_path / "red" / f"photo {number}.{ending}")
    for number in range(3):
        (tmp_path / "red" / f"IMG_{number}.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    frames = [picture("7", number) for number in range(3)]
    frames[0].save(tmp_path / "7" / "moving.gif", save_all=True, append_images=frames[1:])
    (tmp_path / "7" / "broken.png").write_bytes(b"\x89PNG\r\n")
    (tmp_path / "7" / "Thumbs.db").write_text("")
    (tmp_path / "empty").mkdir()
    found = read(tmp_path)
    assert found.new_classes == ("7", "dark blue é", "red")
    assert len(found.train) + len(found.test) == 6 + 6 + 6 + 6 + 1
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4
    (heic,) = [line for line in told if "HEIC" in line]
    assert "IMG_0.HEIC' and 2 more" in heic
    assert "convert it to JPEG or PNG" in heic


def test_a_class_without_readable_images_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, {"red": 6, "blue": 2})
    for file in (tmp_path / "blue").iterdir():
        file.write_bytes(b"")
    assert read(tmp_path).new_classes == ("red",)
    assert "and 1 more: not an image" in caplog.text
    for file in (tmp_path / "red").iterdir():
        file.write_bytes(b"")
    with pytest.raises(ValueError, match="has no readable image in its class folders"):
        read(tmp_path)


@pytest.mark.parametrize(("side", "most", "expected"), [(40, 64, 40), (300, 64, 64), (2, 64, 8)])
def test_the_size_is_the_median_of_the_images(
    side: int, most: int, expected: int, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    for number in range(5):
        Image.new("RGB", (side + 20 * number, side)).save(tmp_path / "a" / f"{number}.png")
    Image.new("RGB", (2000, 1999)).save(tmp_path / "a" / "large.png")
    (tmp_path / "a" / "broken.png").write_bytes(b"")
    assert median_size(find_images(tmp_path), most) == expected


def test_images_that_exceed_the_memory_are_refused(tmp_path: Path) -> None:
    source = fill(tmp_path, {"red": 2})
    found = find_images(source)
    with pytest.raises(ValueError, match=r"take .* GB, too much .*; choose a smaller --image-size"):
        read_update_images(source, found, 10**6, (), 0)


def test_nothing_is_divided_into_nothing() -> None:
    train, test = train_test_masks([], [], 0)
    assert (train.dtype, len(train), len(test)) == (torch.bool, 0, 0)


def test_a_few_of_many_places_are_spread_evenly() -> None:
    assert evenly_spaced(torch.arange(9), 3).tolist() == [0, 4, 8]
    assert evenly_spaced(torch.arange(2), 3).tolist() == [0, 1]
