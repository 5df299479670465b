"""Commands in processes of their own that are forked, because importing takes longer than they do.

Other tests start Python anew: those of the console script, of what is imported, and of ranks.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Self

# What runs import sooner or later.
_RUNS = ["densekd.api.run", "densekd.cli", "torch._dynamo", "torch.utils.tensorboard"]
_server: tuple[int | None, set[str]] = None, set()  # its number, and what it has imported


def fork_server(*modules: str) -> ForkServerContext:
    """A context whose processes are forked from a server that has imported these modules.

    `multiprocessing` has one server, which imports what the first who needs it asks for. One that
    lacks a module, as that of a pool that another test has started, is replaced.
    """
    global _server
    context, running = multiprocessing.get_context("forkserver"), _private()
    number, imported = _server
    if number is None or number != running._forkserver_pid or not imported.issuperset(modules):
        running._stop()
        context.set_forkserver_preload([*_RUNS, *modules])
        forkserver.ensure_running()
        _server = running._forkserver_pid, {*modules}
    return context


def _private() -> Any:
    return forkserver._forkserver


class ForkedCommand:
    """A command of densekd that runs in a folder; has what tests use of `subprocess.Popen`.

    Args:
        arguments: those of the command, without its name.
        folder: the working directory.
        out: a file for what it prints, or a terminal.
        errors: a file for what it says, or a terminal.
        environment: its variables; those of this process unless given.
        first: is called in the process before the command.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        out: Path = Path(os.devnull),
        errors: Path = Path(os.devnull),
        environment: Mapping[str, str] | None = None,
        *,
        first: Callable[[], object] | None = None,
    ) -> None:
        self.out, self.errors = out, errors
        for file in (out, errors):
            file.touch()  # so that it can be read at once
        given = dict(os.environ if environment is None else environment)
        streams = [os.devnull, str(out), str(errors)]
        places = str(folder), streams, given
        self._process = fork_server().Process(target=_run, args=(list(arguments), *places, first))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or the signal that ended it, negative; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, seconds: float | None = None) -> int:
        self._process.join(seconds)
        assert self.returncode is not None, "it still runs"
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def printed(self) -> str:
        return self.out.read_text("utf-8")

    def said(self) -> str:
        return self.errors.read_text("utf-8") if self.errors.is_file() else ""

    def wait_for(self, happened: Callable[[], object]) -> None:
        """Wait for what the command does while it runs."""
        while not happened():
            assert self.poll() is None, f"it ended too early: {self.said()}"
            time.sleep(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it, if the test has failed."""
        self.kill()
        self._process.join()


def _run(
    arguments: list[str],
    folder: str,
    streams: list[str],
    environment: dict[str, str],
    first: Callable[[], object] | None,
) -> None:
    """Run a command, in the process that was forked for it."""
    os.environ.clear()
    os.environ.update(environment)
    for number, name in enumerate(streams):
        handle = os.open(name, os.O_RDWR | os.O_APPEND)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(  # noqa: SIM115
        2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False
    )
    os.chdir(folder)
    # As if the console script had been called: further ranks are started by the same words.
    sys.argv = [str(Path(sys.executable).with_name("densekd")), *arguments]
    sys.modules["__main__"].__spec__ = None
    if first is not None:
        first()
    from densekd.cli import app

    app(arguments, prog_name="densekd")
