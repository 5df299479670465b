import dataclasses
import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image

from densekd.data.dataset import FileImages, fingerprint
from densekd.data.decode import UnreadableImage, open_rgb
from densekd.data.folder import find_images
from densekd.data.folder_images import load_folder
from densekd.data.imagenet import load_imagenet
from densekd.data.pack import PackOptions, encode_image, pack
from densekd.data.packed import HEADER_BYTES, load_packed, open_packed

from support.class_folders import fill_folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Photos of two classes, of various sizes and formats."""
    for part, count in (("train", 4), ("val", 2)):
        for label in ("cat", "ant"):
            folder = tmp_path / "photos" / part / label
            folder.mkdir(parents=True)
            for i in range(count):
                noise = np.random.default_rng([count, i]).integers(0, 256, (60, 80, 3), np.uint8)
                ending = ("jpg", "png")[i % 2]
                Image.fromarray(noise).save(folder / f"{i}.{ending}")
    return tmp_path / "photos"


def packed(photos: Path, name: str = "photos.packed", **options: int | None) -> Path:
    target = photos.parent / name
    workers = options.pop("workers", 0)
    table = find_images(photos).table()
    assert pack(table, target, PackOptions(**options), workers) == []  # type: ignore[arg-type]
    return target


def test_a_packed_folder_has_the_same_images_labels_and_splits(photos: Path) -> None:
    data = load_packed(packed(photos, shorter_side=None), image_size=16)
    folder = load_folder(photos, image_size=16, memory_bytes=0)
    assert data.classes == folder.classes == ("ant", "cat")
    for one, other in ((data.train, folder.train), (data.test, folder.test)):
        assert torch.equal(one.labels, other.labels)
        assert isinstance(one.images, FileImages)
        assert isinstance(other.images, FileImages)
        read = [file.read_bytes() for file in other.images.files if isinstance(file, Path)]
        assert [*one.images.files] == read
    assert fingerprint(data.train) != fingerprint(data.test)


def test_images_are_shrunk_once_and_small_ones_stay(photos: Path) -> None:
    options = PackOptions(shorter_side=30)
    large, grey = photos / "train/cat/0.jpg", photos / "grey.png"
    assert Image.open(io.BytesIO(encode_image(large, options))).size == (40, 30)
    Image.new("L", (500, 100), 9).save(grey)
    shrunk = Image.open(io.BytesIO(encode_image(grey, options)))
    assert (shrunk.size, shrunk.mode, shrunk.format) == ((150, 30), "RGB", "JPEG")
    assert encode_image(large, PackOptions(shorter_side=60)) == large.read_bytes()
    assert encode_image(grey, PackOptions(shorter_side=None)) == grey.read_bytes()
    exif = Image.Exif()
    exif[0x0112] = 6  # lying on its side
    Image.new("RGB", (200, 100)).save(large, exif=exif)
    assert open_rgb(encode_image(large, options)).size == (30, 60)


@pytest.mark.slow
def test_the_file_does_not_depend_on_the_number_of_processes(photos: Path) -> None:
    alone = packed(photos, "alone", shorter_side=30)
    assert packed(photos, "two", shorter_side=30, workers=2).read_bytes() == alone.read_bytes()


def test_packing_again_changes_nothing_and_other_files_are_not_overwritten(photos: Path) -> None:
    target = packed(photos, shorter_side=30)
    before = target.stat().st_mtime_ns
    assert packed(photos, shorter_side=30).stat().st_mtime_ns == before
    assert [path.name for path in photos.parent.iterdir() if path.is_file()] == [target.name]
    with pytest.raises(ValueError, match=r"exists and isn't what would be packed; delete it"):
        packed(photos, shorter_side=20)
    target.write_text("a letter")
    with pytest.raises(ValueError, match="delete it"):
        packed(photos, shorter_side=30)
    assert target.read_text() == "a letter"


def test_a_photo_that_was_turned_since_is_noticed_though_its_size_is_the_same(
    photos: Path,
) -> None:
    photo, sizes = photos / "train/cat/0.jpg", set()
    for orientation in (1, 6):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.linear_gradient("L").save(photo, exif=exif)
        sizes.add(photo.stat().st_size)
        if orientation == 1:
            target = packed(photos, shorter_side=30)
            before = target.stat().st_mtime_ns
            os.utime(photo, ns=(before + 1, before + 1))  # copied, so still the same
            packed(photos, shorter_side=30)
    assert len(sizes) == 1
    os.utime(photo, ns=(before + 1, before + 1))
    with pytest.raises(ValueError, match="exists and isn't what would be packed"):
        packed(photos, shorter_side=30)
    target.unlink()
    assert packed(photos, shorter_side=30).stat().st_mtime_ns != before


def test_what_a_kill_at_the_end_left_is_removed(photos: Path) -> None:
    target = packed(photos)
    journal = target.with_name(f".{target.name}.journal")
    journal.write_text("of a process that was killed when the file was in its place")
    packed(photos)
    assert not journal.exists()


def test_unreadable_images_are_left_out_and_told(photos: Path) -> None:
    bad = photos / "train/ant/2.jpg"
    bad.write_text("text")
    target = photos.parent / "all"
    ((path, reason),) = pack(find_images(photos).table(), target, PackOptions(), 0)
    assert path == bad
    assert "not an image" in reason
    assert load_packed(target).train.labels.tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_an_image_that_is_too_long_for_a_jpeg_is_left_out(photos: Path) -> None:
    long = photos / "train/ant/long.png"
    Image.new("RGB", (70_000, 2)).save(long)
    left_out = pack(find_images(photos).table(), photos.parent / "all", PackOptions(), 0)
    assert left_out == [(long, "it can't become a JPEG of 70000 x 2 pixels")]


def test_nothing_is_packed_if_no_image_can_be_read(photos: Path) -> None:
    files = [path for path in photos.rglob("*") if path.is_file()]
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(bytes(len(content)))  # of the same size, so that it is the same plan
    with pytest.raises(
        ValueError, match=r"No image can be read, such as .*\(not an image.*nothing"
    ):
        packed(photos)
    assert [path.name for path in photos.parent.iterdir()] == [photos.name]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    assert len(load_packed(packed(photos)).train) == 8


def test_a_folder_is_not_to_be_deleted_for_a_packed_file(photos: Path) -> None:
    with pytest.raises(ValueError, match="is a folder; name a file"):
        packed(photos, photos.name)


def test_a_damaged_image_says_what_makes_the_file_sound_again(photos: Path) -> None:
    target = packed(photos)
    content = target.read_bytes()
    target.write_bytes(content[:HEADER_BYTES] + b"\0" + content[HEADER_BYTES + 1 :])
    packed(photos)  # it looks at the index only
    with pytest.raises(UnreadableImage, match=r"is damaged: .*; delete the file and pack it again"):
        open_packed(target)[0]
    target.unlink()
    assert packed(photos).read_bytes() == content


def test_two_processes_do_not_pack_into_one_file(photos: Path) -> None:
    lock, refused = FileLock(photos.parent / ".photos.packed.lock"), "Another process is packing"
    with lock, pytest.raises(ValueError, match=refused):
        packed(photos)


def test_wrong_options_are_refused() -> None:
    for options in ({"shorter_side": 0}, {"quality": 96}, {"quality": 0}):
        with pytest.raises(ValueError, match="must be"):
            dataclasses.replace(PackOptions(), **options)


def test_processes_that_nobody_means_are_refused(photos: Path) -> None:
    for workers in (-1, 10**6):
        with pytest.raises(ValueError, match=f"0 to 1024, not {workers}"):
            packed(photos, workers=workers)


def test_imagenet_and_its_subsets_are_taken_from_a_packed_file(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for i in range(3):
            fill_folder(tmp_path / "in" / part / f"n0{i}", 1, "JPEG", level=i)
    target = tmp_path / "in.packed"
    pack(find_images(tmp_path / "in").table(), target, PackOptions(), 0)
    names = tmp_path / "names.txt"
    names.write_text("n02\nn00\n")
    data = load_imagenet(target, classes_file=names, image_size=8)
    assert data.classes == ("n00", "n02")  # sorted, as from the folders
    assert data.train.labels.tolist() == [0, 1]
    assert load_imagenet(tmp_path / "in", classes_file=names, image_size=8).classes == data.classes
    assert load_packed(target, classes_file=names).classes == ("n02", "n00")
    with pytest.raises(ValueError, match=r"no images of the class .* lacks 100 of the 100"):
        load_imagenet(target, subset="ccil")


def test_a_class_asked_for_must_have_training_images_in_a_packed_file(photos: Path) -> None:
    (photos / "train" / "bee").mkdir()
    names = photos.parent / "names.txt"
    names.write_text("cat\nbee\n")
    with pytest.raises(ValueError, match=r"no images of the class 'bee'.* lacks 1 of the 2"):
        load_packed(packed(photos), classes_file=names)
