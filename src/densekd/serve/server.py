"""Serve a model over HTTP."""

import ipaddress
import logging
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from densekd.checks import missing_extra
from densekd.serve.web_server import open_listener, own_hosts, running

if TYPE_CHECKING:
    from densekd.serve.batching import CurrentModel

_TOKEN = re.compile(r"[!-~]{16,}")
_SECONDS_TO_FINISH = 30  # requests that were accepted before the server is stopped


def listen_for_clients(host: str, port: int) -> socket.socket:
    """Open a socket, on any free port if ``port`` is 0."""
    try:
        listener = open_listener(host, [port])
    except (OSError, UnicodeError) as error:  # the latter if it can't be a name at all
        raise ValueError(
            f"There is no address {host!r} ({error}); give another with --host."
        ) from error
    if listener is None:
        raise ValueError(
            f"Can't listen on {host}, port {port}: it is in use, not allowed, or not an address of "
            "this computer; choose another with --port, 0 for any, or with --host."
        )
    return listener


def needed_token(listener: socket.socket, given: str | None) -> str | None:
    """The token that clients must send: the given one, or a new one if others can connect."""
    if given is not None and not _TOKEN.fullmatch(given):
        raise ValueError(
            "A token must have at least 16 ASCII letters, digits or signs, and no spaces; leave it "
            "out to get a new one."
        )
    if given is None and not _only_this_computer(listener):
        return secrets.token_urlsafe(24)
    return given


@contextmanager
def serving_model(
    model: "CurrentModel", listener: socket.socket, token: str | None
) -> Iterator[str]:
    """Serve a model, and give the address; at the end, finish the requests.

    Args:
        model: what is committed to its folder meanwhile is served at once.
        listener: a socket from `listen_for_clients`.
        token: what clients must send; None if there is no need to.
    """
    try:
        import python_multipart  # noqa: F401
        import uvicorn

        from densekd.serve.access import AccessFilter
        from densekd.serve.api import make_api
        from densekd.serve.request_images import RequestLimits
    except ImportError as error:
        raise missing_extra("`densekd serve`", "ui") from error
    from densekd.serve.batching import BatchPredictor

    host, port = listener.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    limits = RequestLimits()
    # Its warnings about malformed forms would only fill the terminal: clients get the sentence.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    model.open()  # raises if it can't be read
    with closing(BatchPredictor(model, limits.pixels)) as predictor:
        hosts = own_hosts(port, address) if _only_this_computer(listener) else None
        app = AccessFilter(make_api(predictor, limits), hosts, token)
        config = uvicorn.Config(
            app, log_level="critical", ws="none", timeout_graceful_shutdown=_SECONDS_TO_FINISH
        )
        with running(uvicorn.Server(config), listener):
            yield f"http://{address}:{port}"


def _only_this_computer(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback
