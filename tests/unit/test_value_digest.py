"""The digest of a value: the same for what is the same, another for what is not."""

import functools
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from datetime import date
from enum import Enum

import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Subset, TensorDataset

from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.methods.schedule import Schedule, Schedules
from densekd.value_digest import value_digest

FACTOR = 2
PIXELS = TensorDataset(torch.zeros(9, 3, 4, 4))


def scaled(x: float) -> float:
    return x * FACTOR


def closure(width: int) -> Callable[[], int]:
    return lambda: width


def network(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(width, 2)


class Table:
    def __init__(self, rows: int) -> None:
        self.rows = rows


class Slotted:
    __slots__ = ("rows",)

    def __init__(self, rows: int) -> None:
        self.rows = rows


PAIRS = [
    (1, 1.0),
    ("1", 1),
    ([1, 2], [12]),
    ({"a": 1}, {"a": 2}),
    (closure(1), closure(2)),
    (functools.partial(scaled, 1), functools.partial(scaled, 2)),
    (network(3), network(4)),
    (Table(1), Table(2)),
    (np.arange(3), np.arange(3.0)),
    (Subset(PIXELS, range(5)), Subset(PIXELS, range(6))),
    (slice(5), slice(6)),
    (frozenset({1}), frozenset({2})),
    (deque([1]), deque([2])),
    (date(2020, 1, 1), date(2020, 1, 2)),
    (re.compile("a"), re.compile("b")),
    (Slotted(1), Slotted(2)),
    (pandas.DataFrame({"name": ["a"]}), pandas.DataFrame({"name": ["b"]})),
    (Image.new("RGB", (2, 2), "red"), Image.new("RGB", (2, 2), "blue")),
    (np.array([["a"], "b"], object), np.array([["a"], "c"], object)),
    (torch.zeros(2, 3), torch.zeros(3, 2)),
    (torch.zeros(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
    (
        make_method("rdkd", DenseOptions(), Schedules()),
        make_method("rdkd", DenseOptions(temperature=3), Schedules()),
    ),
    (
        make_method("rdkd", DenseOptions(), Schedules()),
        make_method("rdkd", DenseOptions(), Schedules(base=Schedule(3))),
    ),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_other_values_have_other_digests(one: object, other: object) -> None:
    assert value_digest(one) != value_digest(other)


def test_equal_values_have_equal_digests() -> None:
    assert value_digest(network(3)) == value_digest(network(3))
    assert value_digest(closure(1)) == value_digest(closure(1))
    assert value_digest({1, 2, 3}) == value_digest({3, 2, 1})
    assert value_digest(Slotted(1)) == value_digest(Slotted(1))
    assert value_digest(deque([Slotted(1)])) == value_digest(deque([Slotted(1)]))
    # Two objects, at two addresses.
    one, other = (np.array(["".join(["a", "b"])], object) for _ in range(2))
    assert value_digest(one) == value_digest(other)
    loop: list[object] = []
    loop.append(loop)
    assert value_digest(loop) == value_digest(loop)


def test_a_constant_that_a_function_uses_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = value_digest(scaled)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3)
    assert value_digest(scaled) != before


def test_the_code_of_a_class_counts() -> None:
    def made(source: str) -> object:
        scope: dict[str, object] = {"__name__": "__main__"}
        exec(source, scope)
        return scope["T"]

    one = "class T:\n    def f(self): return 1"
    assert value_digest(made(one)) == value_digest(made("\n\n" + one))
    assert value_digest(made(one)) != value_digest(made(one.replace("1", "2")))


def test_another_process_gives_the_same_digest() -> None:
    code = (
        "from densekd.value_digest import value_digest\n"
        "def f(x):\n    return x in {'a', 'b', 'c', 'd'}\n"
        "print(value_digest([f, {'x', 'y', 'z'}, 0.1]))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


class Colour(Enum):
    RED = 1
    BLUE = 2


OPTIONS, COLOUR, NETWORK = DenseOptions(), Colour.RED, nn.Linear(2, 2)


@functools.cache
def cached() -> int:
    return FACTOR


class Lazy:
    @functools.cached_property
    def value(self) -> int:
        return FACTOR


def using_objects() -> object:
    return OPTIONS, COLOUR, NETWORK, cached, Lazy


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("OPTIONS", DenseOptions(temperature=9)),
        ("COLOUR", Colour.BLUE),
        ("NETWORK", nn.Linear(2, 3)),
        ("FACTOR", 3),  # which a cached function and a cached property use
    ],
)
def test_an_object_that_a_function_uses_counts(
    name: str, other: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = value_digest(using_objects)
    assert value_digest(using_objects) == before
    monkeypatch.setattr(sys.modules[__name__], name, other)
    assert value_digest(using_objects) != before


@pytest.mark.parametrize("user", [cached, Lazy])
def test_what_a_cached_function_computes_with_counts(
    user: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = value_digest(user)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3)
    assert value_digest(user) != before
