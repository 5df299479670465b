import io
import json
import re
from pathlib import Path
from typing import NoReturn

import pytest
from PIL import Image

from densekd.model.frozen.edit import Correction
from densekd.model.frozen.review import Suspect
from densekd.model.options import TeachOptions
from densekd.model.teach import teach_model
from densekd.ui import markup
from densekd.ui import session as session_module
from densekd.ui.session import Session, not_learned
from densekd.ui.uploads import Upload, link_by_class

from support.photos import TINY, fill, picture


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session for a model that doesn't exist yet."""
    (tmp_path / "temporary").mkdir()
    return Session(tmp_path / "model", tmp_path / "temporary")


def sent(session: Session, count: int) -> str:
    files = [session.inbox / f"{i}.png" for i in range(count)]
    for file in files:
        file.touch()
    return json.dumps([{"name": file.name, "file": str(file)} for file in files])


@pytest.mark.parametrize(
    ("count", "why"), [(24, "no classes yet"), (25, "at most 24 photos at once, not 25")]
)
def test_images_that_cannot_be_predicted_are_deleted(
    session: Session, count: int, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        session.classify(sent(session, count))
    assert [file for file in session.inbox.parent.rglob("*") if file.is_file()] == []


def test_photos_go_into_the_class_that_was_typed(session: Session) -> None:
    session.drop(sent(session, 1), "")
    assert [photo.label for photo in session.basket.photos()] == [""]
    session.drop(sent(session, 1), "cat")
    assert [photo.label for photo in session.basket.photos()] == ["cat", "cat"]
    with pytest.raises(ValueError, match="can't be a class name"):
        session.drop(sent(session, 1), "a/b")
    assert [photo.label for photo in session.basket.photos()] == ["cat", "cat", ""]


def test_a_thumbnail_is_a_small_jpeg(session: Session) -> None:
    session.drop(sent(session, 2), "")
    good, bad = session.basket.photos()
    Image.new("RGB", (900, 300), (200, 40, 40)).save(good.file, "PNG")
    content = session.thumbnail(good.id)
    assert content is not None
    with Image.open(io.BytesIO(content)) as small:
        assert (small.format, small.size) == ("JPEG", (224, 75))
    assert session.thumbnail(bad.id) is None  # it is empty
    assert session.thumbnail("0123456789abcdef") is None
    assert session.thumbnail("../" + good.id) is None


def test_teaching_needs_named_photos_of_two_classes(session: Session) -> None:
    assert session.history() == []
    assert session.revision() is None
    with pytest.raises(ValueError, match="drop some first"):
        session.teach(TeachOptions())
    session.drop(sent(session, 1), "")
    with pytest.raises(ValueError, match="no class yet"):
        session.teach(TeachOptions())
    session.basket.name_rest("cat")
    with pytest.raises(ValueError, match="at least two classes"):
        session.teach(TeachOptions())
    assert len(session.basket.photos()) == 1
    assert session.job is None
    session.stop()
    session.close()


def test_an_update_that_cannot_start_leaves_the_photos(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(*_: object) -> NoReturn:
        raise OSError("no more processes")

    monkeypatch.setattr(session_module, "UpdateJob", no_process)
    for name in ("cat", "dog"):
        session.drop(sent(session, 1), name)
    photos = session.basket.photos()
    with pytest.raises(OSError, match="no more processes"):
        session.teach(TeachOptions())
    assert session.basket.photos() == photos
    assert all(photo.file.exists() for photo in photos)
    assert session.job is None
    assert list(session.inbox.parent.glob("update-*")) == []


def test_photos_that_a_step_does_not_have(session: Session, tmp_path: Path) -> None:
    names = [(name, number) for name in ("red", "green") for number in range(4)]
    uploads = []
    for name, number in names:
        file = tmp_path / f"{name} {number}"
        picture(name, number).save(file, "PNG")
        uploads.append(Upload((name,), f"{number}.png", file))
    (tmp_path / "text").write_text("no image")
    text = Upload(("red",), "text.png", tmp_path / "text")
    link_by_class([*uploads[:3], *uploads[4:], text], tmp_path / "lesson")
    assert not session.trains()
    step = teach_model(session.folder, tmp_path / "lesson", TeachOptions()).step
    assert not session.trains()
    given = [*uploads, text]
    assert [*not_learned(given, session.folder, step)] == [uploads[3], text]
    # Another class of the same photo wasn't learned.
    moved = uploads[0].in_class("green")
    assert [*not_learned([moved], session.folder, step)] == [moved]
    assert [*not_learned(given, tmp_path / "none", 0)] == given  # nothing is lost


def test_of_a_trained_model_nothing_is_known(session: Session, tmp_path: Path) -> None:
    teach_model(session.folder, fill(tmp_path / "images", {"red": 5, "green": 5}), TINY)
    assert session.trains()
    assert [*not_learned([Upload(("red",), "x", tmp_path / "x")], session.folder, 0)] == []


def test_a_photo_of_two_classes_is_corrected_in_the_selected_one(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[Correction]] = []
    monkeypatch.setattr(session_module, "correct_photos", lambda _, given: asked.append(given))
    session.reviewer.suspects = [
        Suspect(b"hash", "cat", "dog", b"image"),
        Suspect(b"hash", "dog", "cat", b"image"),
    ]
    shown = re.findall(r"data-photo='(\w+)'", markup.suspects(session.reviewer.suspects))
    session.correct(shown[1:], remove=True)
    session.correct(shown, remove=False)
    first, second = Correction(b"hash", "cat", "dog"), Correction(b"hash", "dog", "cat")
    assert asked == [[second._replace(to=None)], [first, second]]
