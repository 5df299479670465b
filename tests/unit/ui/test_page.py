"""What windows show, before, during and after an update."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from densekd.jobs.events import JobProgress
from densekd.model.store import Accuracy, Update
from densekd.ui import session as session_module
from densekd.ui.session import Session
from densekd.ui.worker import UpdateInput

if TYPE_CHECKING:
    from densekd.ui.page import Page

UPDATE = Update(0, ("cat", "dog"), (), 2, 1, None, Accuracy(None, None, None), (), 1.0)
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

    def stop(self) -> None:
        self.progress = JobProgress("Stopping")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Page":
    """The page of a model that doesn't exist yet."""
    pytest.importorskip("gradio")
    from densekd.ui.page import Page

    monkeypatch.setattr(session_module, "UpdateJob", _FakeJob)

    async def placed() -> Page:
        return Page(Session(tmp_path / "model", tmp_path))

    return asyncio.run(placed())  # else Gradio makes an event loop that nobody closes


class Window:
    """What a window shows, by the name of the component."""

    def __init__(self, page: "Page") -> None:
        self.page, self.shown = page, dict[str, Any]()
        self.does(page.refresh)

    def does(self, act: Callable[..., dict[Any, Any]], *given: Any) -> None:
        """Do something on the page, as this window."""
        names = {component: name for name, component in vars(self.page).items() if name != "title"}
        for component, value in act(self.shown.get("seen", {}), *given).items():
            self.shown[names[component]] = value

    def drops(self, *names: str) -> None:
        told = []
        for name in names:
            file = self.page.session.inbox / name.replace("/", "-")
            file.touch()
            told.append({"name": name, "file": str(file)})
        self.does(self.page.drop, json.dumps(told), "")

    def teaches(self) -> _FakeJob:
        self.does(self.page.teach, "", None, None, False)
        job = self.page.session.job
        assert isinstance(job, _FakeJob)
        return job

    @property
    def basket(self) -> list[tuple[str, str]]:
        """The classes of the basket and the number of photos, as far as this window knows."""
        return re.findall(r"<h3>(.*?)</h3><span.*?>(.*?)<", self.shown["basket"])


def _files(page: "Page") -> int:
    return sum(1 for _ in (page.session.inbox.parent / "uploads").iterdir())


def test_all_windows_show_the_same(page: "Page") -> None:
    first, second = Window(page), Window(page)
    first.drops("cat/1.png", "cat/2.png", "dog/1.png")
    assert first.basket == [("cat", "2 photos"), ("dog", "1 photo")]
    assert second.basket == []
    second.does(page.refresh)
    assert second.basket == first.basket
    assert Window(page).basket == first.basket  # a reload
    job = second.teaches()
    first.does(page.refresh)
    assert first.basket == []
    assert "Starting" in first.shown["progress"]
    job.failure = "The update failed: no luck."
    job.end()
    for each in (first, second, Window(page)):
        each.does(page.refresh)
        assert "no luck" in each.shown["progress"]
        assert each.shown["stop_button"]["visible"] is False
        assert each.basket == [("cat", "2 photos"), ("dog", "1 photo")]


def test_a_window_gets_only_what_has_changed(page: "Page") -> None:
    window = Window(page)
    assert page.refresh(window.shown["seen"]) == {page.seen: window.shown["seen"]}
    window.drops("cat/1.png")
    assert set(page.refresh({**window.shown["seen"], "basket": -1})) == {page.seen, page.basket}


def test_buttons_of_the_basket_change_it(page: "Page") -> None:
    import gradio as gr

    window = Window(page)
    window.drops("cat/1.png", "cat/2.png", "3.png")
    ids = [photo.id for photo in page.session.basket.photos()]
    assert window.basket == [("No class yet", "1 photo"), ("cat", "2 photos")]

    def press(action: str, photos: list[str], name: str = "") -> None:
        data = {"action": action, "photos": photos, "name": name}
        window.does(page.change_basket, gr.EventData(None, data))

    press("move", [ids[0], ids[2]], "dog")
    assert window.basket == [("cat", "1 photo"), ("dog", "2 photos")]
    press("remove", [ids[0]])
    assert window.basket == [("cat", "1 photo"), ("dog", "1 photo")]
    assert _files(page) == 2
    press("choose", [], "dog")
    assert window.shown["class_name"] == "dog"
    with pytest.raises(gr.Error, match="Enter a class name"):
        press("move", [ids[1]], " ")
    window.does(page.clear)
    assert window.basket == []
    assert _files(page) == 0


def test_clearing_leaves_the_images_of_an_update_alone(page: "Page") -> None:
    window = Window(page)
    window.drops("cat/1.png", "dog/1.png")
    job = window.teaches()
    window.drops("rat/1.png")
    assert window.basket == [("rat", "1 photo")]
    window.does(page.clear)
    assert job.images() == ["cat/1.png", "dog/1.png"]


def test_learned_images_are_deleted_and_later_ones_stay(
    page: "Page", monkeypatch: pytest.MonkeyPatch
) -> None:
    window = Window(page)
    window.drops("cat/1.png", "dog/1.png")
    job = window.teaches()
    window.drops("rat/1.png")
    job.update = UPDATE
    monkeypatch.setattr(session_module, "not_learned", lambda *_: [])
    job.end()
    window.does(page.refresh)
    assert window.basket == [("rat", "1 photo")]
    assert "learned cat, dog from 2 photos" in window.shown["result"]
    assert window.shown["teach_button"]["interactive"] is True
    assert _files(page) == 1


def test_images_that_were_not_learned_are_in_the_basket_again(
    page: "Page", monkeypatch: pytest.MonkeyPatch
) -> None:
    window = Window(page)
    window.drops("cat/1.png", "cat/2.png", "dog/1.png")
    monkeypatch.setattr(session_module, "not_learned", lambda uploads, *_: uploads[1:2])
    job = window.teaches()
    job.update = UPDATE
    job.end()
    window.does(page.refresh)
    assert window.basket == [("cat", "1 photo")]
    assert _files(page) == 1


def test_only_a_model_that_is_trained_has_epochs(
    page: "Page", monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not page.epochs.visible
    assert Window(page).shown["epochs"]["visible"] is False
    monkeypatch.setattr(page.session, "trains", lambda: True)
    assert Window(page).shown["epochs"]["visible"] is True


def test_images_of_stopped_updates_are_in_the_basket_again(page: "Page") -> None:
    window = Window(page)
    for names in (("cat/1.png", "dog/1.png"), ("rat/1.png", "cow/1.png")):
        window.drops(*names)
        job = window.teaches()
        window.does(page.stop)
        job.stopped = True
        job.end()
        window.does(page.refresh)
        assert "Stopped. The model is unchanged" in window.shown["progress"]
    assert [name for name, _ in window.basket] == ["cat", "cow", "dog", "rat"]
    assert all(photo.file.exists() for photo in page.session.basket.photos())


def test_a_damaged_model_is_shown_once(page: "Page") -> None:
    page.session.folder.mkdir()
    (page.session.folder / "current.json").write_text("damaged")
    window = Window(page)
    assert "is damaged" in window.shown["header"]
    assert page.header not in page.refresh(window.shown["seen"])
