"""Whatever happens to a sweep, it ends with the numbers of one to which nothing happened."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from densekd.cli import app
from densekd.data.dataset import PixelImages
from densekd.data.digits_npz import load_digits
from densekd.runs.stored import load_result

from support.forked_commands import fork_server
from support.self_signal import self_signalled

# Two bases, so that two runs go on at a time.
TEXT = """
title = "Two seeds"
about = "In parallel."
[settings]
network = "resnet8"
data.source = "npz:digits.npz"
data.per_class = 40
scenario = { base = 4, steps = 2 }
[settings.training]
base = { epochs = 8, batch_size = 32 }
increment = { epochs = 3, batch_size = 32 }
[grid]
"method.name" = ["rdkd-adaptive"]
seed = [1, 2]
[table]
rows = "method.name"
columns = "seed"
"""
COMMAND = [sys.executable, "-m", "densekd", "sweep", "seeds.toml", "--workers", "2", "--out"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working folder, with the experiment and the digits as a source that is read quickly."""
    folder = tmp_path_factory.mktemp("place")
    train, test = load_digits().train, load_digits().test
    assert isinstance(train.images, PixelImages)
    assert isinstance(test.images, PixelImages)
    np.savez(
        folder / "digits.npz",
        train_x=train.images.pixels.numpy(),
        train_y=train.labels.numpy(),
        test_x=test.images.pixels.numpy(),
        test_y=test.labels.numpy(),
    )
    (folder / "seeds.toml").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("OMP_NUM_THREADS", "1")
        # Ray's workers yield to every other process by default: on a busy machine they starve.
        patch.setenv("RAY_worker_niceness", "0")
        fork_server()  # from which the workers of this process are forked
        yield folder


@pytest.fixture(scope="module")
def fine(place: Path) -> dict[str, Any]:
    """The results of a sweep that nothing happened to."""
    sweep(place / "fine")
    return results(place / "fine")


def sweep(out: Path) -> None:
    """Carry out all of the sweep, or what is left of it."""
    result = CliRunner().invoke(app, [*COMMAND[3:], str(out)])
    assert result.exit_code == 0, result.output


def results(out: Path) -> dict[str, Any]:
    """All that was found, without what depends on the clock and on the place."""
    found = {}
    for file in out.glob("npz-*/result.json"):
        result = load_result(file.parent)
        passing = ("seconds", "images_per_second")
        steps = [{k: v for k, v in step.items() if k not in passing} for step in result["steps"]]
        found[file.parent.name] = {**result, "steps": steps, "folder": None}
    assert len(found) == 2
    return found


def states(out: Path) -> list[tuple[str, str | None]]:
    content = json.loads((out / "sweeps" / "seeds" / "runs.json").read_text("utf-8"))
    return sorted((run["state"], run["reason"]) for run in content["runs"])


@contextmanager
def begun(
    out: Path, *options: str, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A sweep that doesn't outlive a failed test."""
    command = [*COMMAND, str(out), *options]
    nothing, errors = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdout=nothing, stderr=errors, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait(process: subprocess.Popen[str], until: Callable[[], object]) -> None:
    while not until():
        assert process.poll() is None, "the sweep ended too early"
        time.sleep(0.005)


def wait_for_end(processes: list[int]) -> None:
    """Wait until the processes are gone; the end of one takes a while on a busy machine."""
    deadline = time.monotonic() + 600
    while any(Path(f"/proc/{number}").exists() for number in processes):
        assert time.monotonic() < deadline, "an orphaned worker goes on"
        time.sleep(0.05)


def descendants(process: int) -> dict[int, str]:
    """The processes that one has started, and that those have, by number, with their commands."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # those that end meanwhile
            state = (folder / "stat").read_text().rpartition(") ")[2].split()
            parents[int(folder.name)] = int(state[1])
            commands[int(folder.name)] = (folder / "cmdline").read_text()
    found, newest = set[int](), {process}
    while newest:
        newest = {child for child, parent in parents.items() if parent in newest}
        found |= newest
    return {number: commands.get(number, "") for number in found}


def working(process: subprocess.Popen[str]) -> list[int]:
    """The local workers: they are forked by a process that the command has started."""
    return [worker for child in descendants(process.pid) for worker in descendants(child)]


@pytest.mark.slow
def test_a_killed_worker_and_a_killed_sweep(fine: dict[str, Any], place: Path) -> None:
    out = place / "local"
    # One of the workers, after two epochs of its base.
    fatal = self_signalled(place / "kill", signal.SIGKILL, f"{out}/bases/*/000015.json")
    with begun(out, environment=fatal) as process:
        _, errors = process.communicate()
    # The other run is done, and the command says what isn't.
    assert process.returncode == 1
    reason = "its process was killed; perhaps the memory was full."
    assert states(out) == [("failed", reason), ("finished", None)]
    assert f": failed: {reason}\n" in errors
    with begun(out) as process:
        wait(process, lambda: working(process))
        workers = working(process)
        process.kill()
        process.wait()
    assert [state for state, _ in states(out)] == ["finished", "running"]
    # Repeat it at once, while an orphaned worker may still be training.
    sweep(out)
    wait_for_end(workers)
    assert states(out) == [("finished", None)] * 2
    assert results(out) == fine


def ray_workers(process: subprocess.Popen[str]) -> list[int]:
    """The workers of Ray that are at a run."""
    every = descendants(process.pid).items()
    return [number for number, command in every if command.startswith("ray::densekd")]


@pytest.mark.slow
def test_a_killed_driver_and_a_killed_worker_of_ray(fine: dict[str, Any], place: Path) -> None:
    out = place / "ray"
    with begun(out, "--engine", "ray") as process:
        # A busy machine may begin the second run when the first is nearly done.
        wait(process, lambda: list(out.glob("bases/*/0*.json")))
        assert ray_workers(process)
        process.kill()
        process.wait()
    assert ("running", None) in states(out)
    # One of the workers, at the last file of its run.
    fatal = self_signalled(place / "kill-ray", signal.SIGKILL, f"{out}/npz-*/result.json")
    with begun(out, "--engine", "ray", environment=fatal) as process:
        # The run goes on in a new worker, or in the other one when that has finished its own run.
        _, errors = process.communicate()
    assert (place / "kill-ray" / "sent").exists()
    assert process.returncode == 0, errors
    assert states(out) == [("finished", None)] * 2
    assert results(out) == fine
