"""Damage a folder of a model or a run: commands give the same answer, or say why they can't."""

import random
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from densekd.config.schema import resolve
from densekd.runs.run import run_folder

from chaos.damage import damage_file, damage_folder
from chaos.forked import Ended
from chaos.verdict import Defect, differences, find_defect, snapshot
from chaos.workshop import RUN, densekd, sandbox

# Times, and the size on disk, which changes with the damage.
_PASSING = re.compile(r'"(bytes|seconds)": [\d.e-]+|on disk .*')


@dataclass(frozen=True)
class Subject:
    """A folder to damage, commands that only read it, and commands that may change it."""

    folder: str
    needs: tuple[str, ...]
    reads: tuple[tuple[str, ...], ...]
    writes: tuple[tuple[str, ...], ...]


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
    )


_FOLDER = str(run_folder(resolve(tomllib.loads(RUN)), Path("runs")))
_RUN = ("run", "--config", "run.toml", "--out", "runs", "--quiet")
SUBJECTS = (
    _model("frozen"),
    _model("trained", "--epochs", "2"),
    Subject("runs", ("runs", "run.toml"), (("compare", "runs"), ("check", _FOLDER)), (_RUN,)),
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


class DamageTrial:
    """Damages folders of a workshop; remembers what commands say about intact ones."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._answers: dict[tuple[str, ...], Ended] = {}

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
            if draw.random() < 0.3:
                defects += _write(damaged, draw.choice(subject.writes))
        return f"{subject.folder}/{name}: {way}", defects, 1

    def _read(
        self, damaged: DamagedFolder, commands: Sequence[tuple[str, ...]]
    ) -> Iterator[Defect]:
        """Read it: the same answer, an error or a warning, and nothing is changed."""
        before = damaged.now()
        for command in commands:
            ended, expected = densekd(damaged.copy, *command), self._expected(damaged, command)
            defect = find_defect(ended)
            if defect is not None:
                yield Defect(defect.kind, f"{' '.join(command)}: {defect.what}")
            elif ended.asked_network:
                yield Defect("network", " ".join(command))
            # `check` counts what is intact, so it says something else by right.
            elif not damaged.forged and command[0] != "check" and differs_silently(ended, expected):
                yield Defect("silent difference", f"{' '.join(command)}: {ended.stdout[-500:]}")
        changed = differences(before, damaged.now())
        if changed:
            yield Defect("lost state", f"reading changed {changed}")

    def _expected(self, damaged: DamagedFolder, command: tuple[str, ...]) -> Ended:
        """How a command ends for the intact folder."""
        if command not in self._answers:
            with sandbox(self.place, *damaged.subject.needs) as copy:
                self._answers[command] = densekd(copy, *command)
        return self._answers[command]


def _write(damaged: DamagedFolder, command: tuple[str, ...]) -> Iterator[Defect]:
    """Change it: no intact state may be overwritten or removed, and no result become another."""
    ended = densekd(damaged.copy, *command)
    defect = find_defect(ended)
    if defect is not None:
        yield Defect(defect.kind, f"{' '.join(command)}: {defect.what}")
        return
    now = damaged.now()
    kept = list(now.values())
    # To forge a part of a state changes the other parts, too.
    gone = str(Path(damaged.target).parent) if damaged.forged else damaged.target
    steps = {k: v for k, v in damaged.intact.items() if k.startswith("steps")}
    lost = [k for k, v in steps.items() if not k.startswith(gone) and v not in kept]
    if lost:
        yield Defect("lost state", f"{' '.join(command)} lost {', '.join(lost)}")
    results = {k: v for k, v in damaged.intact.items() if k.endswith("result.json")}
    if not damaged.forged and ended.code == 0 and any(now.get(k) != results[k] for k in results):
        yield Defect("silent difference", f"{' '.join(command)} ends with another result")


def _targets(folder: Path) -> list[Path]:
    """All files and folders in a folder but locks and TensorBoard's."""
    files = [path for path in sorted(folder.rglob("*")) if "tensorboard" not in str(path)]
    return [path for path in files if path.name != "lock" and path.suffix != ".lock"]


def differs_silently(ended: Ended, expected: Ended) -> bool:
    """Whether a command succeeded with another answer, and without a word about it."""
    if ended.code != 0 or ended.stderr != expected.stderr:
        return False
    return _PASSING.sub("", ended.stdout) != _PASSING.sub("", expected.stdout)
