"""Requests to a server on this computer."""

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

BOUNDARY = "photo-boundary"
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
SECONDS = 600  # until there must be an answer, also on a busy computer


def form(*files: tuple[str, bytes], end: str = "--") -> bytes:
    """The body of a form with files."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n\r\n'
        .encode() + content + b"\r\n"
        for name, content in files
    ]  # fmt: skip
    return b"".join(parts) + f"--{BOUNDARY}{end}\r\n".encode()


def ask(
    address: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Send a request, POST if it has a body; gives the status and the JSON of the answer."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=SECONDS)
    try:
        method = "GET" if body is None else "POST"
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()
