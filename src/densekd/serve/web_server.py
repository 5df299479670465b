"""What the web servers share: sockets, a thread to run in, and which requests are from outside."""

import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uvicorn

LOOPBACK = "127.0.0.1"


def open_listener(host: str, ports: Iterable[int]) -> socket.socket | None:
    """Open a socket on the first free one of these ports, or give None if none is free.

    Port 0 stands for any free port.
    """
    for port in ports:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        try:
            # It also starts to listen, because bind alone doesn't reserve the port.
            return socket.create_server(address, family=family)
        except OSError:
            continue
    return None


@contextmanager
def running(server: "uvicorn.Server", listener: socket.socket) -> Iterator[None]:
    """Run a server in a thread; at the end, let it finish its requests."""
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        if not server.started:
            port = listener.getsockname()[1]
            raise OSError(f"Can't serve on port {port}; try another with --port.")
        yield
    finally:
        server.should_exit = True
        thread.join()


def own_hosts(port: int, address: str = LOOPBACK) -> set[str]:
    """What the header ``Host`` may say in requests from this computer to a server at ``address``.

    Clients leave out the port 80.
    """
    names = {LOOPBACK, "localhost", "[::1]", address}
    return {f"{name}:{port}" for name in names} | (names if port == 80 else set())


def foreign_request(headers: Mapping[str, str], hosts: set[str]) -> str | None:
    """Why a request isn't from this computer's own pages or programs; None if it is.

    Another site's host name could resolve to this address (DNS rebinding).
    """
    if headers.get("host") not in hosts:
        # With the port, which a tunnel may have changed.
        return f"Use the address {' or '.join(sorted(hosts))}."
    origin = headers.get("origin")
    if origin is not None and origin.removeprefix("http://") not in hosts:
        return "Requests from other sites are not allowed."
    return None
