"""Whatever happens to the process, the disk or the files, the last good state is found."""

import errno
import itertools
import multiprocessing
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from densekd.training.checkpoint import Checkpoints, State

from support.faults import full_disk


def state(value: int) -> State:
    return State({"value": value}, {"x": torch.full((50,), value), "y": torch.tensor(-value)})


def newest(folder: Path) -> int | None:
    """The value of the newest state, whose tensors belong to its facts."""
    found = Checkpoints(folder).newest()
    if found is None:
        return None
    value: int = found.facts["value"]
    assert found.tensors["x"].tolist() == [value] * 50
    assert found.tensors["y"].item() == -value
    return value


def temporary(folder: Path) -> list[Path]:
    return list(folder.glob(".*"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two states, 1 and 2, whose values are ten times that."""
    for number in (1, 2):
        Checkpoints(tmp_path / "saved").save(number, state(10 * number))
    return tmp_path / "saved"


def save_for_ever(folder: Path) -> None:
    """Save values one by one from the newest on, three with each number."""
    found = newest(folder)
    assert found is not None
    for value in itertools.count(found + 1):
        Checkpoints(folder).save(value // 3, state(value))


def test_a_process_killed_while_saving_loses_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["densekd.training.checkpoint"])
    draw = random.Random(0)
    Checkpoints(tmp_path).save(0, state(0))
    value = rounds = 0
    while rounds < 10 or value == 0:  # on a busy machine, ten kills may all come too early
        rounds += 1
        before = os.listdir(tmp_path)
        process = context.Process(target=save_for_ever, args=(tmp_path,), daemon=True)
        process.start()
        while os.listdir(tmp_path) == before:
            assert process.is_alive(), "the process ended before it saved anything"
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.05))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        found = newest(tmp_path)
        assert found is not None
        assert found >= value
        value = found
    Checkpoints(tmp_path).save(value, state(value))
    assert temporary(tmp_path) == []


@pytest.fixture
def moments(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[Path]]:
    """Copies of the folder as a kill before each change on the disk would leave it."""
    copies: list[Path] = []

    def watched(change: Callable[..., Any]) -> Callable[..., Any]:
        def changing(*args: Any, **kwargs: Any) -> Any:
            copies.append(tmp_path / f"copy {len(copies)}")
            shutil.copytree(folder, copies[-1])
            return change(*args, **kwargs)

        return changing

    for name in ("fsync", "replace", "unlink"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))

    def taken() -> list[Path]:
        monkeypatch.undo()
        return [*copies, folder]

    return taken


@pytest.mark.parametrize("number", [2, 3])
def test_at_every_moment_of_a_save_a_state_is_intact_and_can_be_followed(
    number: int, folder: Path, moments: Callable[[], list[Path]], caplog: pytest.LogCaptureFixture
) -> None:
    Checkpoints(folder).save(number, state(30))
    found = [newest(copy) for copy in moments()]
    after = found.index(30)
    assert {*found[:after]} == {20}
    assert {*found[after:]} == {30}
    assert caplog.text == ""
    for copy in moments():
        Checkpoints(copy).save(4, state(40))
        Checkpoints(copy).save(5, state(50))
        assert newest(copy) == 50
        assert len(os.listdir(copy)) == 4


def test_at_every_moment_of_a_clear_there_is_the_newest_or_nothing(
    folder: Path, moments: Callable[[], list[Path]], caplog: pytest.LogCaptureFixture
) -> None:
    Checkpoints(folder).clear()
    found = [newest(copy) for copy in moments()]
    assert {*found} == {20, None}
    assert found[-1] is None
    assert caplog.text == ""


def change_bytes(content: bytes) -> Iterator[bytes]:
    """One bit flipped, or one byte replaced, at many places."""
    draw = random.Random(0)
    for place in draw.sample(range(len(content)), min(len(content), 150)):
        flipped = content[place] ^ 1 << draw.randrange(8)
        for new in {flipped, 9, 32, draw.randrange(256)} - {content[place]}:
            yield content[:place] + bytes([new]) + content[place + 1 :]


def cut_off(content: bytes) -> Iterator[bytes]:
    return (content[:length] for length in (0, 1, len(content) // 2, len(content) - 1))


def make_longer(content: bytes) -> Iterator[bytes]:
    return (content + more for more in (b" ", b"\n", b"\0", content))


@pytest.mark.parametrize("damage", [change_bytes, cut_off, make_longer])
@pytest.mark.parametrize("ending", ["json", "safetensors"])
def test_any_damage_is_found_and_the_state_before_is_used(
    ending: str,
    damage: Callable[[bytes], Iterator[bytes]],
    folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (file,) = folder.glob(f"000002*.{ending}")
    for content in damage(file.read_bytes()):
        file.write_bytes(content)
        caplog.clear()
        assert newest(folder) == 10
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert str(folder / "000002") in record.getMessage()
        assert "Checkpoint 1 is used instead." in record.getMessage()


def test_tensors_that_are_lost_are_damage(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (file,) = folder.glob("000002*.safetensors")
    file.unlink()
    assert newest(folder) == 10
    assert f"000002 has lost its tensors, {file}" in caplog.text


def test_a_damaged_state_is_repaired_by_saving_it_again(folder: Path) -> None:
    for file in folder.glob("000002*"):
        file.write_bytes(b"")
        Checkpoints(folder).save(2, state(20))
        assert newest(folder) == 20


def test_states_that_are_all_damaged_are_not_taken_for_none(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for file in folder.glob("*.json"):
        file.write_bytes(b"")
    assert newest(folder) is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert re.match(r"No checkpoint in .* is intact; .*000002\.json", record.getMessage())


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_full_disk_costs_nothing_that_was_saved(name: str, number: int, folder: Path) -> None:
    for most in itertools.count():
        try:
            with full_disk(name, most):
                Checkpoints(folder).save(number, state(30))
            break
        except OSError:
            assert temporary(folder) == []
            assert newest(folder) in [20, 30]
    assert most == {"fsync": 4, "replace": 2}[name]
    assert newest(folder) == 30
    assert len(os.listdir(folder)) == 4


def test_saves_that_failed_do_not_pile_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def full_for_json(old: Path, new: Path) -> None:
        if new.suffix == ".json":
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(old, new)

    monkeypatch.setattr(os, "replace", full_for_json)
    for number in (3, 4, 5):
        with pytest.raises(OSError, match="No space left"):
            Checkpoints(folder).save(number, state(number))
        assert len(os.listdir(folder)) == 5
    assert newest(folder) == 20
