"""Ctrl-C and SIGTERM as requests to save and stop."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Variables in which torchrun, SLURM and Fabric number processes; only the first has 0 in all.
_RANKS = ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK")


class Interrupts:
    """A context that notes the first signal. A later Ctrl-C raises KeyboardInterrupt.

    Only the main thread gets signals; in other threads the context notes none.
    """

    current: "Interrupts | None" = None  # the open context

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.on_first: Callable[[], None] = lambda: None

    @property
    def exit_code(self) -> int:
        """The exit code of a process that a signal ended."""
        return 128 + (self.received or signal.SIGTERM)

    def __enter__(self) -> "Interrupts":
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in _SIGNALS}
            Interrupts.current = self
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if Interrupts.current is self:
            Interrupts.current = None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number)
            self.on_first()
        elif number == signal.SIGINT:
            raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Give the `Interrupts` that are open in this thread, or open new ones."""
    main = threading.current_thread() is threading.main_thread()
    if main and Interrupts.current is not None:
        yield Interrupts.current
    else:
        with Interrupts() as interrupts:
            yield interrupts


def first_process() -> bool:
    """Whether the launcher numbered this process as the first of those that share a run."""
    return all(os.environ.get(name, "0") == "0" for name in _RANKS)
