"""Folders that only one process at a time works on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from densekd.training.callbacks import Stopped
from densekd.training.engine import Engine


class Busy(ValueError):
    """Another process is working on what this one should."""


@contextmanager
def exclusive(folder: Path, engine: Engine) -> Iterator[None]:
    """Refuse to work on a run that another process works on."""
    lock = FileLock(folder / "lock")
    if not _acquired(lock, engine, seconds=0):
        if not engine.first:
            raise Stopped  # the first rank says why
        raise Busy(f"Another process is working on {folder}; wait for it, or stop it first.")
    try:
        yield
    finally:
        lock.release()


@contextmanager
def wait(
    folder: Path, engine: Engine, stop: Callable[[], bool], on_wait: Callable[[], None]
) -> Iterator[None]:
    """Wait for another process that works on the same; all ranks wait for the first one.

    Args:
        folder: what only one process may work on.
        engine: knows the ranks.
        stop: whether to wait no longer.
        on_wait: called once, if there is something to wait for.

    Raises:
        Stopped: when asked to.
    """
    lock, told = FileLock(folder / "lock"), False
    while not _acquired(lock, engine, seconds=1 if told else 0):
        if engine.agreed(stop()):
            raise Stopped
        if not told:
            on_wait()
        told = True
    try:
        yield
    finally:
        lock.release()


def _acquired(lock: FileLock, engine: Engine, seconds: float) -> bool:
    """Whether the first rank, for all, got a lock within a time; asked on all ranks at once."""
    if engine.first:
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        with suppress(Timeout):
            lock.acquire(timeout=seconds)
    return engine.agreed(lock.is_locked)
