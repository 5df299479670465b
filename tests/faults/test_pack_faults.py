"""Killing `densekd data pack` at any moment and repeating it gives the same file."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from densekd.data.folder import FolderTable, find_images
from densekd.data.pack import PackOptions, pack

OPTIONS = PackOptions(shorter_side=20)


@pytest.fixture
def table(tmp_path: Path) -> FolderTable:
    for label in ("cat", "dog"):
        folder = tmp_path / "pets" / label
        folder.mkdir(parents=True)
        for i in range(20):
            noise = np.random.default_rng(i).integers(0, 256, (30, 40, 3), np.uint8)
            Image.fromarray(noise).save(folder / f"{i:02}.png")
        (folder / "bad.png").write_text("not an image")
    return find_images(tmp_path / "pets").table()


@pytest.fixture
def whole(table: FolderTable, tmp_path: Path) -> bytes:
    """The file of a packer that was never killed."""
    pack(table, tmp_path / "whole", OPTIONS, 0)
    return (tmp_path / "whole").read_bytes()


def killed(work: Callable[[], object]) -> bool:
    """Do the work in a process of its own; return whether it was killed."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def kill_me(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_after_any_image_it_goes_on(
    table: FolderTable, whole: bytes, tmp_path: Path
) -> None:
    target, kills, draw = tmp_path / "packed", 0, random.Random(0)
    while kills < 10:
        last = draw.randrange(1, len(table.files) + 1)

        def count(done: int, total: int, last: int = last) -> None:
            if done == last:
                kill_me()

        kills += killed(lambda count=count: pack(table, target, OPTIONS, 0, count))  # type: ignore[misc]
        if target.exists():
            assert target.read_bytes() == whole
            target.unlink()
    pack(table, target, OPTIONS, 0)
    assert target.read_bytes() == whole


@pytest.mark.parametrize("call", ["replace", "fsync", "unlink"])
def test_killed_before_the_file_gets_its_name_or_the_journal_goes(
    table: FolderTable, whole: bytes, tmp_path: Path, call: str
) -> None:
    target = tmp_path / "packed"

    def packing() -> None:
        setattr(os, call, kill_me)
        pack(table, target, OPTIONS, 0)

    assert killed(packing)
    pack(table, target, OPTIONS, 0)
    assert target.read_bytes() == whole


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_disk_kept_of_an_unfinished_file_is_no_harm(
    table: FolderTable, whole: bytes, tmp_path: Path, seed: int
) -> None:
    target, draw = tmp_path / "packed", random.Random(seed)

    def stop(done: int, total: int) -> None:
        if done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(table, target, OPTIONS, 0, stop)
    for kind in ("part", "journal"):
        file = tmp_path / f".packed.{kind}"
        content = bytearray(file.read_bytes())
        for _ in range(draw.randrange(3)):
            content[draw.randrange(len(content))] ^= 1
        file.write_bytes(content[: draw.randrange(len(content) + 1)])
    pack(table, target, OPTIONS, 0)
    assert target.read_bytes() == whole
    assert not list(tmp_path.glob(".packed.*"))


@pytest.mark.parametrize(
    "tail",
    [bytes(120), (2**56).to_bytes(8, "little") * 10, b"\xff" * 120],
    ids=["zeros", "huge", "ones"],
)
def test_a_journal_that_ends_in_nonsense_is_no_harm(
    table: FolderTable, whole: bytes, tmp_path: Path, tail: bytes
) -> None:
    target = tmp_path / "packed"

    def stop(done: int, total: int) -> None:
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(table, target, OPTIONS, 0, stop)
    with (tmp_path / ".packed.journal").open("ab") as journal:
        journal.write(tail)
    pack(table, target, OPTIONS, 0)
    assert target.read_bytes() == whole


def test_an_image_that_changed_since_the_kill_is_packed_anew_though_its_size_is_the_same(
    table: FolderTable, tmp_path: Path
) -> None:
    files = [tmp_path / "pets/cat" / name for name in ("00.png", "01.png")]
    for file, grey in zip(files, (10, 200), strict=True):
        Image.new("L", (30, 30), grey).save(file, compress_level=0)
    table = find_images(tmp_path / "pets").table()

    def stop(done: int, total: int) -> None:
        if done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(table, tmp_path / "packed", OPTIONS, 0, stop)
    first, second = (file.read_bytes() for file in files)
    assert len(first) == len(second)
    files[0].write_bytes(second)
    pack(table, tmp_path / "packed", OPTIONS, 0)
    pack(table, tmp_path / "whole", OPTIONS, 0)
    assert (tmp_path / "packed").read_bytes() == (tmp_path / "whole").read_bytes()


def test_images_that_were_packed_are_not_encoded_again(
    table: FolderTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "packed"

    def stop(done: int, total: int) -> None:
        if done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(table, target, OPTIONS, 0, stop)
    done: list[int] = []
    pack(table, target, OPTIONS, 0, lambda number, _: done.append(number))
    assert done[0] == 31
