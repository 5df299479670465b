import json
from pathlib import Path

import pytest

from densekd.model.settings import TeachOptions
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


@pytest.mark.parametrize(
    ("count", "why"), [(24, "no classes yet"), (25, "25 images selected, too many")]
)
def test_images_that_cannot_be_predicted_are_deleted(
    session: Session, count: int, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        session.predict(sent(session, count), top=1)
    assert [file for file in session.inbox.parent.rglob("*") if file.is_file()] == []


def test_teaching_needs_images(session: Session) -> None:
    assert session.history() == []
    with pytest.raises(ValueError, match="drop some images first"):
        session.teach([], TeachOptions())
    assert session.job is None
    session.stop()
    session.close()
