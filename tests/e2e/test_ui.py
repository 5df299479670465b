"""The page in a real browser, and requests that the page would not send."""

import http.client
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from densekd.model.model import Model, history
from densekd.model.options import TeachOptions
from densekd.model.teach import teach_model

from support.ui_page import SECONDS, classes, drop, opened, photos, served, set_epochs, tab

NAME = "Class name of the photos that you add"


class Served(NamedTuple):
    model: Path
    address: str


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page of a model that knows three colours."""
    folder = tmp_path_factory.mktemp("colours")
    source = photos(folder / "photos", "red", "green", "blue")
    teach_model(folder / "model", source, TeachOptions(network="resnet8", epochs=4))
    with served(folder / "model", folder / "log") as address:
        yield Served(folder / "model", address)


@pytest.mark.slow
def test_classify_teach_and_undo(colours: Served, tmp_path: Path, browser: Browser) -> None:
    model, address = colours
    new = sorted(photos(tmp_path / "new", "grey").glob("grey/*"))
    text = tmp_path / "text.png"
    text.write_text("This is no image.")
    expected = [guess.name for guess in Model.open(model).predict([new[0]], top=3)[0]]
    with opened(browser, address) as page:
        expect(page.get_by_text("3 classes: blue, green, red.")).to_be_visible()
        classify = tab(page, "Classify")
        drop(classify, [new[0], text])
        expect(classify.locator(".kd-card")).to_have_count(2)
        expect(classify.locator(".kd-bar span:first-child")).to_have_text(expected)
        expect(classify.get_by_role("alert")).to_contain_text("Can't read this file: not an image")

        lesson = tab(page, "Teach")
        set_epochs(page, lesson, "1")
        drop(lesson, new)
        expect(classes(lesson)).to_have_text(["No class yet", "12 photos"])
        lesson.get_by_role("button", name="Teach").click()
        expect(page.get_by_text("Enter a class name")).to_be_visible()
        lesson.get_by_label(NAME).fill("red")
        lesson.get_by_label("Allow more photos of known classes").uncheck()
        lesson.get_by_role("button", name="Teach").click()
        expect(page.get_by_text("The model knows 'red' already")).to_be_visible()
        lesson.get_by_role("button", name="Select all").click()
        lesson.get_by_label("Move to class").fill("a <b>grey one")
        lesson.get_by_role("button", name="Move to this class").click()
        expect(classes(lesson)).to_have_text(["a <b>grey one", "12 photos"])
        lesson.get_by_role("button", name="Teach").click()
        expect(lesson.get_by_role("progressbar")).to_be_visible()
        expect(lesson.locator(".kd-class")).to_have_count(4)
        expect(lesson.locator(".kd-class").last).to_contain_text("a <b>grey one new")
        expect(lesson.locator(".kd-basket")).to_have_count(0)
        expect(page.get_by_text("4 classes:")).to_be_visible()
        assert [entry.current for entry in history(model)] == [False, True]

        past = tab(page, "History")
        past.get_by_role("button", name="Go to step 0").click()
        expect(page.get_by_text("3 classes:")).to_be_visible()
        expect(past.get_by_role("button", name="Go to step 1")).to_be_visible()
        assert [entry.current for entry in history(model)] == [True, False]
        classify = tab(page, "Classify")  # where the same photo is predicted again
        expect(classify.locator(".kd-bar span:first-child")).to_have_text(expected)


@pytest.mark.slow
def test_answers_that_cross_the_end_of_their_stream_are_shown(
    colours: Served, tmp_path: Path, browser: Browser
) -> None:
    red = sorted(colours.model.parent.glob("photos/red/*"))
    with (
        served(colours.model, tmp_path / "log", "late") as address,
        opened(browser, address) as page,
    ):
        for count in (1, 2, 3):
            classify = tab(page, "Classify")
            drop(classify, red[:count])
            expect(classify.locator(".kd-bar")).to_have_count(3 * count)
        classify.get_by_role("button", name="Teach this photo").last.click()
        lesson = page.get_by_role("tabpanel").filter(visible=True)
        expect(classes(lesson)).to_have_text(["No class yet", "1 photo"])


@pytest.mark.slow
def test_a_new_model(tmp_path: Path, browser: Browser) -> None:
    model = tmp_path / "colours"
    source = photos(tmp_path / "photos", "red", "green")
    (source / "red" / "notes.txt").write_text("This is no image.")
    with served(model, tmp_path / "log") as address, opened(browser, address) as page:
        expect(page.get_by_text("No classes yet.")).to_be_visible()
        lesson = tab(page, "Teach")
        drop(lesson, source / "red")
        expect(classes(lesson)).to_have_text(["red", "12 photos"])
        expect(lesson.get_by_text("1 file was left out: not an image")).to_be_visible()
        lesson.get_by_role("button", name="Teach").click()
        expect(page.get_by_text("A new model needs at least two classes")).to_be_visible()
        lesson.get_by_role("button", name="Clear").click()
        expect(lesson.locator(".kd-basket")).to_have_count(0)
        drop(lesson, source)
        expect(classes(lesson)).to_have_text(["green", "12 photos", "red", "12 photos"])
        lesson.get_by_role("button", name="Options").click()
        expect(lesson.get_by_label("Time limit in minutes")).to_be_visible()
        expect(lesson.get_by_label("Epochs")).not_to_be_visible()
        lesson.get_by_role("button", name="Teach").click()
        expect(lesson.locator(".kd-class")).to_have_count(2)
        assert Model.open(model).classes == ("green", "red")


@pytest.mark.slow
def test_a_stopped_update(tmp_path: Path, browser: Browser) -> None:
    model = tmp_path / "colours"
    source = photos(tmp_path / "photos", "red", "green")
    teach_model(model, source, TeachOptions(network="resnet8", epochs=1))
    with served(model, tmp_path / "log") as address, opened(browser, address) as page:
        lesson = tab(page, "Teach")
        drop(lesson, photos(tmp_path / "new", "grey") / "grey")
        set_epochs(page, lesson, "100000")
        lesson.get_by_role("button", name="Teach").click()
        expect(lesson.get_by_role("progressbar")).to_contain_text("of 100000, about")
        expect(lesson.locator(".kd-basket")).to_have_count(0)

        page.reload()  # which doesn't disturb it
        lesson = tab(page, "Teach")
        expect(lesson.get_by_role("progressbar")).to_contain_text("of 100000, about")
        drop(lesson, photos(tmp_path / "more", "blue") / "blue")
        expect(classes(lesson)).to_have_text(["blue", "12 photos"])
        lesson.get_by_role("button", name="Stop").click()
        expect(lesson.get_by_text("Stopped. The model is unchanged")).to_be_visible()
        assert Model.open(model).classes == ("green", "red")

        expect(classes(lesson)).to_have_text(["blue", "12 photos", "grey", "12 photos"])
        set_epochs(page, lesson, "1")
        lesson.get_by_role("button", name="Teach").click()
        expect(lesson.locator(".kd-class")).to_have_count(4)
        assert Model.open(model).classes == ("green", "red", "blue", "grey")


class Client:
    """Sends requests that the page would not send."""

    def __init__(self, address: str) -> None:
        self.host = urlsplit(address).netloc

    def __call__(self, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.host, timeout=SECONDS)
        text = None if body is None else json.dumps(body)
        given = {"Content-Type": "application/json", **headers}
        connection.request("GET" if body is None else "POST", path, text, given)
        answer = connection.getresponse()
        content = answer.read().decode()
        connection.close()
        return answer.status, content

    def event(self, number: int, *data: Any) -> tuple[int, str]:
        """Trigger an event of the page, and give what the server answers."""
        event = {"data": data, "fn_index": number, "session_hash": "crafted"}
        status, content = self("/gradio_api/queue/join", event)
        if status != 200:
            return status, content
        return self("/gradio_api/queue/data?session_hash=crafted")


@pytest.mark.slow
def test_forged_requests_are_refused(colours: Served, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    shutil.copy(next(photos(tmp_path, "red", count=1).glob("red/*")), secret)
    ask = Client(colours.address)
    status, config = ask("/config")
    assert status == 200
    events = json.loads(config)["dependencies"]
    classify = next(event["id"] for event in events if event["api_name"] == "classify")
    for path in (
        *(f"/gradio_api/file={file}" for file in (secret, colours.model / "current.json")),
        f"/static/../gradio_api/file={secret}",
        f"/static/{'..%2f' * 12}{secret}",
        *("/gradio_api/file=http://192.0.2.1/", "/gradio_api/proxy=http://192.0.2.1/"),
        *("/gradio_api/info", "/docs", "/monitoring"),
        *(f"/photo/{name}" for name in ("0" * 16, "x", f"{'..%2f' * 12}{secret}")),
    ):
        assert ask(path)[0] in (403, 404), path
    assert ask("/", Host="example.com")[0] == 403
    assert ask("/gradio_api/queue/join", {}, Origin="http://example.com")[0] == 403
    assert ask("/gradio_api/queue/join", " " * 2**25)[0] == 403
    for named in (str(secret), "http://192.0.2.1/image.png"):
        file = {"path": named, "meta": {"_type": "gradio.FileData"}}
        assert ask.event(classify, None, file) == (403, "File access is not allowed.")
        sent = json.dumps([{"name": "a.png", "file": named}])
        status, told = ask.event(classify, None, sent)
        assert "This file wasn't uploaded" in told
    status, told = ask.event(classify, None, "nonsense")
    assert "reload the page" in told
    assert secret.exists()
    assert ask("/")[0] == 200
