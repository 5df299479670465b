import asyncio
import tempfile
from typing import Any

import pytest
from starlette.requests import Request

from densekd.serve.request_images import (
    ImageReceiver,
    RefusedRequest,
    RequestLimits,
    SentImage,
)

from support.http_requests import FORM, form

LIMITS = RequestLimits(body=3000, images=3, seconds=0.2, held=5000)


def request(parts: list[bytes | float], headers: dict[str, str]) -> Request:
    """A request whose body arrives in parts, with pauses of so many seconds between them."""
    waiting = list(parts)

    async def receive() -> dict[str, Any]:
        while waiting and isinstance(waiting[0], float):
            await asyncio.sleep(waiting.pop(0))  # type: ignore[arg-type]
        if not waiting:
            return {"type": "http.disconnect"}
        body = waiting.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": raw}, receive)


def receive(
    body: bytes | list[bytes | float],
    headers: dict[str, str] = FORM,
    receiver: ImageReceiver | None = None,
) -> list[SentImage]:
    receiver = receiver or ImageReceiver(LIMITS)
    parts: list[bytes | float] = [body] if isinstance(body, bytes) else body

    async def read() -> list[SentImage]:
        async with receiver.receive(request(parts, headers)) as images:
            return images

    held = receiver.held
    try:
        return asyncio.run(read())
    finally:
        assert receiver.held == held


def refusal(*arguments: Any, **more: Any) -> tuple[int, str]:
    with pytest.raises(RefusedRequest) as caught:
        receive(*arguments, **more)
    return caught.value.status, str(caught.value)


def test_a_form_in_pieces() -> None:
    body = form(("a.jpg", b"\r\n--photo" + b"x" * 900), ("ä b.jpg", b""), ("a.jpg", b"3"))
    wanted = [("a.jpg", b"\r\n--photo" + b"x" * 900), ("ä b.jpg", b""), ("a.jpg", b"3")]
    for size in (1, 7, len(body)):
        pieces: list[bytes | float] = [body[i : i + size] for i in range(0, len(body), size)]
        assert receive(pieces) == wanted


def test_a_body_that_is_an_image() -> None:
    for headers in ({}, {"Content-Type": "image/jpeg"}, {"Content-Type": "text/plain"}):
        assert receive([b"ab", b"", b"c"], headers) == [(None, b"abc")]


def test_nothing_is_written_to_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        pytest.fail("a temporary file was made")

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    receiver = ImageReceiver(RequestLimits())
    (image,) = receive(form(("a.jpg", bytes(4 * 2**20))), receiver=receiver)
    assert len(image.content) == 4 * 2**20


def test_limits() -> None:
    assert refusal(b"x" * 3001, {})[0] == 413
    assert refusal(form(("a", b"x" * 3001)))[0] == 413
    assert refusal(b"x", {"Content-Length": "3001"})[0] == 413
    assert refusal(b"x", {"Content-Length": "9" * 5000})[0] == 413
    status, reason = refusal(form(*[("a", b"x")] * 4))
    assert status == 400
    assert "at most 3 images" in reason
    assert len(receive(form(*[("a", b"x")] * 3))) == 3
    assert refusal([b"x", 1.0, b"y"], {})[0] == 408
    busy = ImageReceiver(LIMITS)
    busy.held = 4000
    assert refusal(b"x" * 1001, {}, busy)[0] == 503
    assert receive(b"x" * 1000, {}, busy) == [(None, b"x" * 1000)]


@pytest.mark.parametrize(
    ("body", "headers", "words"),
    [
        (b"", {}, "none came"),
        (form(), FORM, "none came"),
        (form(("a", b"x"), end=""), FORM, "incomplete"),
        (form(("a", b"x"))[:-20], FORM, "incomplete"),
        (form(("a", b"x")).replace(b'; filename="a"', b""), FORM, "files only"),
        (form(("a", b"x")).replace(b'name="image"; ', b""), FORM, "malformed"),
        (b"nonsense", FORM, "malformed"),
        (form(("a", b"x")), {"Content-Type": "multipart/form-data"}, "malformed"),
        (form(("a", b"x")), {"Content-Type": "multipart/form-data; boundary="}, "malformed"),
        (form(("a", b"x")), {"Content-Type": FORM["Content-Type"] + "x"}, "malformed"),
    ],
)
def test_malformed_requests(body: bytes, headers: dict[str, str], words: str) -> None:
    status, reason = refusal(body, headers)
    assert status == 400
    assert words in reason


def test_names_of_any_bytes() -> None:
    for name in (b"\\ud800", b"\xff\xfe\x00\xd8", b"../a", b"C:\\a", b""):
        body = form(("NAME", b"x")).replace(b"NAME", name)
        (image,) = receive(body)
        assert image.content == b"x"
        assert image.name is not None
        image.name.encode()


def test_a_client_that_goes_away() -> None:
    status, reason = refusal([], FORM)
    assert status == 400
    assert "ended too early" in reason
