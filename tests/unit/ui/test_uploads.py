import json
from pathlib import Path

import pytest

from densekd.data.folder import find_images
from densekd.ui.uploads import (
    by_class,
    check_class_name,
    copy_upload,
    delete_uploads,
    link_by_class,
    take_uploads,
)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """The inbox, and the folder that uploads are moved to."""
    inbox, kept = tmp_path / "inbox", tmp_path / "kept"
    inbox.mkdir()
    kept.mkdir()
    return inbox, kept


def sent_files(inbox: Path, *names: str) -> str:
    """What a drop area sends; files of one name and content are uploaded once."""
    sent = []
    for name in names:
        file = inbox / name.rpartition("/")[2]
        file.write_text("an image")
        sent.append({"name": name, "file": str(file)})
    return json.dumps(sent)


def test_folders_are_classes(places: tuple[Path, Path]) -> None:
    inbox, kept = places
    names = ("photos/a cat/1.png", "photos/dog/1.png", "rat/2.png", "3.png", "photos/.DS_Store")
    hidden = ("photos/.thumbnails/1.png", "photos/dog/.cache/1.png")
    uploads = take_uploads(sent_files(inbox, *names, *hidden), inbox, kept)
    assert [(upload.folders, upload.name) for upload in uploads] == [
        (("a cat",), "1.png"),
        (("dog",), "1.png"),
        (("rat",), "2.png"),
        ((), "3.png"),
    ]
    assert list(inbox.iterdir()) == []
    assert [upload.file.read_text() for upload in uploads] == ["an image"] * 4
    assert list(by_class(uploads)) == ["", "a cat", "dog", "rat"]
    assert [[upload.name for upload in own] for own in by_class(uploads).values()] == [
        *(["3.png"], ["1.png"], ["1.png"], ["2.png"])
    ]
    delete_uploads(uploads)
    assert list(kept.iterdir()) == []


def test_uploads_are_linked_into_class_folders(places: tuple[Path, Path]) -> None:
    inbox, kept = places
    uploads = take_uploads(sent_files(inbox, "a/cat/1.png"), inbox, kept)
    uploads += take_uploads(sent_files(inbox, "b/cat/1.png", "b/1.png"), inbox, kept)
    loose = take_uploads(sent_files(inbox, "1.png", "2.png"), inbox, kept)
    uploads += [upload.in_class(check_class_name(" 7 ")) for upload in loose]
    link_by_class(uploads, kept / "lesson")
    found = find_images(kept / "lesson")
    files = {name: [file.name for file in own] for name, own in found.parts["all"].items()}
    assert files == {"7": ["1.png", "2.png"], "b": ["1.png"], "cat": ["1.png", "2 1.png"]}
    assert found.left_out == []


def test_a_divided_folder_stays_divided(places: tuple[Path, Path]) -> None:
    inbox, kept = places
    names = ("all/train/cat/1.png", "all/val/cat/2.png")
    link_by_class(take_uploads(sent_files(inbox, *names), inbox, kept), kept / "lesson")
    assert set(find_images(kept / "lesson").parts) == {"train", "val"}


def test_train_and_val_that_are_dropped_together_stay_divided(places: tuple[Path, Path]) -> None:
    inbox, kept = places
    uploads = take_uploads(sent_files(inbox, "train/cat/1.png", "val/cat/2.png"), inbox, kept)
    assert [upload.label for upload in uploads] == ["cat", "cat"]
    link_by_class(uploads, kept / "lesson")
    assert set(find_images(kept / "lesson").parts) == {"train", "val"}
    (photo,) = take_uploads(sent_files(inbox, "train/1.png"), inbox, kept)  # of a locomotive
    assert photo.label == "train"


def test_classes_that_would_be_parts_of_a_data_set_are_refused(places: tuple[Path, Path]) -> None:
    inbox, kept = places
    uploads = take_uploads(sent_files(inbox, "train/1.png", "test/2.png"), inbox, kept)
    with pytest.raises(ValueError, match=r"called test and train at once.* another name"):
        link_by_class(uploads, kept / "lesson")
    uploads += take_uploads(sent_files(inbox, "all/train/cat/1.png", "all/val/cat/2.png"), *places)
    link_by_class(uploads, kept / "divided")
    assert set(find_images(kept / "divided").parts["train"]) == {"cat", "test", "train"}


def test_every_photo_is_linked_to_where_it_is_found(places: tuple[Path, Path]) -> None:
    inbox, kept = places
    deep = ("deep/animals/rat/1.png", "deep/train/cat/1.png")  # without a folder to test on
    uploads = take_uploads(sent_files(inbox, *deep, "dog/1.png"), inbox, kept)
    link_by_class(uploads, kept / "whole")
    found = find_images(kept / "whole")
    assert (set(found.parts["all"]), found.left_out) == ({"rat", "cat", "dog"}, [])
    for names in (("all/val/cat/2.png",), ("more/test/cat/2.png", "more/train/cat/3.png")):
        uploads += take_uploads(sent_files(inbox, *names), inbox, kept)
    link_by_class(uploads, kept / "divided")
    found = find_images(kept / "divided")
    files = {
        part: {name: [file.name for file in own] for name, own in classes.items()}
        for part, classes in found.parts.items()
    }
    cats = {"cat": ["1.png", "3.png"], "dog": ["1.png"], "rat": ["1.png"]}
    assert files == {"train": cats, "val": {"cat": ["2 2.png", "2.png"]}}
    assert found.left_out == []


