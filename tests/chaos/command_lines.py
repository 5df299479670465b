"""Command lines with bad values for the options and arguments of every command."""

import random
import shlex
from pathlib import Path
from typing import Any

import typer

from densekd.cli import app
from densekd.config.schema import as_tree, resolve
from densekd.config.settings_tree import flat

from chaos.verdict import Defect, differences, find_defect, snapshot
from chaos.workshop import TRAINED, add_traps, densekd, sandbox

_NUMBERS = (
    *("-1", "0", "-0.5", "0.5", "nan", "inf", "-inf", "1e30", "1e-30", "1e400", "1_0", "0x10"),
    *(str(10**20), "-" + "9" * 30, "9" * 5000, "1,5", "5%", "1000%", "1e", "٣"),
)
_TEXTS = (
    *("", " ", "x", "-", "--", "=", "a=b", "a.b=c", "none", "null", "true", "[]", "{}", '"'),
    *("\x1b[2J", "\n", "é", "\udcff", "💥", "%s%n", "$(id)", "../..", "a" * 5000, "[" * 2000),
    *("mine.py:nothing", "photos.py:", ":", "hf:no/such", "hub:no/such", "npz:", "folder:"),
    *("folder:photos/first", "npz:blue.png", "imagenet:.", "resnet2000000", "wrn-10-99999999"),
)
_PATHS = (
    *("missing", "/dev/zero", "/dev/null", "/dev/full", "pipe", "blue.png", "run.toml", "photos"),
    *(".", "/", "/proc/self/mem", "/proc/self/cmdline", "loop", "frozen/steps", "empty", "nested"),
    # A model for a run, a run for a model, formats of others, names that are too long or odd.
    *("frozen", "runs", "trained/current.json", "other.zip", "half.png", "odd", "n" * 300),
    *("/".join(["d" * 200] * 30), "seeds.toml", "blue.png/x", "missing/x/y"),
)
# What a command needs to begin its work, so that it gets to the value that is bad.
_BASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "learn": (
        ("frozen", "photos/third", "--quiet", "--dry-run"),
        ("new", "photos/first", "--quiet", "--dry-run", *TRAINED),
        ("frozen", "photos/third", "--quiet"),
        ("trained", "--finetune", "--quiet"),
    ),
    "predict": (("frozen", "blue.png"), ("trained", "photos/first")),
    "forget": (("frozen", "red"), ("frozen", "red", "--everywhere", "--yes")),
    "rename": (("frozen", "red", "crimson"),),
    "merge": (("frozen", "red", "green"),),
    "export": (("missing", "--to", "onnx"), ("trained", "--to", "torch")),
    # A model that isn't one: otherwise they would serve until they are stopped.
    "serve": (("blue.png",), ("missing",)),
    "ui": (("blue.png", "--no-browser"),),
    "run": (
        ("--config", "run.toml", "--out", "runs", "--quiet"),
        ("--config", "run.toml", "--out", "other", "--quiet", "-o", "training.base.epochs=1"),
    ),
    "config show": ((), ("--config", "run.toml")),
    "config check": (("run.toml",),),
    "sweep": (("seeds.toml", "--dry-run"), ("table4-distillations", "--dry-run")),
    "compare": (("runs",),),
    "report": (("missing",), ("runs", "--out", "page")),
    "flatness": (("runs",),),
    "compress": (("--data", "digits", "--quiet", "--method", "nothing"),),
    "data check": (("folder:photos/first",), ("digits",)),
    "data pack": (("folder:photos/first", "new.packed", "--workers", "1"),),
}
_MAY_WAIT = ("run", "sweep", "compress", "config show", "config check")
_MODEL_COMMANDS = ("info", "history", "undo", "check")


def _commands() -> dict[str, Any]:
    """All commands by name, such as ``config show``."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        if inner is None:
            found[name] = command
        else:
            found |= {f"{name} {each}": own for each, own in inner.items()}
    return found


COMMANDS = _commands()
_KEYS = tuple(flat(as_tree(resolve({}))))


class CommandLineTrial:
    """Tries bad command lines in a workshop."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def case(self, draw: random.Random) -> tuple[str, list[Defect], int]:
        """Try one: it ends in a sentence, or does something sensible, and loses nothing."""
        name = draw.choice(list(COMMANDS))
        line = (*name.split(), *bad_arguments(name, draw))
        tops = {argument.partition("/")[0] for argument in line}
        models = [each for each in ("frozen", "trained") if each in tops]
        runs = ["runs"] if "runs" in line else []
        needs = (*models, *runs, "photos", "blue.png", "run.toml", "seeds.toml")
        with sandbox(self.place, *needs) as copy:
            add_traps(copy)
            before = {each: snapshot(copy / each / "steps") for each in models}
            found = find_defect(densekd(copy, *line))
            defects = [] if found is None else [found]
            for each, steps in before.items():
                now = snapshot(copy / each / "steps")
                gone = differences(steps, {file: now.get(file) for file in steps})
                if gone and "--everywhere" not in line:
                    defects.append(Defect("lost state", gone))
        return shlex.join(["densekd", *line])[:400], defects, 1


def bad_arguments(name: str, draw: random.Random) -> tuple[str, ...]:
    """The arguments of a command, with bad values for one or two of them."""
    fallback = (("frozen",),) if name in _MODEL_COMMANDS else ((),)
    line = list(draw.choice(_BASES.get(name, fallback)))
    command, kinds = COMMANDS[name], draw.random()
    if kinds < 0.15 or not command.params:
        # With a model these would serve until they are stopped.
        first = 1 if name in ("serve", "ui") else 0
        line[draw.randint(first, len(line)) :] = [_bad_value("path", draw)]
    elif kinds < 0.25:
        line.append(draw.choice(["--no-such-option", "-x", _bad_value("text", draw)]))
    else:
        for _ in range(draw.choice([1, 1, 2])):
            line += _bad_option(draw.choice(command.params), draw)
    # A user may give settings by a pipe, as in `--config <(...)`, and waits for its writer.
    named = ("missing" if each == "pipe" and name in _MAY_WAIT else each for each in line)
    return tuple(each for each in named if "\0" not in each)


def _bad_option(parameter: Any, draw: random.Random) -> list[str]:
    kind = str(parameter.type_descriptor.annotation).lower()
    names = getattr(parameter, "opts", [])
    if parameter.param_type_name == "argument":
        return [_bad_value("path", draw)]
    if getattr(parameter, "is_flag", False):
        return [draw.choice(names)] * draw.choice([1, 2])
    if parameter.name == "override":
        value = draw.choice((*_NUMBERS, *_TEXTS))
        return [names[0], f"{draw.choice(_KEYS)}={value}"]
    number = "int" in kind or "float" in kind
    return [draw.choice(names), _bad_value("number" if number else kind, draw)]


def _bad_value(kind: str, draw: random.Random) -> str:
    """A value that is bad for a kind of parameter, most of the time."""
    pools = [_NUMBERS, _TEXTS, _PATHS]
    if kind == "number":
        pools = [_NUMBERS, _NUMBERS, _TEXTS]
    elif "path" in kind:
        pools = [_PATHS, _PATHS, _TEXTS]
    return draw.choice(draw.choice(pools))
