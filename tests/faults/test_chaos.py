"""The trial of `make chaos`: a few of its cases, and that it finds what it looks for."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import pytest

from densekd.files import write_atomically, write_sealed_json

from chaos.command_lines import COMMANDS, bad_arguments
from chaos.damage import damage_file, damage_folder
from chaos.damages import SUBJECTS, DamagedFolder, calls_intact, differs_silently
from chaos.forked import Ended, FileOperations, run_forked
from chaos.verdict import differences, find_call_defect, find_defect, snapshot

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_few_cases() -> None:
    command = [sys.executable, "-m", "chaos", "--share", "0.01", "--workers", "1", "--verbose"]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "     5 bad command lines" in done.stdout


def failing() -> None:
    raise KeyError("unforeseen")


def test_a_traceback_is_found(tmp_path: Path) -> None:
    ended = run_forked(failing, tmp_path)
    for defect in (find_defect(ended), find_call_defect(ended)):
        assert defect is not None
        assert defect.kind == "traceback"
        assert "unforeseen" in defect.what


def test_a_hang_is_found_and_ended(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    ended = run_forked(lambda: Path("pipe").read_bytes(), tmp_path, limit=0.3)
    defect = find_defect(ended)
    assert defect is not None
    assert defect.kind == "hang"
    busy = run_forked(lambda: deque(iter(int, 1), maxlen=0), tmp_path, limit=0.3)
    assert busy.code is None


def test_an_exit_without_a_sentence_is_found() -> None:
    assert find_defect(Ended(2, "", "Error: no such model.\n", "", False)) is None
    for code, text in ((2, ""), (2, "Error: one\ntwo\n"), (-11, ""), (3, "Error: x.\n")):
        assert find_defect(Ended(code, "", text, "", False)) is not None


def test_the_errors_that_a_call_may_raise(tmp_path: Path) -> None:
    def refusing() -> None:
        raise ValueError("epochs must be at least 1, not 0.")

    assert find_call_defect(run_forked(refusing, tmp_path)) is None


def test_the_network_is_cut_off(tmp_path: Path) -> None:
    def asking() -> None:
        import socket

        socket.create_connection(("192.0.2.1", 80))

    ended = run_forked(asking, tmp_path)
    assert ended.asked_network
    assert "unreachable" in ended.crash


def write_three(folder: Path) -> None:
    for number in range(3):
        write_atomically(folder / f"{number}", "text")


def test_a_kill_at_each_operation(tmp_path: Path) -> None:
    place = tmp_path / "whole"
    place.mkdir()
    whole = FileOperations(place)
    assert run_forked(lambda: write_three(place), place, whole).code == 0
    # Of each file: makes the folder, opens it, syncs and renames, and syncs the folder.
    assert whole.count >= 3 * 4
    left = set()
    for number in range(1, whole.count + 1):
        place = tmp_path / str(number)
        place.mkdir()
        operations = FileOperations(place, number)
        ended = run_forked(lambda place=place: write_three(place), place, operations)  # type: ignore[misc]
        assert ended.code == -signal.SIGKILL
        left.add(len([*place.glob("[0-9]")]))
    assert left == {0, 1, 2, 3}


def test_a_kill_after_a_while(tmp_path: Path) -> None:
    ended = run_forked(lambda: time.sleep(60), tmp_path, delay=0.05)
    assert ended.code == -signal.SIGKILL


def test_snapshots_tell_changes_from_times(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_sealed_json(file, {"value": 1, "seconds": 2.0})
    before = snapshot(tmp_path)
    write_sealed_json(file, {"value": 1, "seconds": 3.0})
    assert differences(before, snapshot(tmp_path)) == ""
    write_sealed_json(file, {"value": 2, "seconds": 3.0})
    (tmp_path / "pending").mkdir()
    assert differences(before, snapshot(tmp_path)) == "a.json differs, pending appeared"


def test_a_silent_difference_is_found() -> None:
    intact = Ended(0, "cat", "", "", False)
    assert differs_silently(Ended(0, "dog", "", "", False), intact)
    assert not differs_silently(Ended(0, "dog", "Warning: step 0 is used.\n", "", False), intact)
    assert not differs_silently(Ended(2, "", "Error: damaged.\n", "", False), intact)


def test_damage_that_a_check_calls_intact_is_found(tmp_path: Path) -> None:
    run, (command, *_) = SUBJECTS[2], [x for x in SUBJECTS[2].reads if x[0] == "check"]
    folder = tmp_path / command[1]
    folder.mkdir(parents=True)
    name = f"{folder.name}/config.toml"
    damaged = DamagedFolder(run, tmp_path, {name: "content"}, name, False)
    intact, fewer = Ended(0, "2 intact", "", "", False), Ended(0, "1 intact", "", "", False)
    assert calls_intact(damaged, command, intact, intact)
    assert not calls_intact(damaged, command, fewer, intact)  # it is gone, and not counted
    (folder / "config.toml").touch()
    assert calls_intact(damaged, command, fewer, intact)
    assert not calls_intact(damaged, command, Ended(1, "config.toml", "", "", False), intact)
    assert not calls_intact(damaged, ("check", "runs/bases/*"), intact, intact)


def test_every_command_gets_bad_values() -> None:
    draw = random.Random(0)
    lines = {name: {bad_arguments(name, draw) for _ in range(20)} for name in COMMANDS}
    assert {"learn", "check", "config show", "data list"} <= lines.keys()
    assert all(len(each) > 4 for each in lines.values())


def test_every_damage_changes_the_file(tmp_path: Path) -> None:
    draw, found = random.Random(0), set[str]()
    for number in range(200):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in ("a.json", "b.json"):
            write_sealed_json(folder / name, {"name": name, "values": [1, 2, 3]})
        file = folder / "a.json"
        before = file.read_bytes()
        way, _ = damage_file(file, draw)
        found.add(way)
        assert file.is_symlink() or not file.is_file() or file.read_bytes() != before, way
    assert len(found) == 13
    for number in range(200, 220):
        (tmp_path / str(number) / "inner").mkdir(parents=True)
        (tmp_path / str(number) / "inner" / "file").write_text("text")
        intact = snapshot(tmp_path / str(number))
        damage_folder(tmp_path / str(number) / "inner", draw)
        assert differences(intact, snapshot(tmp_path / str(number)))
