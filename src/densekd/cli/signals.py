"""What a command says when Ctrl-C or SIGTERM has stopped it."""

import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from densekd.display.interrupts import Interrupts, first_process


@contextmanager
def resumable() -> Iterator[Interrupts]:
    """If work that saves checkpoints is interrupted, say how to resume it, and exit."""
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


def typed_command() -> str:
    """The command line, quoted for a shell."""
    script = Path(sys.argv[0])
    if script.name == "__main__.py":  # python -m densekd
        return shlex.join(sys.orig_argv)
    found = shutil.which(script.name)
    same = found is not None and Path(found).absolute() == script.absolute()
    return shlex.join([script.name if same else sys.argv[0], *sys.argv[1:]])
