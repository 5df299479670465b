"""A real disk that is soon full."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[Callable[[], object]]:
    """Mount a disk of so many bytes, and give a function that makes it larger.

    Skips the test where that isn't permitted.
    """
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no permission to mount a tmpfs")
    larger = ["mount", "-o", "remount,size=100m", str(place)]
    try:
        yield lambda: subprocess.run(larger, capture_output=True, check=True)
    finally:
        subprocess.run(["umount", str(place)], check=True)
