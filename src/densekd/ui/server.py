"""The server of the page, for this computer alone."""

import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from densekd.ui.session import Session
from densekd.ui.worker import prepare

if TYPE_CHECKING:
    import uvicorn

HOST = "127.0.0.1"

_ENVIRONMENT = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
_LARGEST_FILE = "200mb"


def listen(port: int | None) -> socket.socket:
    """A socket for the page; by default on the first free port from 7860, on any if it is 0."""
    for each in range(7860, 7960) if port is None else [port]:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, each))
            listener.listen()  # until then, another could bind to the same port
        except OSError:
            listener.close()
        else:
            return listener
    taken = "The ports from 7860 to 7959 are" if port is None else f"Port {port} is"
    raise ValueError(f"{taken} in use or not allowed; choose another with --port, 0 for any.")


@contextmanager
def serving(folder: Path, listener: socket.socket) -> Iterator[str]:
    """Serve the page of a model at the address that is given; at the end, an update is saved.

    Args:
        folder: of the model; need not exist yet.
        listener: what `listen` gave.
    """
    with tempfile.TemporaryDirectory(prefix="densekd-ui-") as temporary, closing(listener):
        session = Session(folder, Path(temporary))
        session.history()  # which raises if there is a model that can't be read
        prepare()
        port = listener.getsockname()[1]
        server = _server(session, port)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            if not server.started:
                raise OSError(f"The page can't be served on port {port}; try another with --port.")
            yield f"http://{HOST}:{port}"
        finally:
            server.should_exit = True
            thread.join()
            session.close()


def _server(session: Session, port: int) -> "uvicorn.Server":
    # What Gradio and its companions read when they are imported.
    os.environ.update(_ENVIRONMENT, GRADIO_TEMP_DIR=str(session.inbox))
    try:
        import fastapi
        import gradio as gr
        import uvicorn
    except ImportError as error:
        raise ValueError("The page needs Gradio; `pip install densekd[ui]` brings it.") from error

    from densekd.ui.page import Page, style, theme
    from densekd.ui.request_filter import RequestFilter

    app = gr.mount_gradio_app(
        fastapi.FastAPI(openapi_url=None),
        Page(session).blocks,
        path="/",
        footer_links=[],
        run_history=False,
        max_file_size=_LARGEST_FILE,
        theme=theme(),
        css=style(),
    )
    # Browsers hold connections open, which aren't waited for, nor is there a word about it.
    config = uvicorn.Config(
        RequestFilter(app, port), log_level="critical", timeout_graceful_shutdown=1
    )
    return uvicorn.Server(config)
