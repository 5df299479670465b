import socket
from pathlib import Path

import pytest

from densekd.ui import server
from densekd.ui.server import listen, serving


def test_the_page_is_reachable_from_this_computer_only() -> None:
    with listen(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_two_pages_never_share_a_port() -> None:
    with listen(0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ValueError, match=f"Port {port} is in use"):
            listen(port)
    with listen(None) as first, listen(None) as second:
        ports = [each.getsockname()[1] for each in (first, second)]
    assert 7860 <= ports[0] < ports[1] < 7960


def test_a_folder_of_other_files_is_not_taken_for_a_model(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    for folder, why in (("photos", "has other files in it"), ("photos/cat.png", "is a file")):
        with pytest.raises(ValueError, match=why), serving(tmp_path / folder, 0):
            pytest.fail("a page was served")


class _Broken:
    """A server that ends before it has started."""

    started = should_exit = False

    def run(self, sockets: list[socket.socket]) -> None:
        pass


def test_a_server_that_fails_to_start_gives_no_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_server", lambda session, port: _Broken())
    monkeypatch.setattr(server, "preload", lambda module: None)
    listener = listen(0)
    monkeypatch.setattr(server, "listen", lambda port: listener)
    with (
        pytest.raises(OSError, match="Can't serve on port"),
        serving(tmp_path / "model", None),
    ):
        pytest.fail("an address was given")
    assert listener.fileno() == -1  # it is closed
