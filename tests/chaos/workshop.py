"""The folders that the trial is made on: small models, runs, photos and an experiment."""

import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from chaos.forked import Ended, FileOperations, run_forked
from support.photos import fill, picture

# Everything that commands import when they are called, so that a child imports nothing.
MODULES = (
    *("scipy.optimize", "sklearn.datasets", "matplotlib.pyplot", "torch.utils.tensorboard"),
    "torch._dynamo",
    *(f"densekd.api.{name}" for name in ("run", "sweep", "report", "teach")),
    *(f"densekd.model.{name}" for name in ("check", "export", "predict", "trained.request")),
    *(f"densekd.model.frozen.{name}" for name in ("edit", "erase", "finetune", "request")),
    "densekd.reports.write",
    *("densekd.display.learn_progress", "densekd.display.sweep_progress", "densekd.runs.loaded"),
)
RUN = """\
network = "resnet8"
[data]
source = "digits"
per_class = 12
[scenario]
base = 4
steps = 2
[method]
name = "rdkd"
[memory]
per_class = 2
[training.base]
epochs = 2
batch_size = 32
[training.increment]
epochs = 2
batch_size = 32
"""
EXPERIMENT = f"""\
title = "Two seeds"
about = "The same run with two seeds."
[settings]
{RUN.replace("[", "[settings.")}
[grid]
"method.name" = ["rdkd"]
seed = [1, 2]
[table]
rows = "method.name"
columns = "seed"
"""
# Of the changes to files of a run: where it is killed, and files that an unfinished run has then.
UNFINISHED = {
    "early": (0.22, "bases/*/[0-9]*.json"),  # in the base
    "halfway": (0.85, "*/epochs/*/[0-9]*.json"),  # in the last task
}
TRAINED = ("--network", "resnet8", "--image-size", "8", "--epochs", "2", "-o", "memory.per_class=4")


def densekd(
    folder: Path,
    *arguments: str,
    operations: FileOperations | None = None,
    delay: float | None = None,
) -> Ended:
    """Run a command in a child that works in ``folder``."""
    return run_forked(partial(_command, arguments), folder, operations, delay=delay)


def _command(arguments: tuple[str, ...]) -> None:
    from densekd.cli import app

    sys.argv = ["densekd", *arguments]
    app()


@contextmanager
def workshop() -> Iterator[Path]:
    """A folder that holds all of it, made anew, while it is needed."""
    torch.set_num_threads(1)
    for name in MODULES:
        __import__(name)
    with _new_folder() as place:
        photos = place / "photos"
        fill(photos / "first", {"red": 6, "green": 6})
        fill(photos / "second", {"blue": 6})
        fill(photos / "third", {"yellow": 6})
        picture("blue", 99).save(place / "blue.png")
        (place / "run.toml").write_text(RUN)
        (place / "seeds.toml").write_text(EXPERIMENT)
        for model, options in (("frozen", ()), ("trained", TRAINED)):
            _make(place, "learn", model, "photos/first", "--quiet", *options)
            _make(place, "learn", model, "photos/second", "--quiet", *options[4:])
        operations = FileOperations(place)
        _make(place, *run_command("runs"), operations=operations)
        for out, (part, has) in UNFINISHED.items():
            kill = FileOperations(place, round(part * operations.count))
            densekd(place, *run_command(out), operations=kill)
            if not any((place / out).glob(has)) or any((place / out).glob("*/result.json")):
                raise RuntimeError(f"The run in {out} wasn't killed where it should be.")
        yield place


def run_command(out: str) -> tuple[str, ...]:
    """The command of the run, in a folder of its own."""
    return ("run", "--config", "run.toml", "--out", out, "--quiet")


@contextmanager
def _new_folder() -> Iterator[Path]:
    """A new folder, in memory if there is room, since syncing to a disk takes long."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30
    with tempfile.TemporaryDirectory(prefix="chaos-", dir=memory if roomy else None) as name:
        yield Path(name)


def _make(place: Path, *arguments: str, operations: FileOperations | None = None) -> None:
    ended = densekd(place, *arguments, operations=operations)
    if ended.code != 0:
        raise RuntimeError(f"{arguments} failed: {ended.stderr}{ended.crash}")


@contextmanager
def sandbox(place: Path, *names: str) -> Iterator[Path]:
    """A copy of some parts of the workshop, while it is needed."""
    with _new_folder() as copy:
        for part in names:
            source = place / part
            if source.is_dir():
                shutil.copytree(source, copy / part, symlinks=True)
            else:
                shutil.copy2(source, copy / part)
        yield copy


def add_traps(folder: Path) -> None:
    """Put things into a folder that no command should take for an ordinary file."""
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "empty").mkdir()
    (folder / "nested").write_bytes(b"[" * 200_000)
    with zipfile.ZipFile(folder / "other.zip", "w") as archive:
        archive.writestr("../outside", "text")
    (folder / "half.png").write_bytes((folder / "blue.png").read_bytes()[:60])
    for name in ("a b\nc", "-rf", "*", "\u202egnp", "x" * 255):
        (folder / "odd" / name).mkdir(parents=True)
        shutil.copy(folder / "blue.png", folder / "odd" / name)
