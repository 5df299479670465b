"""Locks on folders, so that one process at a time works in each."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from densekd.jobs.events import Busy
from densekd.runs.observer import RunObserver
from densekd.training.callbacks import Stopped
from densekd.training.engine import Engine


@contextmanager
def exclusive(folder: Path, engine: Engine | None = None) -> Iterator[None]:
    """Lock a folder.

    Raises:
        Busy: another process works in it.
        Stopped: the same, on all ranks but the first.
    """
    lock = FileLock(folder / "lock")
    if not _acquire(lock, engine, seconds=0):
        if engine is not None and not engine.first:
            raise Stopped  # the first rank raises Busy
        raise Busy(f"Another process is working on {folder}; wait for it, or stop it first.")
    try:
        yield
    finally:
        lock.release()


@contextmanager
def wait(folder: Path, engine: Engine, observer: RunObserver) -> Iterator[None]:
    """Lock a folder; wait if another process works in it.

    Raises:
        Stopped: the observer stopped the waiting.
    """
    lock, waiting = FileLock(folder / "lock"), False
    while not _acquire(lock, engine, seconds=1 if waiting else 0):
        if engine.broadcast(observer.stop()):
            raise Stopped
        if not waiting:
            observer.shared_base(waiting=True)
        waiting = True
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, engine: Engine | None, seconds: float) -> bool:
    """Let the first rank try to take a lock; tell all ranks whether it has."""
    if engine is None or engine.first:
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        with suppress(Timeout):
            lock.acquire(timeout=seconds)
    return lock.is_locked if engine is None else engine.broadcast(lock.is_locked)
