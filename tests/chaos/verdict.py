"""What counts as a defect, and what a folder contains."""

import csv
import io
import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

from chaos.forked import CRASHED, LIMIT, Ended

DefectKind = Literal["traceback", "hang", "lost state", "silent difference", "network"]
# What depends on the clock, or follows from it.
_PASSING = {"when", "seconds", "images_per_second", "sha256", "bytes", "minutes"}
_ASIDE = re.compile(r"set-aside/[^/]+")


class Defect(NamedTuple):
    """Something that must not happen."""

    kind: DefectKind
    what: str


def find_defect(ended: Ended) -> Defect | None:
    """What is wrong with the end of a command: it succeeds, or says why not in a sentence."""
    if ended.code is None:
        return Defect("hang", f"over {LIMIT:.0f} s; {ended.stderr[-300:]}")
    if ended.crash or "Traceback (most recent call last)" in ended.stderr + ended.stdout:
        return Defect("traceback", (ended.crash or ended.stderr)[-1500:])
    if ended.code not in (0, 1, 2):
        return Defect("traceback", f"exit code {ended.code}; {_report(ended.stderr)}")
    if ended.code == 2 and not _is_explained(ended.stderr):
        return Defect("traceback", f"exit code 2 without a sentence: {ended.stderr[-1000:]}")
    return None


def _report(stderr: str) -> str:
    """What a command said about an error that nobody foresaw, with the traceback it wrote down."""
    found = re.search(r"The report is (\S+)\.\n", stderr)
    if found is None or not Path(found[1]).is_file():
        return stderr[-1000:]
    text = Path(found[1]).read_text("utf-8")
    Path(found[1]).unlink()
    return text[-1500:]


def _is_explained(stderr: str) -> bool:
    """Whether the last line is an error of one sentence, or the command line is explained."""
    lines = stderr.rstrip("\n").split("\n")
    return "Usage: " in stderr or lines[-1].startswith("Error: ")


def find_call_defect(ended: Ended) -> Defect | None:
    """What is wrong with the end of a Python call: it returns, or raises a suitable error."""
    if ended.code is None:
        return Defect("hang", f"over {LIMIT:.0f} s")
    if ended.code == CRASHED and not _SUITABLE.match(ended.crash.strip().rpartition("\n")[2]):
        return Defect("traceback", ended.crash[-1500:])
    if ended.code not in (0, CRASHED):
        return Defect("traceback", f"exit code {ended.code}; {ended.stderr[-1000:]}")
    return None


_SUITABLE = re.compile(
    r"(ValueError|TypeError|FileNotFoundError|NotADirectoryError|IsADirectoryError|PermissionError"
    r"|FileExistsError|OSError|densekd\.\w+(\.\w+)*\.\w+|sklearn\.exceptions\.NotFittedError)\b"
)


def snapshot(folder: Path) -> dict[str, Any]:
    """The content of all files in a folder but locks and TensorBoard's, without times."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = _ASIDE.sub("set-aside/TIME", str(path.relative_to(folder)))
        if path.name in ("lock", ".lock") or path.suffix == ".lock" or "tensorboard" in name:
            continue
        if path.is_symlink() or not path.is_file():
            if path.is_symlink() or not path.is_dir() or not any(path.iterdir()):
                found[name] = "no file"
            continue
        found[name] = _content(path)
    return found


def _content(path: Path) -> Any:
    content = path.read_bytes()
    try:
        if path.suffix == ".json":
            return _lasting(json.loads(content))
        if path.suffix == ".jsonl":
            # A resumed run may repeat an epoch; the last line counts.
            lines = [_lasting(json.loads(line)) for line in content.splitlines()]
            return {line["step"]: line for line in lines}
        if path.suffix == ".csv":
            return [_lasting(row) for row in csv.DictReader(io.StringIO(content.decode()))]
    except (ValueError, RecursionError, TypeError, KeyError):
        pass
    return sha256(content).hexdigest()


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(item) for key, item in value.items() if key not in _PASSING}
    if isinstance(value, list):
        return [_lasting(item) for item in value]
    return value


def differences(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Which files differ between two snapshots, in words; empty if none does."""
    names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    words = [
        f"{name} {'appeared' if name not in one else 'is gone' if name not in other else 'differs'}"
        for name in names
    ]
    return ", ".join(words[:6])
