import functools
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from densekd.data.cifar import find_cifar, load_cifar
from densekd.data.dataset import Dataset

# Examples are drawn the same way every time, and none is timed: a red test stays red.
settings.register_profile("densekd", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("densekd")


@pytest.fixture(scope="session")
def real_dir() -> Path:
    """A folder with the real CIFAR-100."""
    folder = Path(os.environ.get("DENSEKD_DATA", ""))
    if find_cifar("cifar100", folder) is None:
        pytest.skip("no CIFAR-100")
    return folder


@pytest.fixture(scope="session")
def cifar100(real_dir: Path) -> Dataset:
    """The real CIFAR-100."""
    return load_cifar("cifar100", real_dir, download=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a server on this machine, and the folder that it serves."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None: ...

    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", folder
        running.shutdown()
        thread.join()
