"""Damage a folder of a model or a run: commands give the same answer, or say why they can't."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chaos.damage import damage_file, damage_folder
from chaos.forked import Ended
from chaos.verdict import Defect, differences, find_defect, snapshot
from chaos.workshop import densekd, sandbox

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


_RUN = ("run", "--config", "run.toml", "--out", "runs", "--quiet")
SUBJECTS = (
    _model("frozen"),
    _model("trained", "--epochs", "2"),
    Subject("runs", ("runs", "run.toml"), (("compare", "runs"),), (_RUN,)),
)


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
            name = str(target.relative_to(copy))
            if target.is_dir():
                way, forged = damage_folder(target, draw), False
            else:
                way, forged = damage_file(target, draw)
            defects = list(self._read(subject, copy, draw, forged))
            if draw.random() < 0.3:
                command = draw.choice(subject.writes)
                defects += self._write(subject, copy, command, intact, target)
        return f"{name}: {way}", defects, 1

    def _read(
        self, subject: Subject, copy: Path, draw: random.Random, forged: bool
    ) -> Iterator[Defect]:
        before = snapshot(copy / subject.folder)
        for command in draw.sample(subject.reads, min(3, len(subject.reads))):
            ended, expected = densekd(copy, *command), self._expected(subject, command)
            defect = find_defect(ended)
            if defect is not None:
                yield Defect(defect.kind, f"{' '.join(command)}: {defect.what}")
            elif ended.asked_network:
                yield Defect("network", " ".join(command))
            elif not forged and differs_silently(ended, expected):
                what = f"{' '.join(command)}: {ended.stdout[-500:]}"
                yield Defect("silent difference", what)
        changed = differences(before, snapshot(copy / subject.folder))
        if changed:
            yield Defect("lost state", f"reading changed {changed}")

    def _expected(self, subject: Subject, command: tuple[str, ...]) -> Ended:
        """How a command ends for the intact folder."""
        if command not in self._answers:
            with sandbox(self.place, *subject.needs) as copy:
                self._answers[command] = densekd(copy, *command)
        return self._answers[command]

    def _write(
        self,
        subject: Subject,
        copy: Path,
        command: tuple[str, ...],
        intact: dict[str, object],
        target: Path,
    ) -> Iterator[Defect]:
        """Change the damaged folder: no intact state may be overwritten or removed."""
        defect = find_defect(densekd(copy, *command))
        if defect is not None:
            yield Defect(defect.kind, f"{' '.join(command)}: {defect.what}")
            return
        damaged = str(target.relative_to(copy / subject.folder))
        kept = [content for name, content in snapshot(copy / subject.folder).items()]
        lost = [
            name
            for name, content in intact.items()
            if name.startswith("steps") and not name.startswith(damaged) and content not in kept
        ]
        # The parts of a state belong together: a forged part is replaced as a whole.
        lost = [name for name in lost if Path(name).parent != Path(damaged).parent]
        if lost:
            yield Defect("lost state", f"{' '.join(command)} lost {', '.join(lost)}")


def _targets(folder: Path) -> list[Path]:
    """All files of a folder but locks and TensorBoard's, and some of its folders."""
    files = [path for path in sorted(folder.rglob("*")) if "tensorboard" not in str(path)]
    return [path for path in files if path.name != "lock" and path.suffix != ".lock"]


def differs_silently(ended: Ended, expected: Ended) -> bool:
    """Whether a command succeeded with another answer, and without a word about it."""
    if ended.code != 0 or ended.stderr != expected.stderr:
        return False
    return _PASSING.sub("", ended.stdout) != _PASSING.sub("", expected.stdout)
