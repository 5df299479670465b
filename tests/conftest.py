import functools
import gc
import http.server
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from playwright.sync_api import Browser, sync_playwright
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from densekd.data.cifar import find_cifar, load_cifar
from densekd.data.dataset import Dataset

# The same examples every time, without a time limit: a test doesn't fail by chance.
settings.register_profile("densekd", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("densekd")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = (
        "run only unit and property tests, and skip those that train, start a process or are slow"
    )
    parser.addoption("--fast", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """With ``--fast``, skip a test once it trains or teaches: no list of tests can go stale."""
    if config.getoption("--fast"):
        register_module_forward_pre_hook(_skip_features)
        register_optimizer_step_pre_hook(lambda *_: pytest.skip("--fast: trains"))
        sys.addaudithook(_skip_processes)


def _skip_features(module: Module, _: object) -> None:
    if type(module).__name__ == "FrozenBackbone":
        pytest.skip("--fast: computes features of photos")


def _skip_processes(event: str, arguments: tuple[object, ...]) -> None:
    # xdist also starts processes, its workers, while no test runs.
    if event in ("subprocess.Popen", "os.fork") and "PYTEST_CURRENT_TEST" in os.environ:
        pytest.skip("--fast: starts a process")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--fast"):
        fast = [item for item in items if _is_fast(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in fast])
        items[:] = fast


def pytest_collection_finish() -> None:
    """What is imported stays: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


def _is_fast(item: pytest.Item) -> bool:
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    return folder in ("unit", "property") and not item.get_closest_marker("slow")


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
def few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digits are few, for documents that show what code does, not how accurate it gets."""
    from densekd.data import digits_npz
    from densekd.runs.build import limit_per_class

    load_npz = digits_npz.load_npz
    monkeypatch.setattr(
        digits_npz, "load_npz", lambda path: limit_per_class(load_npz(path), 30, 10)
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Serve a folder on this machine: the address and the folder."""

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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium: `make browser` installs it")
    with sync_playwright() as playwright:
        # Its camera shows a test picture.
        arguments = ["--no-sandbox", "--use-fake-device-for-media-stream"]
        running = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield running
        running.close()
