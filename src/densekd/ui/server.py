"""The page's web server, reachable from this computer only."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from densekd.checks import missing_extra
from densekd.jobs.local import preload
from densekd.model.request import check_place
from densekd.serve.web_server import LOOPBACK, open_listener, running
from densekd.ui.session import Session

if TYPE_CHECKING:
    import uvicorn

_ENVIRONMENT = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
_LARGEST_FILE = "200mb"


def listen(port: int | None) -> socket.socket:
    """Open a socket on ``port``, on any if it is 0, or on the first free one from 7860 if None."""
    listener = open_listener(LOOPBACK, range(7860, 7960) if port is None else [port])
    if listener is not None:
        return listener
    taken = "Ports 7860 to 7959 are" if port is None else f"Port {port} is"
    raise ValueError(f"{taken} in use or not allowed; choose another with --port, 0 for any.")


@contextmanager
def serving(folder: Path, port: int | None) -> Iterator[str]:
    """Serve the page of a model, and give its address; at the end, stop and save an update.

    Args:
        folder: the model's folder, or a new or empty one.
        port: of the page; see `listen`.
    """
    check_place(folder)
    with (
        tempfile.TemporaryDirectory(prefix="densekd-ui-") as temporary,
        closing(listen(port)) as listener,
    ):
        session = Session(folder, Path(temporary))
        session.history()  # raises if the model can't be read
        preload("densekd.ui.worker")
        found: int = listener.getsockname()[1]
        server = _server(session, found)
        try:
            with running(server, listener):
                yield f"http://{LOOPBACK}:{found}"
        finally:
            session.close()


def _server(session: Session, port: int) -> "uvicorn.Server":
    # Gradio reads these when it is imported.
    os.environ.update(_ENVIRONMENT, GRADIO_TEMP_DIR=str(session.inbox))
    try:
        import fastapi
        import gradio as gr
        import uvicorn
    except ImportError as error:
        raise missing_extra("The page", "ui") from error

    from densekd.ui.page import Page, theme
    from densekd.ui.request_filter import RequestFilter

    own = fastapi.FastAPI(openapi_url=None)

    @own.get("/photo/{photo}")
    def photo(photo: str) -> fastapi.Response:
        content = session.thumbnail(photo)
        headers = {"Cache-Control": "private, max-age=86400"}  # an id always means the same photo
        if content is None:
            return fastapi.Response(status_code=404)
        return fastapi.Response(content, media_type="image/jpeg", headers=headers)

    app = gr.mount_gradio_app(
        own,
        Page(session).blocks,
        path="/",
        footer_links=[],
        run_history=False,
        max_file_size=_LARGEST_FILE,
        theme=theme(),
        css_paths=Path(__file__).with_name("page.css"),
    )
    # Don't wait for connections that browsers keep open, and don't log that.
    config = uvicorn.Config(
        RequestFilter(app, port), log_level="critical", timeout_graceful_shutdown=1
    )
    return uvicorn.Server(config)
