"""A part of one's own that is wrong ends in one sentence that names it, and the line.

Each case is a file whose ``part`` is wrong. It is used on the command line as ``mine.py:part``, and
in Python as a value of `densekd.run`.
"""

from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import densekd
from densekd.cli import app

pytestmark = pytest.mark.slow  # together they take half a minute

HEAD = """import torch
from torch import nn
from densekd import CrossEntropy, Features, Logger, Method, Phase, Schedules, Term
def method(kd, schedules):
    terms = {"ce": CrossEntropy(["merged"], "all"), "kd": kd}
    base, later = Phase("train", schedules.base), Phase("train", schedules.increment)
    return Method("m", "linear", terms, base=(base,), increment=(later,), streams="merged")
"""
AFTER = HEAD.count("\n")  # the line before the first of a case


class Case(NamedTuple):
    """A wrong part: how it is named, its code, and what the sentence says."""

    code: str
    says: str


METHODS = [
    Case("part = 3", "must be a Method, a MethodSpec, or a function"),
    Case("def part(): return 1", "takes no argument; it must take the schedules"),
    Case("def part(schedules): return schedules", "but gave Schedules"),
    Case("def part(schedules, alpha): return 1", "needs alpha: give method.params.alpha"),
    Case(
        "def part(schedules):\n    return 1 / 0", "can't be used: ZeroDivisionError in line +2 of"
    ),
    Case("def part(schedules):\n    import nowhere", "ModuleNotFoundError in line +2 of"),
    Case("def part(schedules):\n    return method(3, schedules)", "the term 'kd' must be a Term"),
    Case(
        "class T(Term):\n    def __init__(self): pass\n    def __call__(self, step): return 0\n"
        "def part(schedules): return method(T(), schedules)",
        "the term 'kd' has no streams; call super().__init__",
    ),
    Case(
        'def part(schedules): return Method("m", "linear", {}, base=Phase("a", schedules.base), '
        "increment=())",
        "base must be a tuple of phases",
    ),
    Case(
        'def part(schedules): return Method("m", "linear", [1], base=(), increment=())',
        "terms must be a mapping",
    ),
    Case('def part(schedules): return Phase("a", schedules.base, data="b")', "data='b' is not one"),
    Case('def part(schedules): return Phase("a", 3)', "schedule must be a Schedule"),
]
# The term of a method, as the body of its __call__.
TERMS = [
    Case("return 0.0", "The term 'kd' must return a scalar tensor of floats, not float"),
    Case("return torch.zeros(3)", "The term 'kd' must return a scalar tensor of floats, not shape"),
    Case("return torch.tensor(1)", "must return a scalar tensor of floats, not torch.int64"),
    Case("return torch.tensor(float('nan'))", "(the term 'kd') stopped being finite"),
    Case("return 1 / 0", "T.__call__ can't be used: ZeroDivisionError in line +3 of mine.py"),
    Case('return step.views["new"].labels', "T.__call__ can't be used: KeyError in line +3 of"),
    Case("return torch.ones(2) @ torch.ones(3)", "can't be used: RuntimeError in line +3 of"),
]
NETWORKS = [
    Case("part = 3", "A backbone must be an nn.Module, not int"),
    Case("def part(): return 3", "A backbone must be an nn.Module, not int"),
    Case("def part():\n    return nowhere", "can't be used: NameError in line +2 of mine.py"),
    Case("def part(n): return nn.Flatten()", "can't be used: TypeError"),
    Case("part = nn.Linear(3, 2)", "can't take images of 8 x 8 pixels (RuntimeError"),
    Case("def part(): return nn.Conv1d(3, 4, 3)", "can't take images of 8 x 8 pixels"),
    Case(
        "class part(nn.Module):\n    def forward(self, x):\n        return x.missing",
        "(AttributeError in line +3 of mine.py",
    ),
    Case(
        "class part(nn.Module):\n    def forward(self, x):\n        raise ValueError('bad')",
        "(ValueError in line +3 of mine.py: bad)",
    ),
    Case("class part(nn.Module):\n    def forward(self, x): return [x]", "not list"),
    Case("class part(nn.Module):\n    def forward(self, x): return x.mean()", "not []"),
    Case("class part(nn.Module):\n    def forward(self, x): return x.flatten()", "not [192]"),
    Case("class part(nn.Module):\n    def forward(self, x): return x.mean((2, 3)).int()", "int32"),
    Case(
        "class part(nn.Module):\n    width = 3\n    def forward(self, x): return x.mean((2, 3))",
        "must return densekd.Features, not Tensor",
    ),
    Case(
        "class part(nn.Module):\n    width = 5\n    def forward(self, x): "
        "return Features(x.mean((2, 3)), ())",
        "its width is 5, but it has 3",
    ),
]
DATA = [
    Case("part = 3", "must be a Dataset, a folder, arrays"),
    Case("def part(): return 1 / 0", "can't be used: ZeroDivisionError in line +1 of mine.py"),
    Case("def part(): return None", "must be a Dataset, a folder, arrays"),
    Case("def part(): return 'nowhere'", "nowhere"),
    Case("part = [torch.zeros(4, 3, 8, 8), [0, 1]] * 2", "4 images have 2 labels"),
    Case("part = [torch.zeros(4, 3, 8, 8), [0.5] * 4] * 2", "a name or a whole number, not 0.5"),
    Case("part = [torch.zeros(4, 5, 8, 8), [0, 1] * 2] * 2", "can't be used"),
    Case("part = [torch.zeros(4, 3, 8, 8) - 1, [0, 1] * 2] * 2", "from 0 to 1"),
    Case("part = [torch.zeros(4, 3, 8, 8).long(), [0, 1] * 2] * 2", "uint8 or floats"),
    Case("def part(): return [3, [0, 1], 3, [0, 1]]", "can't be used: TypeError"),
    Case(
        "class Data:\n    def __len__(self): return 4\n    def __getitem__(self, i):\n"
        "        return 1 / 0\npart = Data()",
        "can't be used: ZeroDivisionError in line +4 of mine.py",
    ),
    Case(
        "class Data:\n    def __len__(self): return 4\n    def __getitem__(self, i):\n"
        "        return i\npart = Data()",
        "item 0 is of type int; it must be a pair",
    ),
    Case(
        "part = [(torch.zeros(3, 8 + i % 2, 8), i % 2) for i in range(40)]",
        "images have different sizes",
    ),
]
ORDERS = [
    Case("part = object()", "must be a function of the class names"),
    Case("def part(): return []", "can't be used: TypeError"),
    Case("def part(names): return names[1:]", "The order lacks 1 of 10"),
    Case("def part(names): return 3", "can't be used: TypeError"),
    Case("def part(names): return range(3)", "must return all 10 class names"),
    Case("def part(names): return [0.5] * 10", "must return all 10 class names"),
    Case("def part(names):\n    return names.sort()", "AttributeError in line +2 of mine.py"),
    Case("def part(names): return ['zebra', *names]", "There is no class 'zebra'"),
]
# With few exemplars of digits: 5 classes in the base task.
SELECTIONS = [
    Case("part = 3", "must be a function that selects images"),
    Case("def part(features): return [0]", "can't be used: TypeError"),
    Case("def part(features, count): return 1 / 0", "can't be used: ZeroDivisionError in line +1"),
    Case("def part(features, count): return [0]", "must return 2 positions of"),
    Case("def part(features, count): return [0, 0]", "must return different positions"),
    Case("def part(features, count): return [0, -1]", "must return different positions"),
    Case("def part(features, count): return features", "but returned Tensor"),
    Case("def part(features, count): return 'all'", "but returned str"),
]
METRICS = [
    Case("part = 3", "must be a function of the outputs"),
    Case("def part(): return 0", "can't be used: TypeError"),
    Case("def part(outputs): return 1 / 0", "can't be used: ZeroDivisionError in line +1 of mine"),
    Case("def part(outputs): return outputs.logit", "AttributeError in line +1 of mine.py"),
    Case("def part(outputs): return 'high'", "must return a number, or numbers by name, not str"),
    Case("def part(outputs): return None", "must return a number, or numbers by name, not None"),
    Case("def part(outputs): return outputs.logits", "must return a number"),
    Case("def part(outputs): return {1: 2.0}", "must return a number"),
    Case("def part(outputs): return {'a': [1]}", "must return a number"),
    Case("def part(outputs): return float('nan')", "return a finite one"),
]
LOGGERS = [
    Case("part = 3", "must be a densekd.Logger, or a function or class that makes one, not int"),
    Case("def part(): return 1 / 0", "can't be used: ZeroDivisionError in line +1 of mine.py"),
    Case("class part(Logger):\n    def begin(self): pass", "logger part can't be used: TypeError"),
    Case(
        "class part(Logger):\n    def begin(self, run): return run.nothing",
        "The logger part can't be used: AttributeError in line +2 of mine.py",
    ),
]
FILES = [
    Case("def part(:", "mine.py can't be used: SyntaxError in line +1"),
    Case("raise RuntimeError('no')", "mine.py can't be used: RuntimeError in line +1"),
    Case("import nowhere", "mine.py can't be used: ModuleNotFoundError in line +1"),
    Case("raise SystemExit(3)", "mine.py can't be used: SystemExit in line +1"),
    Case("parts = 3", "mine.py has no part; did you mean parts?"),
    Case("\0", "mine.py can't be used"),
]
KEYS = {
    "--method": ("method.name", METHODS),
    "--network": ("network", NETWORKS),
    "--data": ("data.source", DATA),
    "--order": ("scenario.order", ORDERS),
    "--metric": ("metrics", METRICS),
    "--logger": ("loggers", LOGGERS),
}
BY_OPTION = [(option, case) for option, (_, cases) in KEYS.items() for case in cases]
SMALL = ["--epochs", "1", "--steps", "1", "--memory", "2", "--network", "resnet8", "--quiet"]
SMALL += ["-o", "data.per_class=8", "-o", "data.test_per_class=1"]


