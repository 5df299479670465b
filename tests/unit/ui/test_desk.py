import json
from pathlib import Path

import pytest

from densekd.model.folder import TeachOptions
from densekd.ui.desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Of a model that isn't there yet."""
    (tmp_path / "temporary").mkdir()
    return Desk(tmp_path / "model", tmp_path / "temporary")


def sent(desk: Desk, count: int) -> str:
    files = [desk.inbox / f"{i}.png" for i in range(count)]
    for file in files:
        file.touch()
    return json.dumps([{"name": file.name, "file": str(file)} for file in files])


@pytest.mark.parametrize(("count", "why"), [(24, "knows nothing yet"), (25, "too many")])
def test_what_cannot_be_looked_at_is_not_kept_either(desk: Desk, count: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        desk.look(sent(desk, count), top=1)
    assert [file for file in desk.inbox.parent.rglob("*") if file.is_file()] == []


def test_there_must_be_something_to_learn_from(desk: Desk) -> None:
    assert desk.history() == []
    with pytest.raises(ValueError, match="drop some images first"):
        desk.teach([], TeachOptions())
    assert desk.job is None
    desk.stop()
    desk.close()
