"""Ctrl-C and SIGTERM as requests to save and stop."""

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import typer

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """A context that notes the first signal. A later Ctrl-C raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.on_first: Callable[[], None] = lambda: None

    @property
    def exit_code(self) -> int:
        """The exit code of a process that a signal ended."""
        return 128 + (self.received or signal.SIGTERM)

    def __enter__(self) -> "Interrupts":
        self._before = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
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
    """For work that saves checkpoints: if it is interrupted, say how to resume, and exit."""
    from densekd.training.callbacks import Stopped

    with Interrupts() as interrupts:
        try:
            yield interrupts
            return
        except Stopped:
            outcome = "Stopped and saved. To resume"
        except KeyboardInterrupt:
            outcome = "Quit at once. To resume from the last checkpoint"
        if not first_process():
            # With another exit code, Fabric would kill the first process before it has saved.
            raise typer.Exit(0)
        typer.echo(f"{outcome}, run: {typed_command()}", err=True)
        raise typer.Exit(interrupts.exit_code)


def first_process() -> bool:
    """Whether this is the first of the processes that share a run, by the launcher's number."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def typed_command() -> str:
    """The command line, quoted for a shell."""
    script = Path(sys.argv[0])
    if script.name == "__main__.py":  # python -m densekd
        return shlex.join(sys.orig_argv)
    found = shutil.which(script.name)
    same = found is not None and Path(found).absolute() == script.absolute()
    return shlex.join([script.name if same else sys.argv[0], *sys.argv[1:]])