def write(code: str) -> None:
    Path("mine.py").write_text(f"{HEAD}{code}\n")


def expected(sentence: str) -> str:
    """A sentence with the number of a line in the whole file for one in the case."""
    before, plus, rest = sentence.partition("line +")
    return f"{before}line {AFTER + int(rest[0])}{rest[1:]}" if plus else sentence


def invoke(*arguments: str) -> str:
    """Run a command that fails, and return its sentence; with --debug, there is a traceback."""
    command = ["run", *SMALL, *arguments]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 2, found.output + repr(found.exception)
    assert found.stderr.startswith("Error: "), found.stderr
    assert found.stderr.count("\n") == 1, found.stderr
    assert "python:" not in found.stderr
    return found.stderr


def raised(**keywords: Any) -> str:
    small = {"epochs": 1, "steps": 1, "memory": 2, "network": "resnet8", "quiet": True}
    override = {"data.per_class": 8, "data.test_per_class": 1, **keywords.pop("override", {})}
    with pytest.raises(ValueError, match=r".") as caught:
        densekd.run(**{**small, **keywords}, override=override)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "python:" not in sentence
    return sentence


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def module() -> ModuleType:
    """The file as a module, as if the user had imported it."""
    made = ModuleType("mine")
    code = compile(Path("mine.py").read_text(), str(Path("mine.py").absolute()), "exec")
    exec(code, vars(made))
    return made


