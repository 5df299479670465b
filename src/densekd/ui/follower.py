"""Work on a model in a thread, done again whenever the model changes."""

import logging
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from densekd.checks import first_line
from densekd.model.model import Model

logger = logging.getLogger(__name__)


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
        """Work in the thread; count `version` up whenever there is something to show.

        It must raise nothing, because nobody would see it; `problem_of` puts an error into words.
        """


def problem_of(error: Exception) -> str:
    """A sentence for the page; the traceback of an unexpected error is logged."""
    if isinstance(error, ValueError | OSError):
        return str(error)
    logger.error("An unexpected error:", exc_info=error)
    kind = type(error).__name__
    return f"This should not happen ({kind}: {first_line(error)}); the terminal says more."
