"""Background work on a model, repeated whenever the model changes."""

import logging
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from densekd.model.model import Model
from densekd.text import first_line

logger = logging.getLogger(__name__)


class ModelFollower(ABC):
    """Runs `_work` in a thread, at first and whenever the model in ``folder`` has changed."""

    def __init__(self, folder: Path) -> None:
        self.version = 0  # grows with every change of the results
        # Both take a value of `Session.revision`; for a new one, `_open` reads the model again.
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
        """Wait until the current work is done, and cancel the rest."""
        self._thread.shutdown(cancel_futures=True)

    @abstractmethod
    def _work(self, revision: object) -> None:
        """Do the work in the thread; increase `version` whenever there is something to show.

        It must not raise, because nobody would see the error; `problem_of` puts it into words.
        """


def problem_of(error: Exception) -> str:
    """Describe an error in a sentence for the page; log the traceback of an unexpected one."""
    if isinstance(error, ValueError | OSError):
        return str(error)
    logger.error("An unexpected error:", exc_info=error)
    kind = type(error).__name__
    return (
        f"This should not happen ({kind}: {first_line(error)}); the terminal shows where it "
        "happened."
    )