@pytest.mark.parametrize(("option", "case"), BY_OPTION)
def test_a_file_on_the_command_line(option: str, case: Case) -> None:
    write(case.code)
    assert expected(case.says) in invoke(option, "mine.py:part")


@pytest.mark.parametrize(("option", "case"), BY_OPTION)
def test_a_value_in_python(option: str, case: Case) -> None:
    write(case.code)
    part = module().part
    key, _ = KEYS[option]
    value = [part] if key in ("metrics", "loggers") else part
    said = raised(override={key: value})
    if part != 3:  # which is no part, and refused as a setting
        assert expected(case.says) in said


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_cannot_be_loaded(case: Case) -> None:
    write(case.code)
    said = invoke("--metric", "mine.py:part")
    assert expected(case.says) in said


def test_a_file_that_is_missing() -> None:
    assert "nowhere.py can't be read (No such file" in invoke("--network", "nowhere.py:part")
    Path("mine.py").mkdir()
    assert "mine.py can't be read (Is a directory" in invoke("--network", "mine.py:part")


def term(body: str) -> str:
    lines = ["class T(Term):", "    def __call__(self, step):", f"        {body}"]
    return "\n".join([*lines, "def part(schedules): return method(T(), schedules)"])


@pytest.mark.parametrize("case", TERMS)
def test_a_term(case: Case) -> None:
    write(term(case.code))
    said = invoke("--method", "mine.py:part")
    assert expected(case.says) in said


