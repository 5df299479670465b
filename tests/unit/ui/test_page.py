"""The basket while an update goes on, and after it."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from densekd.ui import session as session_module
from densekd.ui.session import Session
from densekd.ui.uploads import Upload, counts
from densekd.ui.worker import UpdateProgress

if TYPE_CHECKING:
    from densekd.ui.page import Page

pytestmark = pytest.mark.slow  # to import Gradio takes seconds


class _Begun:
    """An update that goes on until the test ends it."""

    def __init__(
        self, folder: Path, source: Path, options: object, at_end: Callable[["_Begun"], None]
    ) -> None:
        self.source, self.progress = source, UpdateProgress()
        self.running, self.stopped = True, False
        self.update: object = None
        self.failure: str | None = None
        self._at_end = at_end

    def images(self) -> list[str]:
        """What it can read."""
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
    """Of a model that isn't there yet."""
    pytest.importorskip("gradio")
    from densekd.ui.page import Page

    monkeypatch.setattr(session_module, "UpdateJob", _Begun)

    async def placed() -> Page:
        return Page(Session(tmp_path / "model", tmp_path))

    return asyncio.run(placed())  # else Gradio makes an event loop that nobody closes


def dropped(page: "Page", basket: list[Upload], *names: str) -> list[Upload]:
    """The basket after images were dropped."""
    told = []
    for name in names:
        file = page.session.inbox / name.replace("/", "-")
        file.touch()
        told.append({"name": name, "file": str(file)})
    return _basket(page, page.drop(json.dumps(told), basket))


def taught(page: "Page", *names: str) -> tuple[_Begun, list[Upload]]:
    """An update by such images, and the basket after it has begun."""
    basket = _basket(page, page.teach(dropped(page, [], *names), "", None, None, False))
    assert isinstance(page.session.job, _Begun)
    return page.session.job, basket


def _basket(page: "Page", changes: dict[Any, Any]) -> list[Upload]:
    basket: list[Upload] = changes[page.basket]
    return basket


def _files(page: "Page") -> int:
    return sum(1 for _ in (page.session.inbox.parent / "kept").iterdir())


def test_what_is_taught_cannot_be_cleared(page: "Page") -> None:
    job, basket = taught(page, "cat/1.png", "dog/1.png")
    basket = dropped(page, basket, "rat/1.png")
    assert counts(basket) == {"rat": 1}
    page.forget(basket)
    assert job.images() == ["cat/1.png", "dog/1.png"]


def test_what_was_learned_is_gone_and_what_was_dropped_meanwhile_is_not(page: "Page") -> None:
    job, basket = taught(page, "cat/1.png", "dog/1.png")
    basket = dropped(page, basket, "rat/1.png")
    job.update = object()
    job.end()
    assert _basket(page, page.restore(basket)) == basket
    assert basket[0].file.exists()
    assert _files(page) == 1


def test_what_was_not_learned_is_put_back_once(page: "Page") -> None:
    _, basket = taught(page, "cat/1.png", "dog/1.png")
    basket = dropped(page, basket, "rat/1.png")
    shown = list(page.follow())
    assert not page.session.running
    assert all(page.basket not in changes for changes in shown)
    basket = _basket(page, page.restore(basket))
    assert [upload.folders for upload in basket] == [("cat",), ("dog",), ("rat",)]
    assert all(upload.file.exists() for upload in basket)
    # Else another window could clear what this one is about to teach.
    assert _basket(page, page.restore([])) == []


def test_what_nobody_took_back_outlasts_the_next_update(page: "Page") -> None:
    for names in (("cat/1.png", "dog/1.png"), ("rat/1.png", "cow/1.png")):
        taught(page, *names)[0].end()
    assert [*counts(_basket(page, page.restore([])))] == ["cat", "cow", "dog", "rat"]
