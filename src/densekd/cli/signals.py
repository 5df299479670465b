"""Ctrl-C and SIGTERM as a request to save and leave."""

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

import typer

_ASKING = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While it is entered, the first signal is noted, and a Ctrl-C after it leaves at once."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.on_first: Callable[[], None] = lambda: None

    @property
    def exit_code(self) -> int:
        """What a process that was ended by the signal has for its exit code."""
        return 128 + (self.received or signal.SIGTERM)

    def __enter__(self) -> "Interrupts":
        self._before = {number: signal.signal(number, self._receive) for number in _ASKING}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number)
            self.on_first()
        elif number == signal.SIGINT:
            raise KeyboardInterrupt


@contextmanager
def resumable() -> Iterator[Interrupts]:
    """For work that saves itself: if it is stopped, says how to go on, and ends the command."""
    from densekd.training.callbacks import Stopped

    with Interrupts() as interrupts:
        try:
            yield interrupts
            return
        except Stopped:
            outcome = "Stopped and saved; to go on"
        except KeyboardInterrupt:
            outcome = "Left at once; to go on from the last save"
        if not first_process():
            # With any other code than 0, Fabric would kill the first process before it is done.
            raise typer.Exit(0)
        typer.echo(f"{outcome}, repeat: {typed()}", err=True)
        raise typer.Exit(interrupts.exit_code)


def first_process() -> bool:
    """Whether this is the first of several processes that share a run, as launchers number them."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def typed() -> str:
    """The command as it was typed, quoted for a shell."""
    script = Path(sys.argv[0])
    if script.name == "__main__.py":  # python -m densekd
        return shlex.join(sys.orig_argv)
    found = shutil.which(script.name)
    same = found is not None and Path(found).absolute() == script.absolute()
    return shlex.join([script.name if same else sys.argv[0], *sys.argv[1:]])
