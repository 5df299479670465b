"""What a kill would leave on the disk."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def copied_before_each_change(model: Path, copies: Path) -> Iterator[None]:
    """Copy the model as a kill would leave it, before each rename or removal of a file."""

    def copy_first(change: Callable[..., None]) -> Callable[..., None]:
        def changing(*args: Any, **kwargs: Any) -> None:
            shutil.copytree(model, copies / f"{len(list(copies.glob('*'))):03d}")
            change(*args, **kwargs)

        return changing

    copies.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "unlink", "rmdir"):
            patch.setattr(os, name, copy_first(getattr(os, name)))
        yield
