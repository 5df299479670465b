"""The selected images during an update, and after it."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from densekd.jobs.events import JobProgress
from densekd.ui import session as session_module
from densekd.ui.session import Session
from densekd.ui.uploads import Upload, class_counts
from densekd.ui.worker import UpdateInput

if TYPE_CHECKING:
    from densekd.ui.page import Page

pytestmark = pytest.mark.slow  # to import Gradio takes seconds


class _FakeJob:
    """An update that runs until the test ends it."""

    def __init__(self, task: UpdateInput, at_end: Callable[["_FakeJob"], None]) -> None:
        self.source, self.progress, self.warnings = task.source, JobProgress("Starting"), ["little"]
        self.running, self.stopped = True, False
        self.update: object = None
        self.failure: str | None = None
        self._at_end = at_end

    def images(self) -> list[str]:
        """The files that it can read."""
        found = (file.relative_to(self.source) for file in self.source.rglob("*") if file.is_file())
        return sorted(map(str, found))

    def end(self) -> None:
        self._at_end(self)
        self.running = False

    def wait(self, seconds: float | None = None) -> None:
        self.stopped = True
        self.end()


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Page":
    """The page of a model that doesn't exist yet."""
    pytest.importorskip("gradio")
    from densekd.ui.page import Page

    monkeypatch.setattr(session_module, "UpdateJob", _FakeJob)

    async def placed() -> Page:
        return Page(Session(tmp_path / "model", tmp_path))

    return asyncio.run(placed())  # else Gradio makes an event loop that nobody closes


def dropped(page: "Page", selected: list[Upload], *names: str) -> list[Upload]:
    """The selected after images were dropped."""
    told = []
    for name in names:
        file = page.session.inbox / name.replace("/", "-")
        file.touch()
        told.append({"name": name, "file": str(file)})
    return _selected(page, page.drop(json.dumps(told), selected))


def taught(page: "Page", *names: str) -> tuple[_FakeJob, list[Upload]]:
    """An update by such images, and the selected after it has begun."""
    selected = _selected(page, page.teach(dropped(page, [], *names), "", None, None, False))
    assert isinstance(page.session.job, _FakeJob)
    return page.session.job, selected


def _selected(page: "Page", changes: dict[Any, Any]) -> list[Upload]:
    selected: list[Upload] = changes[page.selected]
    return selected


def _files(page: "Page") -> int:
    return sum(1 for _ in (page.session.inbox.parent / "uploads").iterdir())


def test_clearing_leaves_the_images_of_an_update_alone(page: "Page") -> None:
    job, selected = taught(page, "cat/1.png", "dog/1.png")
    selected = dropped(page, selected, "rat/1.png")
    assert class_counts(selected) == {"rat": 1}
    page.clear(selected)
    assert job.images() == ["cat/1.png", "dog/1.png"]


def test_learned_images_are_deleted_and_later_ones_stay_selected(page: "Page") -> None:
    job, selected = taught(page, "cat/1.png", "dog/1.png")
    selected = dropped(page, selected, "rat/1.png")
    job.update = object()
    job.end()
    assert _selected(page, page.restore(selected)) == selected
    assert selected[0].file.exists()
    assert _files(page) == 1


def test_images_of_a_stopped_update_are_selected_again_once(page: "Page") -> None:
    _, selected = taught(page, "cat/1.png", "dog/1.png")
    selected = dropped(page, selected, "rat/1.png")
    shown = list(page.follow())
    assert page.session.job is not None
    assert not page.session.job.running
    assert all(page.selected not in changes for changes in shown)
    selected = _selected(page, page.restore(selected))
    assert [upload.folders for upload in selected] == [("cat",), ("dog",), ("rat",)]
    assert all(upload.file.exists() for upload in selected)
    # Else another window could clear what this one is about to teach.
    assert _selected(page, page.restore([])) == []


def test_images_of_two_failed_updates_are_both_selected_again(page: "Page") -> None:
    for names in (("cat/1.png", "dog/1.png"), ("rat/1.png", "cow/1.png")):
        taught(page, *names)[0].end()
    assert [*class_counts(_selected(page, page.restore([])))] == ["cat", "cow", "dog", "rat"]
