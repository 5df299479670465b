"""Damage a folder of a model or a run: commands give the same answer, or say why they can't."""

import os
import random
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from densekd.config.schema import resolve
from densekd.runs.run import run_folder

from chaos.damage import damage_file, damage_folder
from chaos.forked import Ended
from chaos.verdict import Defect, differences, find_defect, snapshot
from chaos.workshop import RUN, densekd, run_command, sandbox

# Times, and the size on disk, which changes with the damage.
_PASSING = re.compile(r'"(bytes|seconds)": [\d.e-]+|on disk .*')
# What nothing reads again, and lines whose end may be gone, as a kill leaves them.
_UNCHECKED = ("steps.csv", "epochs.jsonl")


@dataclass(frozen=True)
class Subject:
    """A folder to damage, commands that only read it, and commands that may change it."""

    folder: str
    needs: tuple[str, ...]
    reads: tuple[tuple[str, ...], ...]
    writes: tuple[tuple[str, ...], ...]
    goes_on: tuple[str, ...]  # what one does with a folder that was repaired
    makes: tuple[str, ...] = ()  # patterns of files that this ends with


def _model(name: str, *options: str) -> Subject:
    return Subject(
        name,
        (name, "photos", "blue.png"),
        (
            ("predict", name, "blue.png", "--json"),
            ("predict", name, "blue.png", "--json", "--step", "0"),
            ("info", name, "--json"),
            ("history", name, "--json"),
            ("check", name),
            ("learn", name, "photos/third", "--dry-run", "--quiet", "--json", *options),
        ),
        (
            ("check", name, "--repair"),
            ("learn", name, "photos/third", "--quiet", *options),
            ("undo", name),
            ("rename", name, "red", "crimson"),
        ),
        ("predict", name, "blue.png", "--json"),
    )


def _run(out: str, *makes: str) -> Subject:
    folder = str(run_folder(resolve(tomllib.loads(RUN)), Path(out)))
    base = f"{out}/bases/*"
    return Subject(
        out,
        (out, "run.toml"),
        (("compare", out), ("check", folder), ("check", base)),
        (run_command(out), ("check", folder, "--repair"), ("check", base, "--repair")),
        run_command(out),
        ("*/result.json", *makes),
    )


SUBJECTS = (
    _model("frozen"),
    _model("trained", "--epochs", "2"),
    _run("runs"),
    _run("early", "*/learner/*"),
    _run("halfway", "*/learner/*"),
)


class DamagedFolder(NamedTuple):
    """A copy of a subject in which something is damaged."""

    subject: Subject
    copy: Path  # where it is
    intact: dict[str, Any]  # what was in it
    target: str  # the file or folder that is damaged
    forged: bool  # whether the checksums are right

    def now(self) -> dict[str, Any]:
        """What is in it now."""
        return snapshot(self.copy / self.subject.folder)

    @property
    def path(self) -> Path:
        """The file or folder that is damaged."""
        return self.copy / self.subject.folder / self.target


