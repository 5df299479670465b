"""Kill a command at one of its changes to files, or at some moment; repeating it must finish it."""

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from chaos.forked import FileOperations
from chaos.verdict import Defect, differences, find_defect, snapshot
from chaos.workshop import densekd, run_command, sandbox

_MOST_KILLS = 3  # one after the other, before the command is let finish


@dataclass(frozen=True)
class Deed:
    """A command that changes files, and what it needs."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...]
    changes: str  # the folder that it changes
    reads: tuple[str, ...]  # a command that reads this folder
    weight: int  # how often it is tried: what takes long is tried less
    repeatable: bool = True  # whether it says nothing of its own if it was done already
    erases: bool = False  # whether it may take something away


_PREDICT = ("blue.png", "--json")
_PHOTOS = ("photos", "blue.png")
DEEDS = (
    Deed(
        "learn, frozen backbone",
        ("learn", "frozen", "photos/third", "--quiet"),
        ("frozen", *_PHOTOS),
        "frozen",
        ("predict", "frozen", *_PREDICT),
        6,
    ),
    Deed(
        "learn, trained network",
        ("learn", "trained", "photos/third", "--quiet", "--epochs", "2"),
        ("trained", *_PHOTOS),
        "trained",
        ("predict", "trained", *_PREDICT),
        6,
    ),
    Deed(
        "learn, a new model",
        ("learn", "new", "photos/first", "--quiet"),
        _PHOTOS,
        "new",
        ("predict", "new", *_PREDICT),
        2,
    ),
    Deed(
        "learn --finetune",
        ("learn", "frozen", "--finetune", "--quiet"),
        ("frozen", "blue.png"),
        "frozen",
        ("predict", "frozen", *_PREDICT),
        1,
    ),
    Deed(
        "forget --everywhere",
        ("forget", "frozen", "red", "--everywhere", "--yes"),
        ("frozen", "blue.png"),
        "frozen",
        ("predict", "frozen", *_PREDICT),
        4,
        repeatable=False,
        erases=True,
    ),
    Deed(
        "rename",
        ("rename", "frozen", "red", "crimson"),
        ("frozen", "blue.png"),
        "frozen",
        ("predict", "frozen", *_PREDICT),
        2,
        repeatable=False,
    ),
    Deed(
        "undo",
        ("undo", "frozen", "--to", "0"),
        ("frozen", "blue.png"),
        "frozen",
        ("predict", "frozen", *_PREDICT),
        1,
    ),
    Deed(
        "data pack",
        ("data", "pack", "folder:photos/first", "photos/first.packed", "--workers", "1"),
        ("photos",),
        "photos",
        ("data", "check", "packed:photos/first.packed"),
        2,
    ),
    Deed("run", run_command("runs"), ("run.toml",), "runs", ("compare", "runs"), 6),
    Deed(
        "sweep",
        ("sweep", "seeds.toml", "--out", "runs", "--workers", "1", "--quiet"),
        ("seeds.toml",),
        "runs",
        ("compare", "runs"),
        1,
    ),
)


class Undisturbed(NamedTuple):
    """What a deed does if nothing happens to it."""

    before: dict[str, Any]
    after: dict[str, Any]
    answers: tuple[tuple[int | None, str], ...]  # of the reading command, before and after
    operations: int
    seconds: float


class KillTrial:
    """Kills deeds in a workshop; remembers what each does undisturbed."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._known: dict[str, Undisturbed] = {}

    def case(self, draw: random.Random) -> tuple[str, list[Defect], int]:
        """Kill a deed up to three times, then let it finish: its name, defects, and kills."""
        deed = draw.choices(DEEDS, [each.weight for each in DEEDS])[0]
        expected = self._undisturbed(deed)
        name, defects, kills = deed.name, list[Defect](), 0
        with sandbox(self.place, *deed.needs) as copy:
            for _ in range(draw.randint(1, _MOST_KILLS)):
                moment, killed = self._kill(deed, copy, expected, draw)
                name += moment
                kills += killed
                defects += self._read(deed, copy, expected)
            defects += self._finish(deed, copy, expected)
        return name, defects, kills

    def _undisturbed(self, deed: Deed) -> Undisturbed:
        if deed.name not in self._known:
            with sandbox(self.place, *deed.needs) as copy:
                folder = copy / deed.changes
                before, answer = snapshot(folder), densekd(copy, *deed.reads)
                operations, began = FileOperations(copy), time.monotonic()
                ended = densekd(copy, *deed.command, operations=operations)
                seconds = time.monotonic() - began
                if ended.code != 0:
                    raise RuntimeError(f"{deed.name} failed: {ended.stderr}{ended.crash}")
                later = densekd(copy, *deed.reads)
                answers = ((answer.code, answer.stdout), (later.code, later.stdout))
                after = snapshot(folder)
            self._known[deed.name] = Undisturbed(before, after, answers, operations.count, seconds)
        return self._known[deed.name]

    def _kill(
        self, deed: Deed, copy: Path, expected: Undisturbed, draw: random.Random
    ) -> tuple[str, bool]:
        """Kill it at one of its operations, or after a while; say when, and whether it was."""
        if draw.random() < 0.75:
            number = draw.randint(1, expected.operations)
            operations = FileOperations(copy, number)
            ended = densekd(copy, *deed.command, operations=operations)
            moment = f", killed at operation {number} of {expected.operations}"
        else:
            delay = draw.uniform(0, expected.seconds)
            ended = densekd(copy, *deed.command, delay=delay)
            moment = f", killed after {delay:.2f} of {expected.seconds:.2f} s"
        return moment, ended.code is not None and ended.code < 0

    def _read(self, deed: Deed, copy: Path, expected: Undisturbed) -> list[Defect]:
        """Read what a kill left: it is as before the deed or as after it, and nothing is gone."""
        ended, found = densekd(copy, *deed.reads), list[Defect]()
        defect = find_defect(ended)
        if defect is not None:
            return [defect]
        answer = (ended.code, ended.stdout)
        if ended.code == 0 and answer not in expected.answers and deed.changes != "runs":
            found.append(Defect("silent difference", f"{deed.reads} after a kill: {ended.stdout}"))
        if ended.code != 0 and expected.answers[0][0] == 0:
            found.append(Defect("lost state", f"{deed.reads} after a kill: {ended.stderr}"))
        now = snapshot(copy / deed.changes)
        steps = {k: v for k, v in expected.before.items() if k.startswith("steps")}
        gone = differences(steps, {name: now.get(name) for name in steps})
        if gone and not deed.erases:
            found.append(Defect("lost state", gone))
        return found

    def _finish(self, deed: Deed, copy: Path, expected: Undisturbed) -> list[Defect]:
        """Repeat the deed: it ends as if nothing had happened, with no leftover."""
        ended = densekd(copy, *deed.command)
        defect = find_defect(ended)
        if defect is not None:
            return [defect]
        if ended.code != 0 and (deed.repeatable or ended.code != 2):
            return [Defect("lost state", f"repeated, it exits with {ended.code}: {ended.stderr}")]
        different = differences(expected.after, snapshot(copy / deed.changes))
        return [Defect("silent difference", f"repeated: {different}")] if different else []
