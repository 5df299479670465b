import json
from pathlib import Path

import pytest

from densekd.model.settings import TeachOptions
from densekd.ui.session import Session


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """Of a model that isn't there yet."""
    (tmp_path / "temporary").mkdir()
    return Session(tmp_path / "model", tmp_path / "temporary")


def sent(session: Session, count: int) -> str:
    files = [session.inbox / f"{i}.png" for i in range(count)]
    for file in files:
        file.touch()
    return json.dumps([{"name": file.name, "file": str(file)} for file in files])


@pytest.mark.parametrize(("count", "why"), [(24, "knows nothing yet"), (25, "too many")])
def test_what_cannot_be_looked_at_is_not_kept_either(
    session: Session, count: int, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        session.look(sent(session, count), top=1)
    assert [file for file in session.inbox.parent.rglob("*") if file.is_file()] == []


def test_there_must_be_something_to_learn_from(session: Session) -> None:
    assert session.history() == []
    with pytest.raises(ValueError, match="drop some images first"):
        session.teach([], TeachOptions())
    assert session.job is None
    session.stop()
    session.close()
