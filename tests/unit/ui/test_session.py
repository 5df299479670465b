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
from densekd.ui import markup
from densekd.ui import session as session_module
from densekd.ui.session import Session


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


@pytest.mark.parametrize(("count", "why"), [(24, "no classes yet"), (25, "25 photos are too many")])
def test_images_that_cannot_be_predicted_are_deleted(
    session: Session, count: int, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        session.look(sent(session, count))
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
