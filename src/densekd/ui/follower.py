"""Work on a model in a thread, done again whenever the model changes."""

from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from densekd.model.model import Model


class ModelFollower(ABC):
    """Does `_work` for the current state of the model in ``folder``, and again for the next."""

    def __init__(self, folder: Path) -> None:
        self.version = 0  # grows with every change of what was worked out
        # Both get what `Session.revision` gives.
        self._open = lru_cache(maxsize=1)(lambda revision: Model.open(folder))
        self._revision: object = None
        self._thread = ThreadPoolExecutor(1)
        self._running: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether the work isn't done yet."""
        return self._running is not None and not self._running.done()

    def follow(self, revision: object) -> None:
        """Start again if the model has changed."""
        if revision != self._revision:
            self.start(revision)

    def start(self, revision: object) -> None:
        """Start the work for this state of the model."""
        self._revision = revision
        self.version += 1
        self._running = self._thread.submit(self._work, revision)

    def close(self) -> None:
        """Wait until the work is done, and start no other."""
        self._thread.shutdown(cancel_futures=True)

    @abstractmethod
    def _work(self, revision: object) -> None:
        """Work in the thread; count `version` up whenever there is something to show."""
