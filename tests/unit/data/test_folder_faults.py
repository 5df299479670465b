"""Faults found in real folders: each has a defined outcome and a line in the log."""

import os
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from densekd.data.dataset import Dataset, FileImages
from densekd.data.folder import check_images, find_images
from densekd.data.folder_images import load_folder

BOTH_WAYS = pytest.mark.parametrize("memory_bytes", [0, 1 << 30], ids=["files", "memory"])


def save(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.effect_noise((40, 30), 60).convert("RGB").save(file)
    return file


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Make two classes of five intact images."""
    for name in ("cat", "dog"):
        for i in range(5):
            save(tmp_path / "pets" / name / f"{i}.jpg")
    return tmp_path / "pets"


def load(path: Path, memory_bytes: int = 1 << 30) -> Dataset:
    return load_folder(path, image_size=8, memory_bytes=memory_bytes)


def size(data: Dataset) -> int:
    return len(data.train) + len(data.test)


def claim_size(file: Path, width: int, height: int) -> None:
    """Let a small PNG's header claim a large image."""
    content = bytearray(file.read_bytes())
    content[16:24] = struct.pack(">II", width, height)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    file.write_bytes(content)


def make_text(pets: Path) -> Path:
    (pets / "cat" / "notes.txt").write_text("they are cats")
    return pets / "cat" / "notes.txt"


def make_text_called_an_image(pets: Path) -> Path:
    (pets / "cat" / "9.jpg").write_text("<html>404</html>")
    return pets / "cat" / "9.jpg"


def make_empty_file(pets: Path) -> Path:
    (pets / "cat" / "9.png").touch()
    return pets / "cat" / "9.png"


def make_file_without_ending(pets: Path) -> Path:
    (pets / "cat" / "README").write_text("text")
    return pets / "cat" / "README"


def make_file_outside(pets: Path) -> Path:
    return save(pets / "9.jpg")


def make_empty_class(pets: Path) -> Path:
    (pets / "bird").mkdir()
    return pets / "bird"


def make_nested_folder(pets: Path) -> Path:
    save(pets / "cat" / "more" / "9.jpg")
    return pets / "cat" / "more"


def make_broken_link(pets: Path) -> Path:
    (pets / "cat" / "9.jpg").symlink_to(pets / "gone.jpg")
    return pets / "cat" / "9.jpg"


def make_broken_class_link(pets: Path) -> Path:
    (pets / "bird").symlink_to(pets / "gone")
    return pets / "bird"


def make_link_to_itself(pets: Path) -> Path:
    (pets / "cat" / "9.jpg").symlink_to(pets / "cat" / "9.jpg")
    return pets / "cat" / "9.jpg"


def make_class_link_to_parent(pets: Path) -> Path:
    (pets / "loop").symlink_to(pets, target_is_directory=True)
    return pets / "loop"


def make_link_to_parent_in_class(pets: Path) -> Path:
    (pets / "cat" / "loop").symlink_to(pets / "cat", target_is_directory=True)
    return pets / "cat" / "loop"


def make_pipe(pets: Path) -> Path:
    """Make a FIFO, which would block whoever opens it."""
    os.mkfifo(pets / "cat" / "9.jpg")
    return pets / "cat" / "9.jpg"


def make_bomb(pets: Path) -> Path:
    file = save(pets / "cat" / "9.png")
    claim_size(file, 60_000, 60_000)
    return file


def make_small_bomb(pets: Path) -> Path:
    """Claim a size at which Pillow only warns."""
    file = save(pets / "cat" / "9.png")
    claim_size(file, 10_000, 9_000)
    return file


def make_heic(pets: Path) -> Path:
    (pets / "cat" / "IMG_1.HEIC").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    return pets / "cat" / "IMG_1.HEIC"


def make_heic_called_jpg(pets: Path) -> Path:
    return make_heic(pets).rename(pets / "cat" / "9.jpg")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_text, "'.txt' is not the ending of"),
        (make_text_called_an_image, "not an image"),
        (make_empty_file, "not an image"),
        (make_file_without_ending, "'' is not the ending of"),
        (make_file_outside, "it is outside the class folders"),
        (make_empty_class, "a class folder without images"),
        (make_nested_folder, "a folder in a class folder"),
        (make_broken_link, "it is a link that leads nowhere"),
        (make_broken_class_link, "it is a link that leads nowhere"),
        (make_link_to_itself, "it is a link that leads nowhere"),
        (make_class_link_to_parent, "a class folder without images"),
        (make_link_to_parent_in_class, "a folder in a class folder"),
        (make_pipe, "it is neither a file nor a folder"),
        (make_bomb, "it has more pixels than Pillow's limit"),
        (make_small_bomb, "it has more pixels than Pillow's limit"),
        (make_heic, "HEIC"),
        (make_heic_called_jpg, "not an image"),
    ],
)
@BOTH_WAYS
def test_a_bad_file_is_left_out_and_named(
    make: Callable[[Path], Path],
    reason: str,
    memory_bytes: int,
    pets: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = make(pets)
    data = load(pets, memory_bytes)
    assert data.classes == ("cat", "dog")
    assert size(data) == 10
    assert f"Left out '{made}': {reason}" in caplog.text
    found = find_images(pets)
    counts, unreadable = check_images(found.table())
    assert {name: n for name, n in counts["all"].items() if n} == {"cat": 5, "dog": 5}
    assert [why for path, why in found.left_out + unreadable if path == made and reason in why]


def test_a_truncated_image_is_left_out_of_memory(
    pets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut = pets / "dog" / "2.jpg"
    cut.write_bytes(cut.read_bytes()[:700])
    assert size(load(pets)) == 9
    assert f"Left out '{cut}': image file is truncated" in caplog.text


def test_a_truncated_image_among_files_is_found_by_the_check(pets: Path) -> None:
    cut = pets / "dog" / "2.jpg"
    cut.write_bytes(cut.read_bytes()[:700])
    assert size(load(pets, memory_bytes=0)) == 10
    found = find_images(pets)
    counts, unreadable = check_images(found.table())
    assert counts == {"all": {"cat": 5, "dog": 4}}
    assert [path for path, _ in unreadable] == [cut]


@BOTH_WAYS
def test_hidden_files_and_folders_are_ignored(
    pets: Path, memory_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    for hidden in (".DS_Store", "cat/.thumb.jpg", "cat/._0.jpg", ".git/x.jpg", "dog/.cache/x.jpg"):
        save((pets / hidden).with_suffix(".jpg")).rename(pets / hidden)
    assert size(load(pets, memory_bytes)) == 10
    assert caplog.messages == []
    assert find_images(pets).left_out == []
    assert check_images(find_images(pets).table())[1] == []


def test_a_class_of_one_image_is_trained_on_with_a_warning(
    pets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(pets / "bird" / "0.jpg")
    data = load(pets)
    assert data.classes == ("bird", "cat", "dog")
    assert data.train.labels.tolist().count(0) == 1
    assert data.test.labels.tolist().count(0) == 0
    assert "none to test on, of: 'bird'." in caplog.text


@BOTH_WAYS
def test_a_class_without_readable_images_is_dropped(
    pets: Path, memory_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    (pets / "bird").mkdir()
    (pets / "bird" / "0.jpg").write_text("text")
    data = load(pets, memory_bytes)
    assert data.classes == ("cat", "dog")
    assert set(data.train.labels.tolist()) == {0, 1}
    assert f"Left out '{pets / 'bird' / '0.jpg'}': not an image" in caplog.text


@pytest.mark.parametrize("name", ["sea gull", "Möwe", "カモメ", "0", "-1", "it's", "a.b", "50%"])
def test_class_names_of_all_kinds_are_kept(pets: Path, name: str) -> None:
    for i in range(5):
        save(pets / name / f"{i} {name}.jpg")
    data = load(pets)
    assert data.classes == tuple(sorted(["cat", "dog", name]))
    assert size(data) == 15


@pytest.mark.parametrize(
    "name", ["9.JPG", "9.PNG", "9.Jpeg", "9.gif", "9.webp", "9.BMP", "9.tiff", "9.tif"]
)
def test_the_usual_endings_in_any_case_are_taken(pets: Path, name: str) -> None:
    save(pets / "cat" / name)
    data = load(pets, memory_bytes=0)
    assert size(data) == 11
    assert isinstance(data.train.images, FileImages)
    assert isinstance(data.test.images, FileImages)
    assert pets / "cat" / name in [*data.train.images.files, *data.test.images.files]


def test_an_image_under_the_wrong_ending_is_taken(pets: Path) -> None:
    save(pets / "cat" / "9.png").rename(pets / "cat" / "9.jpg")
    assert size(load(pets)) == 11


def test_a_link_to_a_class_elsewhere_is_followed(pets: Path, tmp_path: Path) -> None:
    save(tmp_path / "elsewhere" / "0.jpg")
    (pets / "bird").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert load(pets).classes == ("bird", "cat", "dog")


@pytest.mark.parametrize(("one", "other"), [("Cat", "cat"), ("M\u00f6we", "Mo\u0308we")])
def test_names_that_differ_only_by_case_or_encoding_are_an_error(
    tmp_path: Path, one: str, other: str
) -> None:
    save(tmp_path / "flat" / one / "0.jpg")
    if (tmp_path / "flat" / other).exists():
        pytest.skip("this file system has only one of the two names")
    save(tmp_path / "flat" / other / "0.jpg")
    save(tmp_path / "divided" / "train" / one / "0.jpg")
    save(tmp_path / "divided" / "val" / other / "0.jpg")
    for folder in (tmp_path / "flat", tmp_path / "divided"):
        with pytest.raises(ValueError, match="differ only by case or encoding") as error:
            load(folder)
        assert repr(one) in str(error.value)
        assert repr(other) in str(error.value)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has names that aren't UTF-8")
def test_a_name_that_is_not_utf8_is_an_error(pets: Path) -> None:
    save(pets / os.fsdecode(b"M\xf6we") / "0.jpg")
    with pytest.raises(ValueError, match=r"'M\\udcf6we'.*UTF-8; rename it"):
        load(pets)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@BOTH_WAYS
def test_files_without_permission_are_left_out_and_named(
    pets: Path, memory_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    file, folder = pets / "cat" / "0.jpg", save(pets / "bird" / "0.jpg").parent
    file.chmod(0)
    folder.chmod(0)
    try:
        data = load(pets, memory_bytes)
    finally:
        folder.chmod(0o700)
    assert data.classes == ("cat", "dog")
    assert size(data) == 9
    assert f"Left out '{file}': Permission denied." in caplog.text
    assert f"Left out '{folder}': the class folder can't be read: Permission denied." in caplog.text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_top_folder_without_permission_is_an_error(pets: Path) -> None:
    pets.chmod(0)
    try:
        with pytest.raises(ValueError, match=r"pets can't be read: Permission denied"):
            load(pets)
    finally:
        pets.chmod(0o700)


def test_an_empty_folder_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"There is no folder .*missing"):
        load(tmp_path / "missing")
    with pytest.raises(ValueError, match=r"has no class folders; make one sub-folder"):
        load(tmp_path)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.jpg").write_text("text")
    for memory_bytes in (0, 1 << 30):
        with pytest.raises(ValueError, match=r"no readable image .*<class>/.*train/<class>/"):
            load(tmp_path, memory_bytes)


def test_a_file_instead_of_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"0\.jpg is a file; give a folder"):
        load(save(tmp_path / "0.jpg"))


def test_images_without_class_folders_are_an_error(tmp_path: Path) -> None:
    save(tmp_path / "0.jpg")
    with pytest.raises(ValueError, match=r"images directly in it.*named after its class"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"images directly in it"):
        find_images(tmp_path)


def test_links_in_a_circle_are_not_followed_forever(
    pets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for part in ("train", "val"):
        (pets / part).symlink_to(pets, target_is_directory=True)
    data = load(pets)
    # Each part links back to the whole folder: cat and dog are found, train and val are empty.
    assert data.classes == ("cat", "dog")
    assert (len(data.train), len(data.test)) == (10, 10)
    assert "a class folder without images" in caplog.text
