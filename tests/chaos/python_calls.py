"""Calls of the public API with one or two odd arguments of the right kind."""

import inspect
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

import densekd
from densekd.config.settings_tree import merge
from densekd.model.options import TeachOptions

from chaos.forked import run_forked
from chaos.verdict import Defect, find_call_defect
from chaos.workshop import RUN, add_traps, sandbox

_INTEGERS = (-1, 0, 1, True, 10**20, -(10**9), np.int64(3), 2**31, 2**63)
_FLOATS = (
    *_INTEGERS,
    float("nan"),
    float("inf"),
    -float("inf"),
    -0.5,
    1e300,
    1e-300,
    np.float32(2),
)
_TEXTS = ("", " ", "nothing", "é", "\x1b[2J", "\udcff", "a" * 5000, "resnet2000000", "hf:no/such")
_PATHS = ("missing", "/dev/zero", "pipe", "loop", "blue.png", "empty", ".", "", "\udcff", "nested")
_LISTS: tuple[Any, ...] = (
    [],
    [0],
    [-1, 2],
    [1.5],
    [10**20],
    ["a"],
    [None],
    [1] * 5000,
    [float("nan")],
    (),
    "abc",
)
_LABELS: tuple[Any, ...] = (
    *([True, 1, False, 0], [], ["a"], [1, 2, 3, 4, 5], [None] * 4, [1.5, 2, 3, 4], "abcd"),
    *([float("nan")] * 4, [-1, -1, 0, 0], [10**30, 0, 1, 2], [["a"], ["b"], [], []]),
    *(np.array([[0, 1], [1, 0]]), np.array([0, 1, 0, 1], dtype=bool), torch.tensor([0.5] * 4)),
    *(["a", "a", "a", "a"], ["a", "b\0", "\x1b", "\udcff"], iter([0, 1, 0, 1])),
)
_IMAGES: tuple[Callable[[], Any], ...] = (
    lambda: np.zeros((4, 1, 1, 3), np.uint8),
    lambda: np.zeros((0, 8, 8, 3), np.uint8),
    lambda: np.zeros((4, 8, 8), np.uint8),
    lambda: np.zeros((4, 8, 8, 5), np.uint8),
    lambda: np.zeros((4, 0, 0, 3), np.uint8),
    lambda: np.zeros((4, 8, 8, 3), np.float64),
    lambda: np.full((4, 8, 8, 3), np.nan, np.float32),
    lambda: np.full((4, 8, 8, 3), 300, np.int64),
    lambda: np.array([["a"] * 4]),
    lambda: np.array([None] * 4),
    lambda: np.zeros((4, 8, 8, 3), object),
    lambda: np.array([1, 2, 3, 4], object),
    lambda: [np.zeros((8, 8, 3), object)] * 4,
    lambda: np.zeros(4, "datetime64[s]"),
    lambda: [[0, 1], [1, 0]],
    lambda: torch.zeros(4, 3, 8, 8),
    lambda: torch.zeros(4, 3, 16, 8, dtype=torch.uint8),
    lambda: torch.zeros(4, 3, 8, 8, dtype=torch.complex64),
    lambda: torch.zeros(3),
    lambda: [Image.new("L", (1, 1))] * 4,
    lambda: [Image.new("RGB", (3, 5)), Image.new("RGB", (9, 2))],
    lambda: [Path("pipe"), Path("blue.png"), Path("missing"), Path("nested")],
    lambda: [b"", b"GIF89a", b"\xff\xd8\xff", b"x"],
    lambda: [],
    lambda: None,
    lambda: 7,
    lambda: "blue.png",
)
_LOGITS: tuple[Callable[[], Any], ...] = (
    lambda: torch.zeros(0, 4),
    lambda: torch.zeros(4),
    lambda: torch.zeros(2, 3),
    lambda: torch.zeros(2, 4, 1),
    lambda: torch.full((2, 4), float("nan")),
    lambda: torch.full((2, 4), float("-inf")),
    lambda: torch.full((2, 4), 1e38),
    lambda: torch.zeros(2, 4, dtype=torch.int64),
    lambda: torch.zeros(2, 4, dtype=torch.bfloat16),
    lambda: [[0.0] * 4] * 2,
)
_PIXELS = np.arange(4 * 8 * 8 * 3, dtype=np.uint8).reshape(4, 8, 8, 3)


class Call(NamedTuple):
    """Something to call, the arguments it needs, and which of the others to make odd."""

    call: Callable[..., object]
    good: Mapping[str, Any]
    parameters: Mapping[str, inspect.Parameter]


def _call(call: Callable[..., object], like: Callable[..., object], **good: Any) -> Call:
    """A call with the signature of ``like``, without what takes any number of arguments."""
    every = inspect.signature(like).parameters.items()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return Call(call, good, {k: p for k, p in every if p.kind not in kinds and k != "self"})


def _learner(**given: Any) -> densekd.Learner:
    return densekd.Learner(**{"backbone": "resnet8", "memory": 2, "epochs": 1, **given})


def _fit(X: Any = _PIXELS, y: Any = ("a", "b", "a", "b")) -> None:
    learner = _learner()
    learner.fit(X, y)
    learner.predict_proba(X)


def _partial_fit(X: Any = _PIXELS, y: Any = ("c", "d", "c", "d")) -> None:
    learner = _learner().fit(_PIXELS, ["a", "b", "a", "b"])
    learner.partial_fit(X, y)
    learner.score(X, y)


