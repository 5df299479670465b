"""Reject requests with a foreign host or without the token."""

import hmac
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from densekd.serve.web_server import foreign_request

_WITHOUT_TOKEN = "/healthz"  # so that monitoring needs no token


class AccessFilter:
    """ASGI middleware that passes only allowed requests on to ``app``.

    Args:
        app: what answers them.
        hosts: what the header ``Host`` may say; None for anything.
        token: what a client must know; None for nothing.
    """

    def __init__(self, app: ASGIApp, hosts: set[str] | None, token: str | None) -> None:
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with 401 or 403."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            foreign = None if self.hosts is None else foreign_request(headers, self.hosts)
            if foreign is not None:
                await JSONResponse({"error": foreign}, 403)(scope, receive, send)
                return
            if scope["path"] != _WITHOUT_TOKEN and not self._has_token(headers):
                error = "Send the server's token in the header `Authorization: Bearer TOKEN`."
                answer = JSONResponse({"error": error}, 401, {"WWW-Authenticate": "Bearer"})
                await answer(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _has_token(self, headers: Mapping[str, str]) -> bool:
        if self.token is None:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # In constant time, so that the time of an answer tells nothing about the token.
        same = hmac.compare_digest(given.strip().encode("latin-1"), self.token.encode())
        return same and scheme.lower() == "bearer"