class DamageTrial:
    """Damages folders of a workshop; remembers what commands say about intact ones."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._answers: dict[tuple[str, ...], Ended] = {}
        self._made: dict[str, dict[str, Any]] = {}

    def case(self, draw: random.Random) -> tuple[str, list[Defect], int]:
        """Damage a folder: what was done, the defects, and that it was one."""
        subject = draw.choice(SUBJECTS)
        with sandbox(self.place, *subject.needs) as copy:
            folder = copy / subject.folder
            intact, target = snapshot(folder), draw.choice(_targets(folder))
            if target.is_dir():
                way, forged = damage_folder(target, draw), False
            else:
                way, forged = damage_file(target, draw)
            name = str(target.relative_to(folder))
            damaged = DamagedFolder(subject, copy, intact, name, forged)
            commands = draw.sample(subject.reads, min(3, len(subject.reads)))
            defects = list(self._read(damaged, commands))
            if draw.random() < 0.4:
                command = draw.choice(subject.writes)
                way = f"{way}, then {command[0]} {command[-1]}"
                defects += self._write(damaged, command)
        return f"{subject.folder}/{name}: {way}", defects, 1

    def _read(
        self, damaged: DamagedFolder, commands: Sequence[tuple[str, ...]]
    ) -> Iterator[Defect]:
        """Read it: the same answer, an error or a warning, and nothing is changed."""
        before = damaged.now()
        for command in commands:
            ended, expected = _densekd(damaged.copy, command), self._expected(damaged, command)
            defect = find_defect(ended)
            if defect is not None:
                yield Defect(defect.kind, f"{' '.join(command)}: {defect.what}")
            elif ended.asked_network:
                yield Defect("network", " ".join(command))
            elif not damaged.forged and (
                calls_intact(damaged, command, ended, expected)
                if command[0] == "check"
                else differs_silently(ended, expected)
            ):
                yield Defect("silent difference", f"{' '.join(command)}: {ended.stdout[-500:]}")
        changed = differences(before, damaged.now())
        if changed:
            yield Defect("lost state", f"reading changed {changed}")

    def _expected(self, damaged: DamagedFolder, command: tuple[str, ...]) -> Ended:
        """How a command ends for the intact folder."""
        if command not in self._answers:
            with sandbox(self.place, *damaged.subject.needs) as copy:
                self._answers[command] = _densekd(copy, command)
        return self._answers[command]

    def _write(self, damaged: DamagedFolder, command: tuple[str, ...]) -> Iterator[Defect]:
        """Change it: nothing intact may be overwritten or removed, and no result become another."""
        ended = _densekd(damaged.copy, command)
        defect = find_defect(ended)
        if defect is not None:
            yield Defect(defect.kind, f"{' '.join(command)}: {defect.what}")
            return
        repaired = command[-1] == "--repair"
        lost = _lost(damaged, "" if repaired else "steps")
        if lost:
            yield Defect("lost state", f"{' '.join(command)} lost {', '.join(lost)}")
        if repaired:
            yield from self._go_on(damaged)
        elif ended.code == 0 and command == damaged.subject.goes_on:
            yield from self._compare_made(damaged)

    def _go_on(self, damaged: DamagedFolder) -> Iterator[Defect]:
        """Use a folder that was repaired: it answers as an intact one did, or is refused."""
        command = damaged.subject.goes_on
        ended = _densekd(damaged.copy, command)
        defect = find_defect(ended)
        if defect is not None:
            yield Defect(defect.kind, f"repaired, {' '.join(command)}: {defect.what}")
        elif ended.code == 0 and damaged.subject.makes:
            yield from self._compare_made(damaged)
        elif ended.code == 0 and not damaged.forged:
            reads = [read for read in damaged.subject.reads if read[0] == command[0]]
            answers = [self._expected(damaged, read) for read in reads]
            if all(differs_silently(ended, answer) for answer in answers):
                yield Defect("silent difference", f"repaired, {' '.join(command)}: {ended.stdout}")

    def _compare_made(self, damaged: DamagedFolder) -> Iterator[Defect]:
        """Compare what a run ended with to what it makes in an intact folder."""
        subject, now = damaged.subject, damaged.now()
        if subject.folder not in self._made:
            with sandbox(self.place, *subject.needs) as copy:
                ended = _densekd(copy, subject.goes_on)
                if ended.code != 0:
                    raise RuntimeError(f"{subject.goes_on} failed: {ended.stderr}{ended.crash}")
                found = snapshot(copy / subject.folder).items()
            made = {k: v for k, v in found if any(fnmatch(k, x) for x in subject.makes)}
            self._made[subject.folder] = made
        made = self._made[subject.folder]
        different = differences(made, {name: now.get(name) for name in made})
        if different and not damaged.forged:
            yield Defect("silent difference", f"{' '.join(subject.goes_on)}: {different}")


def _densekd(folder: Path, command: tuple[str, ...]) -> Ended:
    """Run a command; as a shell does, put the name of a folder in the place of ``*``."""
    names = (next((str(x.relative_to(folder)) for x in folder.glob(a)), a) for a in command)
    return densekd(folder, *(n if "*" in a else a for a, n in zip(command, names, strict=True)))


def _lost(damaged: DamagedFolder, part: str) -> list[str]:
    """The files in a part of a folder that were intact, and whose content is nowhere in it now."""
    kept = list(damaged.now().values())
    # To forge a part of a state changes the other parts, too.
    gone = str(Path(damaged.target).parent) if damaged.forged else damaged.target
    own = {k: v for k, v in damaged.intact.items() if k.startswith(part) and k != "current.json"}
    return [k for k, v in own.items() if not k.startswith(gone) and v not in kept]


def _targets(folder: Path) -> list[Path]:
    """All files and folders in a folder but locks and TensorBoard's."""
    files = [path for path in sorted(folder.rglob("*")) if "tensorboard" not in str(path)]
    return [path for path in files if path.name != "lock" and path.suffix != ".lock"]


def differs_silently(ended: Ended, expected: Ended) -> bool:
    """Whether a command succeeded with another answer, and without a word about it."""
    if ended.code != 0 or ended.stderr != expected.stderr:
        return False
    return _PASSING.sub("", ended.stdout) != _PASSING.sub("", expected.stdout)


def calls_intact(
    damaged: DamagedFolder, command: tuple[str, ...], ended: Ended, expected: Ended
) -> bool:
    """Whether `check` says nothing of what is damaged in the folder that it read."""
    checked, read = Path(damaged.subject.folder, damaged.target).parts, Path(command[1]).parts
    inside = len(checked) >= len(read) and all(map(fnmatch, checked, read))
    if not inside or damaged.path.name in _UNCHECKED or ended.code != 0:
        return False
    # What is gone can't be told from what was never there, but it isn't counted as intact.
    inner = [v for k, v in damaged.intact.items() if f"{k}/".startswith(f"{damaged.target}/")]
    if all(content == "no file" for content in inner):
        return False  # it was an empty folder
    gone = not os.path.lexists(damaged.path)
    empty = damaged.path.is_dir() and not any(damaged.path.iterdir())
    return ended.stdout == expected.stdout if gone or empty else True
