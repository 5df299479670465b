"""Refuses requests that the page doesn't make.

Gradio can do more than the page needs: it serves files, fetches URLs, and answers anyone. A request
passes only if it comes from this server's page, goes to one of the few paths that the page uses,
and names no file.
"""

import json
import re
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from densekd.serve.web_server import foreign_request, own_hosts

_ALLOWED = re.compile(
    r"/|/(static|assets)/.*|/(config|theme\.css|favicon\.ico|manifest\.json)"
    r"|/photo/[0-9a-f]{16}|/gradio_api/(queue/(join|data)|upload|heartbeat/\w+|cancel|reset)"
)
_EVENT_PATH = "/gradio_api/queue/join"
_MAX_BYTES = 16 * 2**20
# Makes the browser block everything that comes from another server.
_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'; "
    "form-action 'self'; base-uri 'self'"
)


class RequestFilter:
    """ASGI middleware that passes only the page's own requests on to ``app``."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.hosts = own_hosts(port)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 403."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = foreign_request(Headers(scope=scope), self.hosts)
        if refusal is None and not _ALLOWED.fullmatch(scope["path"]):
            refusal = "This path is not allowed."
        if refusal is None and scope["path"] == _EVENT_PATH:
            body = await _body(Request(scope, receive))
            if body is None or _names_files(body):
                refusal = "File access is not allowed."
            receive = _replay_body(body or b"", receive)
        if refusal is not None:
            await PlainTextResponse(refusal, 403)(scope, receive, send)
            return

        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Content-Security-Policy"] = _POLICY
            await send(message)

        await self.app(scope, receive, with_policy)


async def _body(request: Request) -> bytes | None:
    """The request's body, or None if it is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BYTES:
            return None
    return body


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Make a function that receives the body, which was read already, then what follows."""
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return parts.pop() if parts else await receive()

    return receive_again


def _names_files(body: bytes) -> bool:
    """Whether JSON names a file, which Gradio would fetch; True if it can't be parsed."""
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