def _predict(X: Any = _PIXELS) -> None:
    _learner().fit(_PIXELS, ["a", "b", "a", "b"]).predict(X)


def _load_learner(**given: Any) -> None:
    _learner().fit(_PIXELS, ["a", "b", "a", "b"]).save("learner")
    densekd.Learner.load(**{"folder": "learner", **given}).predict(_PIXELS)


def _distil(student: Any, teacher: Any, task_sizes: Any, **given: Any) -> None:
    loss = densekd.DenseDistillation(**{"groups": "every", **given})
    loss(student, teacher, task_sizes, generator=torch.Generator())


def _distil_like(
    student: torch.Tensor, teacher: torch.Tensor, task_sizes: list[int], temperature: float
) -> None: ...


def _model_predict(images: Any, top: Any = 1, step: Any = None) -> None:
    densekd.Model.open("frozen", step).predict(images, top)


def _model_like(images: Any, top: int = 1, step: int | None = None) -> None: ...


def _run(**given: Any) -> None:
    import tomllib

    densekd.run(**{"config": merge(tomllib.loads(RUN)), "quiet": True, **given})


def calls() -> dict[str, Call]:
    """All calls by name."""
    digits = partial(densekd.load, "digits")
    logits = torch.randn(2, 4)
    return {
        "TaskPool": _call(densekd.TaskPool, densekd.TaskPool),
        "Schedule": _call(densekd.Schedule, densekd.Schedule),
        "Settings": _call(densekd.Settings, densekd.Settings),
        "DenseOptions": _call(densekd.DenseOptions, densekd.DenseOptions),
        "DenseDistillation": _call(
            densekd.DenseDistillation, densekd.DenseDistillation, groups="random"
        ),
        "DenseDistillation()()": _call(
            _distil, _distil_like, student=logits, teacher=logits, task_sizes=[2, 2]
        ),
        "AdaptiveWeights": _call(densekd.AdaptiveWeights, densekd.AdaptiveWeights, lambda_base=1.0),
        "Learner": _call(_learner, densekd.Learner),
        "Learner.fit": _call(_fit, _fit),
        "Learner.partial_fit": _call(_partial_fit, _partial_fit),
        "Learner.predict": _call(_predict, _predict),
        "Learner.load": _call(_load_learner, densekd.Learner.load),
        "Scenario.of": _call(
            lambda **given: densekd.Scenario.of(digits(), **given), densekd.Scenario.of
        ),
        "load": _call(densekd.load, densekd.load),
        "as_dataset": _call(lambda X=_PIXELS, y=(0, 1, 0, 1): densekd.as_dataset((X, y)), _fit),
        "load_run": _call(densekd.load_run, densekd.load_run, folder="runs"),
        "Model.open": _call(densekd.Model.open, densekd.Model.open, folder="frozen"),
        "Model.predict": _call(_model_predict, _model_like, images=[Path("blue.png")]),
        "teach": _call(
            densekd.teach, densekd.teach, model="frozen", photos="photos/third", quiet=True
        ),
        "TeachOptions": _call(TeachOptions, TeachOptions),
        "run": _call(_run, densekd.run),
        "report": _call(densekd.report, densekd.report, quiet=True),
    }


_ON_MODELS = dict.fromkeys(["Model.open", "Model.predict", "teach"], ("frozen",))
_NEEDS = {"load_run": ("runs",), **_ON_MODELS}


class CallTrial:
    """Makes odd calls in a workshop."""

    def __init__(self, place: Path) -> None:
        self.place, self._calls = place, calls()

    def case(self, draw: random.Random) -> tuple[str, list[Defect], int]:
        """Make one: it returns, or raises an error that says what is wrong."""
        name = draw.choice(list(self._calls))
        call = self._calls[name]
        odd = [key for key in call.parameters if _odd_values(key, call.parameters[key])]
        chosen = draw.sample(odd, min(len(odd), draw.choice([1, 1, 2])))
        given = {}
        for key in chosen:
            value = draw.choice(_odd_values(key, call.parameters[key]))
            given[key] = value() if callable(value) else value
        with sandbox(self.place, *_NEEDS.get(name, ()), "photos", "blue.png") as copy:
            add_traps(copy)
            ended = run_forked(lambda: call.call(**{**call.good, **given}), copy)
        defect = find_call_defect(ended)
        what = ", ".join(f"{key}={str(value)[:80]!r}" for key, value in given.items())
        return f"{name}({what})", [] if defect is None else [defect], 1


def _odd_values(name: str, parameter: inspect.Parameter) -> tuple[Any, ...]:
    """Odd values of the kind that a parameter takes; none if it takes objects."""
    kind = str(parameter.annotation)
    if name in ("X", "images", "data"):
        return _IMAGES
    if name == "y":
        return _LABELS
    if "Tensor" in kind:
        return _LOGITS
    pools: dict[str, tuple[Any, ...]] = {
        "Sequence[int]": _LISTS,
        "list[int]": _LISTS,
        "tuple[int": _LISTS,
        "Path": _PATHS,
        "float": _FLOATS,
        "int": _INTEGERS,
        "Literal": _TEXTS,
        "str": _TEXTS,
    }
    return next((values for word, values in pools.items() if word in kind), ())
