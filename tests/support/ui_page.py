"""The page of ``densekd ui`` in a real browser."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect

from support.photos import picture

# Runs a command, and logs all connections to other computers. If it is "late", the browser learns
# late that the server has closed the stream of its answers.
WATCHED = """
import sys
log = open(sys.argv.pop(1), "w", buffering=1)
def callback(event, args):
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo"):
        address = args[:1] if event == "socket.getaddrinfo" else args[1]
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "localhost"):
            print(event, address, file=log)
sys.addaudithook(callback)
if sys.argv.pop(1) == "late":
    import asyncio
    from densekd.ui import request_filter
    class Late(request_filter.RequestFilter):
        async def __call__(self, scope, receive, send):
            async def send_late(message):
                if b"close_stream" in message.get("body", b""):
                    await asyncio.sleep(0.5)
                await send(message)
            await super().__call__(scope, receive, send_late)
    request_filter.RequestFilter = Late
from densekd.cli import app
app()
"""
SECONDS = 600  # until something must have happened, also on a busy computer


def photos(folder: Path, *names: str, count: int = 12) -> Path:
    """A folder of pictures for each class, which are called as by a camera."""
    for name in names:
        (folder / name).mkdir(parents=True)
        for i in range(count):
            picture(name, i, size=16).save(folder / name / f"IMG {i}.PNG")
    return folder


@contextmanager
def served(model: Path, log: Path, pace: str = "") -> Iterator[str]:
    """The address of a model's page; see `WATCHED` for its ``pace``."""
    command = [sys.executable, "-c", WATCHED, str(log), pace, "ui", str(model), "--port", "0"]
    with subprocess.Popen([*command, "--no-browser"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            found = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
            assert found
            yield found[0]
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(SECONDS) == 0
    assert log.read_text() == ""


@contextmanager
def opened(browser: Browser, address: str) -> Iterator[Page]:
    """The page in a browser; fails if it sends requests to any other server."""
    context = browser.new_context(permissions=["camera"])
    asked: set[str] = set()
    context.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
    context.set_default_timeout(1000 * SECONDS)
    expect.set_options(timeout=1000 * SECONDS)
    page = context.new_page()
    page.goto(address)
    yield page
    assert asked - {""} == {urlsplit(address).netloc}  # nothing for data in the page itself
    context.close()


def tab(page: Page, name: str) -> Any:
    """What is on a tab, which is opened."""
    page.get_by_role("tab", name=name).click()
    return page.get_by_role("tabpanel").filter(visible=True)


def drop(panel: Any, files: Path | list[Path]) -> None:
    kind = "images" if isinstance(files, list) else "folder"
    panel.locator(f"input[data-kind={kind}]").set_input_files(files)


def set_epochs(page: Page, panel: Any, epochs: str) -> None:
    """Enter the number of epochs, at the pace of a person.

    Nothing on the page tells when Gradio has made the field, or has noticed its content.
    """
    panel.get_by_role("button", name="Options").click()
    field = panel.get_by_label("Epochs")
    expect(field).to_be_visible()
    page.wait_for_timeout(1500)
    field.fill(epochs)
    field.press("Tab")
    page.wait_for_timeout(1500)


def classes(panel: Any) -> Any:
    """The headings of the basket: each class with the number of its photos."""
    return panel.locator(".kd-basket header :is(h3, h3 + span)")
