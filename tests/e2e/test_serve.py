"""``densekd serve``: real requests to a real server, hostile ones among them."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image
from typer.testing import CliRunner

from densekd.cli import app
from densekd.model.model import Model, undo
from densekd.model.options import TeachOptions
from densekd.model.teach import teach_model

from support.http_requests import BOUNDARY, FORM, SECONDS, ask, form
from support.photos import fill, picture

# Runs a command, and logs what it opens to write, and all connections to other computers.
WATCHED = """
import os, sys
log = open(sys.argv.pop(1), "w", buffering=1)
def callback(event, args):
    if event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR):
        print(event, args[0], file=log)
    if event in ("socket.connect", "socket.getaddrinfo"):
        address = args[:1] if event == "socket.getaddrinfo" else args[1]
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "0.0.0.0", "localhost"):
            print(event, address, file=log)
sys.addaudithook(callback)
sys.dont_write_bytecode = True
from densekd.cli import app
app()
"""


class Server(NamedTuple):
    address: str
    process: subprocess.Popen[str]
    log: Path
    model: Path


@contextmanager
def serve(model: Path, *options: str) -> Iterator[Server]:
    log = model.parent / "log"
    command = [sys.executable, "-c", WATCHED, str(log), "serve", str(model), "--port", "0"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"http://\S+:\d+", process.stdout.readline())
            assert found
            yield Server(found[0].replace("0.0.0.0", "127.0.0.1"), process, log, model)
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0


def taught(place: Path) -> Path:
    """A model that knows green and red."""
    images = fill(place / "images", {"red": 4, "green": 4})
    teach_model(place / "model", images, TeachOptions())
    return place / "model"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(taught(tmp_path_factory.mktemp("served"))) as running:
        yield running


@pytest.fixture
def photo(tmp_path: Path) -> bytes:
    """A picture of something red."""
    return _png(tmp_path, picture("red", 99))


def _png(folder: Path, image: Image.Image) -> bytes:
    image.save(folder / "sent.png")
    return (folder / "sent.png").read_bytes()


@pytest.mark.slow
def test_images_in_a_form_and_one_as_the_body(server: Server, photo: bytes, tmp_path: Path) -> None:
    green = _png(tmp_path, picture("green", 98))
    both = form(("r.png", photo), ("g.png", green))
    status, told = ask(server.address, "/predict?top=2", both, FORM)
    assert status == 200
    wanted = Model.open(server.model).predict([photo, green], top=2)
    assert [each["file"] for each in told["predictions"]] == ["r.png", "g.png"]
    for shown, own in zip(told["predictions"], wanted, strict=True):
        assert (shown["step"], shown["known"], shown["name"]) == (0, own.known, own.name)
        assert [each["name"] for each in shown["guesses"]] == [guess.name for guess in own]
        shares = [each["probability"] for each in shown["guesses"]]
        assert shares == pytest.approx([guess.probability for guess in own], abs=1e-4)
    status, told = ask(server.address, "/predict", photo, {"Content-Type": "image/png"})
    assert status == 200
    assert [each["file"] for each in told["predictions"]] == [None]
    assert told["predictions"][0]["guesses"][0]["name"] == "red"
    assert ask(server.address, "/classes") == (200, {"step": 0, "classes": ["green", "red"]})
    assert ask(server.address, "/healthz") == (200, {"status": "ok", "step": 0})
    status, described = ask(server.address, "/openapi.json")
    assert status == 200
    assert set(described["paths"]) == {"/predict", "/classes", "/healthz"}


@pytest.mark.slow
def test_malformed_and_hostile_requests_get_one_sentence(
    server: Server, photo: bytes, tmp_path: Path
) -> None:
    bomb = _png(tmp_path, Image.new("1", (9000, 9000)))
    assert len(bomb) < 20_000
    image = {"Content-Type": "image/png"}
    before = sorted(path for path in server.model.rglob("*"))
    requests = [
        (422, "'t.png' can't be read: not an image", form(("t.png", b"text"), ("p", photo)), FORM),
        (422, "can't be read", photo[:-40], image),
        (422, "9000 x 9000 pixels", bomb, image),
        (422, "'<b>ä' can't be read", form(("<b>ä", b"")), FORM),
        (400, "none came", b"", image),
        (400, "incomplete", form(("p", photo), end=""), FORM),
        (400, "malformed", b"\0" * 10_000, FORM),
        (400, "64 images", form(*[("p", b"x")] * 65), FORM),
        (400, "malformed", b"x", {"Content-Type": "multipart/form-data"}),
        (413, "64 MiB", bytes(64 * 2**20 + 1), image),
        (413, "64 MiB", b"x", {"Content-Length": "1" + "0" * 18}),
        (403, "127.0.0.1", photo, {"Host": "example.com"}),
        (403, "other sites", photo, {"Origin": "http://example.com"}),
    ]
    for status, words, body, headers in requests:
        answered, told = ask(server.address, "/predict", body, headers)
        assert (answered, list(told)) == (status, ["error"]), words
        assert words in told["error"]
    for path, content, status in (
        ("/predict?top=0", photo, 422),
        ("/predict?top=x", photo, 422),
        ("/predict", None, 405),
        ("/docs", None, 404),
        ("/../../etc/passwd", None, 404),
        ("/classes", b"x", 405),
    ):
        answered, told = ask(server.address, path, content)
        assert (answered, list(told)) == (status, ["error"]), path
    assert _send_raw(server.address, b"\x16\x03\x01 nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert ask(server.address, "/predict", photo, image)[0] == 200
    assert sorted(path for path in server.model.rglob("*")) == before


def _send_raw(address: str, content: bytes) -> bytes:
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), SECONDS) as connection:
        connection.sendall(content)
        return connection.recv(1000)


@pytest.mark.slow
def test_many_clients_while_the_model_learns(tmp_path: Path) -> None:
    """No request is lost, none fails, and an update is served from its commit on."""
    model, blue = taught(tmp_path), _png(tmp_path, picture("blue", 99))
    other = {"red": _png(tmp_path, picture("red", 9)), "green": _png(tmp_path, picture("green", 9))}
    more, committed = fill(tmp_path / "more", {"blue": 4}), threading.Event()
    with serve(model) as server, ThreadPoolExecutor(50) as pool:
        # Fault every file that is opened from here on: an upload of more than 1 MB, too.
        writes = server.log.read_text()

        def client(number: int) -> None:
            for turn in range(4):
                name = ("red", "green")[(number + turn) % 2]
                sent = [("a", blue), (name, other[name] + bytes(2**21 * (number == 0)))]
                after = committed.is_set()
                status, told = ask(server.address, "/predict", form(*sent), FORM)
                assert status == 200
                found = told["predictions"]
                assert [each["file"] for each in found] == ["a", name]
                assert found[1]["guesses"][0]["name"] == name
                for each in found:
                    assert each["step"] == 1 if after else each["step"] in (0, 1)
                    assert len(each["guesses"]) == 2 + each["step"]
                if found[0]["step"] == 1:
                    assert found[0]["guesses"][0]["name"] == "blue"

        clients = [pool.submit(client, number) for number in range(50)]
        teach_model(model, more, TeachOptions())
        committed.set()
        assert ask(server.address, "/classes")[1]["step"] == 1
        for each in clients:
            each.result()
        undo(model)
        assert ask(server.address, "/predict", blue)[1]["predictions"][0]["step"] == 0
        assert server.log.read_text() == writes


@pytest.mark.slow
def test_requests_are_answered_before_the_server_ends(server: Server, photo: bytes) -> None:
    with serve(server.model) as own, ThreadPoolExecutor(8) as pool:
        assert ask(own.address, "/predict", photo)[0] == 200
        many = form(*[(str(i), photo) for i in range(16)])
        waiting = [pool.submit(ask, own.address, "/predict", many, FORM) for _ in range(8)]
        assert waiting[0].result()[0] == 200  # so that all others were accepted, too
        own.process.send_signal(signal.SIGINT)
        assert [each.result()[0] for each in waiting] == [200] * 8
        assert own.process.wait(SECONDS) == 0


@pytest.mark.slow
def test_other_computers_need_a_token(server: Server, photo: bytes) -> None:
    with serve(server.model, "--host", "0.0.0.0") as own:
        assert own.process.stdout is not None
        found = re.search(r"Authorization: Bearer (\S+)`", own.process.stdout.readline())
        assert found
        token = found[1]
        assert len(token) >= 32
        for given in (None, "Bearer", "Bearer x", f"Basic {token}", f"Bearer {token}x", "Bearer é"):
            headers = {} if given is None else {"Authorization": given}
            for path, body in (("/predict", photo), ("/classes", None), ("/openapi.json", None)):
                status, told = ask(own.address, path, body, headers)
                assert status == 401
                assert "Authorization: Bearer TOKEN" in told["error"]
        right = {"Authorization": f"Bearer {token}", "Host": "models.example.com"}
        assert ask(own.address, "/predict", photo, right)[0] == 200
        assert ask(own.address, "/healthz")[0] == 200


def test_refusals_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*options: str) -> str:
        result = CliRunner().invoke(app, ["serve", str(tmp_path / "model"), *options])
        assert result.exit_code == 2
        assert result.stdout == ""
        return result.stderr

    assert "There is no model" in refused("--port", "0")
    assert "at least 16" in refused("--port", "0", "--token", "short")
    assert "at least 16" in refused("--port", "0", "--token", "with a space in the middle")
    for host in ("nowhere.invalid", 99 * "x", "a..b"):
        assert "no address" in refused("--host", host)
    assert "not an address of this computer" in refused("--host", "192.0.2.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port}: it is in use" in refused("--port", port)
    for package in ("fastapi", "uvicorn", "python_multipart"):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, package, None)
            for module in ("api", "access", "request_images"):
                without.delitem(sys.modules, f"densekd.serve.{module}", raising=False)
            assert "`pip install 'densekd[ui]'`" in refused("--port", "0")


def test_the_documented_answer_is_what_is_given() -> None:
    """The keys of the answer in docs/serve.md are those that the API describes."""
    from densekd.serve.api import ImagePrediction

    text = Path(__file__).parents[2].joinpath("docs", "serve.md").read_text()
    (shown,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    for each in json.loads(shown)["predictions"]:
        assert set(each) == set(ImagePrediction.model_fields)
        ImagePrediction.model_validate(each)
    assert BOUNDARY not in text