def test_the_name_of_a_photo_need_not_be_printable(places: tuple[Path, Path]) -> None:
    inbox, kept = places
    (inbox / "file").touch()
    # As macOS names screenshots, and a name with an emoji of several parts.
    for name, shown in (("at 9.41\u202fAM.png", "at 9.41 AM.png"), ("a\u200db.png", "a b.png")):
        (inbox / "file").touch()
        sent = json.dumps([{"name": f"cat/{name}", "file": str(inbox / "file")}])
        assert [upload.name for upload in take_uploads(sent, inbox, kept)] == [shown]


def test_a_photo_moves_to_another_class_of_its_part(places: tuple[Path, Path]) -> None:
    (photo,) = take_uploads(sent_files(places[0], "all/val/cat/2.png"), *places)
    assert photo.label == "cat"
    assert photo.in_class("dog").folders == ("val", "dog")
    assert photo.in_class("dog").file == photo.file


@pytest.mark.parametrize(("letter", "bytes_"), [("a", 200), ("é", 199), ("€", 200)])
def test_the_long_name_of_a_photo_is_shortened(
    places: tuple[Path, Path], letter: str, bytes_: int
) -> None:
    inbox, kept = places
    (inbox / "file").touch()
    long = [{"name": f"cat/{letter * 240}.jpeg", "file": str(inbox / "file")}]
    (upload,) = take_uploads(json.dumps(long), inbox, kept)
    assert upload.name.strip(letter) == ".jpeg"
    assert len(upload.name.encode()) == bytes_
    link_by_class([upload, copy_upload(upload)], kept / "lesson")
    assert len(find_images(kept / "lesson").parts["all"]["cat"]) == 2


@pytest.mark.parametrize("name", ["../a.png", "a/../../b.png", "a/./b.png", "a//b.png", "a\0.png"])
def test_names_with_paths_are_refused(places: tuple[Path, Path], name: str) -> None:
    inbox, kept = places
    (inbox / "file").touch()
    sent = json.dumps([{"name": each, "file": str(inbox / "file")} for each in ("a.png", name)])
    with pytest.raises(ValueError, match="name"):
        take_uploads(sent, inbox, kept)
    assert list(kept.iterdir()) == []


def test_files_outside_the_inbox_are_refused(places: tuple[Path, Path]) -> None:
    inbox, kept = places
    outside = kept.parent / "secret.png"
    outside.touch()
    (inbox / "link.png").symlink_to(outside)
    for file in (outside, inbox / ".." / "secret.png", inbox / "link.png", inbox, inbox / "none"):
        with pytest.raises(ValueError, match="wasn't uploaded"):
            take_uploads(json.dumps([{"name": "a.png", "file": str(file)}]), inbox, kept)
    assert outside.exists()


@pytest.mark.parametrize("sent", [None, "", "{}x", "[1]", '[{"name": "a.png"}]', '{"a": 1}'])
def test_malformed_lists_are_refused(places: tuple[Path, Path], sent: object) -> None:
    with pytest.raises(ValueError, match="reload the page"):
        take_uploads(sent, *places)


@pytest.mark.parametrize(
    ("label", "why"),
    [
        ("  ", "class name"),
        ("a/b", "can't be a class name"),
        ("..", "can't be a name"),
        (".hidden", "begin it with a letter"),
        ("x" * 300, "is longer than 200 bytes"),
        ("a\nb", "can't be a class name"),
        ("\u200d", "can't be a class name"),
    ],
)
def test_a_class_name_must_be_valid_as_a_folder(label: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_class_name(label)


@pytest.mark.parametrize(
    "name",
    [
        "\N{WOMAN}\u200d\N{GIRL}",
        "\u0645\u06cc\u200c\u0634\u0648\u062f",
        "\u9ed2\u3000\u732b",
        "\U0001fae8",
    ],
    ids=["emoji of two parts", "Persian", "wide space", "emoji of Unicode 15"],
)
def test_a_class_name_may_be_of_any_script(places: tuple[Path, Path], name: str) -> None:
    assert check_class_name(name) == name
    uploads = take_uploads(sent_files(places[0], f"photos/{name}/1.png"), *places)
    link_by_class(uploads, places[1] / "lesson")
    assert [*find_images(places[1] / "lesson").parts["all"]] == [name]


def test_a_copy_stays_when_the_photo_is_deleted(places: tuple[Path, Path]) -> None:
    (photo,) = take_uploads(sent_files(places[0], "1.png"), *places)
    copied = copy_upload(photo)
    delete_uploads([photo])
    assert copied.id != photo.id
    assert (copied.name, copied.file.read_text()) == ("1.png", "an image")
