"""An update in a process of its own, so that the page stays quick and survives whatever happens."""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from densekd.model.request import Plan
from densekd.model.settings import TeachOptions
from densekd.model.store import Update
from densekd.model.teach import TeachObserver, teach
from densekd.training.callbacks import Stopped, TrainingProgress, forward_warnings


@dataclass
class UpdateProgress:
    """How far an update is.

    Args:
        doing: what is going on.
        share: how much of that is done, from 0 to 1; None if nobody knows.
        left: the seconds until training is over, if that can be told.
        warnings: what was found on the way.
    """

    doing: str = "Starting"
    share: float | None = None
    left: float | None = None
    warnings: list[str] = field(default_factory=list)


class UpdateEstimate:
    """Turns reports into `UpdateProgress`, by the speed since the first of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.phases: tuple[tuple[str, int], ...] = ()
        self._since: tuple[float, float] | None = None

    def tell(self, report: TrainingProgress, progress: UpdateProgress) -> None:
        """Say how far training is."""
        before = [name for name, _ in self.phases].index(report.phase)
        epochs = [count for _, count in self.phases]
        done = sum(epochs[:before]) + report.epoch + report.batch / report.batches
        share, now = done / sum(epochs), self.clock()
        self._since = self._since or (now, share)
        began, share_then = self._since
        epoch = min(int(done) + 1, sum(epochs))
        progress.doing, progress.share = f"Learning, epoch {epoch} of {sum(epochs)}", share
        if share > share_then:
            progress.left = (now - began) / (share - share_then) * (1 - share)


class UpdateJob:
    """An update that was begun.

    Args:
        folder: of the model.
        source: the images, a sub-folder for each class.
        options: how to teach.
        at_end: called when it is over, however it ended.
    """

    def __init__(
        self,
        folder: Path,
        source: Path,
        options: TeachOptions,
        at_end: Callable[["UpdateJob"], None],
    ) -> None:
        context = _context()
        self.progress = UpdateProgress()
        self.update: Update | None = None
        self.failure: str | None = None
        self.stopped = False
        self._at_end = at_end
        self._stop = context.Event()
        self._estimate = UpdateEstimate()
        self._told, tell = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_work, args=(folder, source, options, tell, self._stop), daemon=True
        )
        self._process.start()
        tell.close()  # else the end of the process wouldn't be seen here
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    @property
    def pid(self) -> int:
        """The number of its process."""
        assert self._process.pid is not None
        return self._process.pid

    def stop(self) -> None:
        """Ask it to save and leave."""
        self._stop.set()
        self.progress.doing, self.progress.left = "Stopping after this batch", None

    def wait(self, seconds: float | None = None) -> None:
        """Wait until it is over, or for so long."""
        self._thread.join(seconds)

    def _listen(self) -> None:
        try:
            while True:
                self._hear(*self._told.recv())
        except EOFError:
            self._process.join()
        if self.update is None and not self.stopped and self.failure is None:
            self.failure = "The update broke off; the model is what it was. Teach again to go on."
        self._at_end(self)

    def _hear(self, what: str, told: Any) -> None:
        progress = self.progress
        if what in ("update", "failure", "stopped"):
            setattr(self, what, told)
        elif what == "warning":
            progress.warnings.append(told)
        elif what == "plan":
            self._estimate.phases = told.phases
        elif self._stop.is_set():
            return
        elif what == "report":
            self._estimate.tell(told, progress)
        else:
            progress.doing, progress.share, progress.left = what, told, None


def prepare() -> None:
    """Begin to import in the background what updates need, so that they start at once."""
    _context()
    ensure_running()


def _context() -> ForkServerContext:
    # Not a fork of the page's own process, whose threads would be missing in it.
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


class _Teller(TeachObserver):
    """Tells the page's process."""

    def __init__(self, tell: Connection, stop: Event) -> None:
        self.tell = tell
        self.asked = stop

    def reading(self, done: int, total: int) -> None:
        if done % 16 == 0 or done == total:
            self.tell.send((f"Reading image {done:,} of {total:,}", done / total))

    def planned(self, plan: Plan) -> None:
        self.tell.send(("plan", plan))

    def doing(self, what: str) -> None:
        self.tell.send((what.capitalize(), None))

    def report(self, report: TrainingProgress) -> None:
        self.tell.send(("report", report))

    def stop(self) -> bool:
        return self.asked.is_set()


def _work(folder: Path, source: Path, options: TeachOptions, tell: Connection, stop: Event) -> None:
    # Ctrl-C reaches all processes of a terminal; the page's asks this one to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with forward_warnings(lambda words: tell.send(("warning", words))):
            tell.send(("update", teach(folder, source, options, _Teller(tell, stop))))
    except Stopped:
        tell.send(("stopped", True))
    except BrokenPipeError:  # the page is gone, and nobody is to be told
        return
    except (ValueError, OSError, RuntimeError) as error:
        # Whoever uses the page doesn't know of the folder that images are put in.
        sentence = str(error).replace(str(source), "what was dropped")
        tell.send(("failure", sentence[:1].upper() + sentence[1:]))