@pytest.mark.parametrize("case", TERMS)
def test_a_term_in_a_learner(case: Case) -> None:
    write(term(case.code))
    made = module()
    one = densekd.Schedule(epochs=1)
    learner = densekd.Learner("resnet8", made.part(densekd.Schedules(one, one)), memory=2)
    with pytest.raises(Exception, match=r".") as caught:
        learner.partial_fit(np.zeros((4, 8, 8, 3), np.uint8), ["a", "b"] * 2)
    assert expected(case.says) in str(caught.value)


@pytest.mark.parametrize("case", [case for case in NETWORKS if "class" in case.code])
def test_a_network_in_a_learner(case: Case) -> None:
    write(case.code)
    learner = densekd.Learner(module().part(), "finetune", memory=2, epochs=1)
    with pytest.raises(ValueError, match=r".") as caught:
        learner.partial_fit(np.zeros((4, 8, 8, 3), np.uint8), ["a", "b"] * 2)
    assert expected(case.says) in str(caught.value)


@pytest.mark.parametrize("case", SELECTIONS)
def test_a_selection(case: Case) -> None:
    write(case.code)
    part = module().part
    assert expected(case.says) in invoke("-o", "memory.selection=mine.py:part")
    if callable(part):
        memory = densekd.ExemplarMemory(densekd.Quota(2), part)
        labels = torch.arange(2).repeat(4)
        split = densekd.as_dataset([torch.zeros(8, 3, 8, 8), labels.tolist()] * 2).train
        with pytest.raises(ValueError, match=r".") as caught:
            memory.learn(split, 2, torch.Generator(), torch.zeros(8, 4))
        assert expected(case.says) in str(caught.value)


def test_debug_shows_the_traceback_of_the_part() -> None:
    write("def part(outputs):\n    return 1 / 0")
    said = invoke("--metric", "mine.py:part")
    found = CliRunner().invoke(app, ["run", *SMALL, "--metric", "mine.py:part", "--debug"])
    assert found.stderr.startswith("Traceback")
    assert "ZeroDivisionError: division by zero" in found.stderr
    assert "return 1 / 0" in found.stderr
    assert found.stderr.endswith(said)


def test_an_observer_raises_what_it_likes() -> None:
    class Odd(Exception):
        pass

    class Observer(densekd.RunObserver):
        def started(self, *facts: object) -> None:
            raise Odd

    with pytest.raises(Odd):
        densekd.run(epochs=1, steps=1, quiet=True, observer=Observer())


def test_there_are_many_cases() -> None:
    cases = [*METHODS, *TERMS, *NETWORKS, *DATA, *ORDERS, *SELECTIONS, *METRICS, *LOGGERS, *FILES]
    assert len(cases) >= 75
