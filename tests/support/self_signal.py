"""A command that sends itself a signal at a chosen moment, which no busy machine can shift."""

import os
import signal
from pathlib import Path

# Python imports a module of this name at its start.
_HOOK = """
import fnmatch, os, sys

def hear(event, arguments):
    if event != "os.rename" or not fnmatch.fnmatch(os.fsdecode(arguments[1]), {pattern!r}):
        return
    with open(arguments[0], "rb") as file:
        if {text!r} not in file.read():
            return
    try:
        os.close(os.open({sent!r}, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), {number})

sys.addaudithook(hear)
"""


def self_signalled(
    folder: Path, number: signal.Signals, pattern: str, text: str = ""
) -> dict[str, str]:
    """The environment of a command that sends itself a signal once.

    The process that does so is the first one about to replace a file whose path fits ``pattern`` by
    one with ``text`` in it.
    """
    folder.mkdir()
    sent = str(folder / "sent")
    content = _HOOK.format(pattern=pattern, text=text.encode(), sent=sent, number=int(number))
    (folder / "sitecustomize.py").write_text(content)
    paths = filter(None, [str(folder), os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def self_signal(folder: Path, number: signal.Signals, pattern: str, text: str = "") -> None:
    """Do the same in this process, which was forked for a command."""
    self_signalled(folder, number, pattern, text)
    exec((folder / "sitecustomize.py").read_text(), {})
