"""Who may ask the server for what.

Gradio does more than this page needs: it serves files, fetches addresses, and answers whoever
reaches it. A request gets through only if it comes from a page of this server, to one of the few
addresses that the page uses, and names no file.
"""

import json
import re
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_OPEN = re.compile(
    r"/|/(static|assets)/.*|/(config|theme\.css|favicon\.ico|manifest\.json)"
    r"|/gradio_api/(queue/(join|data)|upload|heartbeat/\w+|cancel|reset)"
)
_EVENTS = "/gradio_api/queue/join"
_MOST_BYTES = 16 * 2**20
# The page needs nothing from elsewhere, and the browser sees to that.
_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'; "
    "form-action 'self'; base-uri 'self'"
)


class RequestFilter:
    """Refuses what the page doesn't need.

    Args:
        app: what is behind it.
        port: on which the server is asked.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        # By any other name, a page from elsewhere could pretend to be ours.
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        if refusal is None and scope["path"] == _EVENTS:
            body = await _body(Request(scope, receive))
            refusal = None if body is not None and not _names_files(body) else "No files here."
            receive = _again(body or b"", receive)
        if refusal is not None:
            await PlainTextResponse(refusal, 403)(scope, receive, send)
            return

        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Content-Security-Policy"] = _POLICY
            await send(message)

        await self.app(scope, receive, with_policy)

    def _refusal(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        if headers.get("host") not in self.hosts:
            return "Ask for 127.0.0.1."
        origin = headers.get("origin")
        if origin is not None and origin.removeprefix("http://") not in self.hosts:
            return "Ask from the page itself."
        return None if _OPEN.fullmatch(scope["path"]) else "There is nothing here."


async def _body(request: Request) -> bytes | None:
    """What was sent, or None if it is too much."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            return None
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    """Receives what was read already, and then whatever comes."""
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return parts.pop() if parts else await receive()

    return receive_again


def _names_files(body: bytes) -> bool:
    """Whether something in JSON looks like a file to Gradio, which would go and get it."""
    try:
        return _has_path(json.loads(body))
    except (ValueError, RecursionError):
        return True


def _has_path(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_path, value))
    if isinstance(value, dict):
        return "path" in value or any(map(_has_path, value.values()))
    return False
