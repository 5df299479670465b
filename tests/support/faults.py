"""What a kill would leave on the disk, and disks that are soon full."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def copied_before_each_change(folder: Path, copies: Path) -> Iterator[None]:
    """Copy a folder as a kill would leave it, before each rename or removal of a file."""

    def copy_first(change: Callable[..., None]) -> Callable[..., None]:
        def changing(*args: Any, **kwargs: Any) -> None:
            shutil.copytree(folder, copies / f"{len(list(copies.glob('*'))):03d}")
            change(*args, **kwargs)

        return changing

    copies.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "unlink", "rmdir"):
            patch.setattr(os, name, copy_first(getattr(os, name)))
        yield


@contextmanager
def full_disk(name: str, room: int) -> Iterator[None]:
    """Let the function ``name`` of ``os`` fail after ``room`` calls, as on a full disk."""
    works, left = getattr(os, name), iter(range(room))

    def filling(*args: Any) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        works(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, name, filling)
        yield


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[Callable[[], object]]:
    """Mount a real disk of so many bytes, and give a function that makes it larger.

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
