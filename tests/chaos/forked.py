"""Do something in a forked child: nothing is imported anew, a kill is real, and a hang ends."""

import errno
import mmap
import os
import resource
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

# A child that takes longer hangs, unless the computer is so busy that it had less than that to run.
LIMIT = 30.0
CRASHED = 70
# More than any command on tiny data takes; absurd sizes must not take the computer down.
_MOST_MEMORY = 12 << 30
_LOCAL = ("127.0.0.1", "::1", "localhost")
_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate")


class Ended(NamedTuple):
    """How a child ended."""

    code: int | None  # its exit code, or the signal that killed it, negative; None if it hung
    stdout: str
    stderr: str
    crash: str  # the traceback of what it raised, if anything
    asked_network: bool


class FileOperations:
    """Counts the changes that a child makes to files below a folder, and may kill it at one."""

    def __init__(self, folder: Path, kill_at: int = 0) -> None:
        self.folder, self.kill_at = str(folder.resolve()), kill_at
        self._shared = mmap.mmap(-1, 8)  # the child counts, the parent reads

    @property
    def count(self) -> int:
        """The changes so far."""
        return int.from_bytes(self._shared[:8], "little")

    def install(self) -> None:
        """Begin to count, in the child: an audit hook can't be taken off again."""
        fsync = os.fsync

        def counting(fd: Any) -> None:
            self._happens()
            fsync(fd)

        os.fsync = counting
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event in _CHANGES:
            path = arguments[0]
        else:
            return
        # A relative path is in the folder, where the child works.
        path = path if isinstance(path, str) else os.fsdecode(path) if not _is_handle(path) else ""
        if not os.path.isabs(path) or path.startswith(self.folder):
            self._happens()

    def _happens(self) -> None:
        count = self.count + 1
        self._shared[:8] = count.to_bytes(8, "little")
        if count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def _is_handle(path: object) -> bool:
    return path is None or isinstance(path, int)


def run_forked(
    work: Callable[[], object],
    folder: Path,
    operations: FileOperations | None = None,
    *,
    delay: float | None = None,
    limit: float = LIMIT,
) -> Ended:
    """Do ``work`` in a child process that works in ``folder``, without network.

    Args:
        work: what to do.
        folder: the child's working directory.
        operations: counts the child's changes to files.
        delay: kill it after so many seconds.
        limit: it hangs if it takes longer than so many seconds.
    """
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        tempfile.TemporaryFile() as crash,
        mmap.mmap(-1, 1) as asked,
    ):
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            _be_child(work, folder, operations, (out, err, crash), asked)
        code = _wait(child, delay, limit)
        return Ended(code, _text(out), _text(err), _text(crash), asked[0] != 0)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _be_child(
    work: Callable[[], object],
    folder: Path,
    operations: FileOperations | None,
    streams: tuple[IO[bytes], IO[bytes], IO[bytes]],
    asked: mmap.mmap,
) -> None:
    """Do the work and exit; never returns."""
    out, err, crash = streams
    code = 0
    try:
        os.setsid()  # so that its own children can be killed with it
        nothing = os.open(os.devnull, os.O_RDONLY)
        for handle, number in ((nothing, 0), (out.fileno(), 1), (err.fileno(), 2)):
            os.dup2(handle, number)
        sys.stdin, sys.stdout, sys.stderr = (
            open(n, mode, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
            for n, mode in enumerate("rww")
        )
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(folder)
        _cut_network(asked)
        if operations is not None:
            operations.install()
        work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        crash.write(traceback.format_exc().encode(errors="replace"))
        crash.flush()
        code = CRASHED
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _cut_network(asked: mmap.mmap) -> None:
    """Let nothing be sent to another computer, and write down whether it was tried."""

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.getaddrinfo":
            host = arguments[0]
        elif event == "socket.connect":
            host = arguments[1][0] if isinstance(arguments[1], tuple) else _LOCAL[0]
        else:
            return
        if host not in _LOCAL:
            asked[0] = 1
            raise OSError(errno.ENETUNREACH, "Network is unreachable")

    sys.addaudithook(refuse)


def _wait(child: int, delay: float | None, limit: float) -> int | None:
    """The exit code of a child, which is killed after ``delay``, or if it hangs."""
    code: int | None = None
    handle = os.pidfd_open(child)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    used, patience = 0.0, limit if delay is None else delay
    try:
        while not (ended := poll.poll(1000 * patience)):
            before, used = used, _seconds(child)
            if delay is not None or used > limit or used - before < 0.02 * patience:
                break
    finally:
        os.close(handle)
    # Also ends what the child left behind, which would hold locks.
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)  # if it had no group of its own yet
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended or delay is not None:
        code = status
    return code


def _seconds(group: int) -> float:
    """The processor time of all processes of a group."""
    ticks = 0
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
