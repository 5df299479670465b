import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from densekd.data.dataset import PixelImages, Split
from densekd.data.scenario import (
    Scenario,
    class_order,
    icarl_order,
    read_names,
    seeded_order,
    task_sizes,
)
from densekd.parts import OwnPartError, refer

from support.datasets import dataset


def pixel_classes(split: Split) -> set[int]:
    assert isinstance(split.images, PixelImages)
    return set(split.images.pixels[:, 0, 0, 0].tolist())


def test_the_order_of_1993_is_that_of_the_field() -> None:
    expected = [68, 56, 78, 8, 23, 84, 90, 65, 74, 76, 40, 89, 3, 92, 55, 9, 26, 80, 43, 38]
    assert seeded_order(100, 1993)[:20] == expected


def test_the_order_of_icarl_is_that_of_its_code() -> None:
    expected = [87, 0, 52, 58, 44, 91, 68, 97, 51, 15, 94, 92, 10, 72, 49, 78, 61, 14, 8, 86]
    assert icarl_order([500] * 100)[:20] == expected


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"steps": 5}, [50] + [10] * 5),
        ({"steps": 10}, [50] + [5] * 10),
        ({"steps": 25}, [50] + [2] * 25),
        ({"steps": 50}, [50] + [1] * 50),
        ({"steps": 0, "base": 100}, [100]),
        ({"increment": 20, "base": 40}, [40, 20, 20, 20]),
        ({"steps": 9, "equal": True}, [10] * 10),
        ({"steps": 2, "base": 90}, [90, 5, 5]),
    ],
)
def test_protocols_of_100_classes(options: dict[str, Any], sizes: list[int]) -> None:
    assert task_sizes(100, **options) == sizes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 7}, "50 classes after the base of 50.*7 equal steps; possible are 5 or 10 step"),
        ({"steps": 51}, "51 equal steps; possible are 50 steps"),
        ({"steps": 0}, "0 equal steps; possible are 1 steps"),
        ({"steps": -1}, "-1 equal steps"),
        ({"steps": 5, "base": 101}, "base of 101.*100 classes"),
        ({"steps": 5, "base": 0}, "base of 0"),
        ({"steps": 1, "base": 100}, "0 classes after the base of 100.*possible are no steps"),
        ({"increment": 15}, "15 at a time; possible are 10 or 25 at a time"),
        ({"increment": 0}, "0 at a time"),
        ({"steps": 2, "equal": True}, "3 equal tasks; possible are 2 or 4 tasks"),
        ({"steps": 5, "increment": 10}, "either steps or increment"),
        ({}, "either steps or increment"),
        ({"increment": 10, "equal": True}, "by steps alone"),
    ],
)
def test_an_impossible_protocol_is_refused_with_possible_ones(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        task_sizes(100, **options)


def test_labels_are_ranks_and_names_are_kept() -> None:
    scenario = Scenario.of(dataset(10), steps=5, order=1993)
    order = seeded_order(10, 1993)
    assert scenario.sizes == (5, 1, 1, 1, 1, 1)
    assert scenario.classes == tuple(f"class {i}" for i in order)
    for task in scenario:
        ids = {order[label] for label in task.train.labels.tolist()}
        assert pixel_classes(task.train) == pixel_classes(task.test) == ids
        assert task.classes == tuple(f"class {order[task.first + i]}" for i in range(len(ids)))
        assert len(task.train) == 6 * len(ids)
        pixels = cast(PixelImages, task.train.images).pixels
        assert torch.equal(torch.tensor(order)[task.train.labels], pixels[:, 0, 0, 0].long())


def test_a_scenario_is_a_sequence_that_can_be_walked_twice_at_once() -> None:
    scenario = Scenario.of(dataset(4), steps=2)
    pairs = [(a.number, b.number) for a in scenario for b in scenario]
    assert pairs == [(a, b) for a in range(3) for b in range(3)]
    assert [task.number for task in scenario[1:]] == [1, 2]
    assert scenario[-1].number == 2
    with pytest.raises(AttributeError):
        scenario.sizes = (4,)  # type: ignore[misc]
    assert repr(scenario) == "Scenario('made', tasks of [2, 1, 1] classes)"


def test_only_the_first_tasks_can_be_kept() -> None:
    whole = Scenario.of(dataset(10), steps=5)
    cut = dataclasses.replace(whole, first=2)
    assert len(cut) == 2
    assert [task.classes for task in cut] == [task.classes for task in whole[:2]]
    assert torch.equal(cut[1].train.labels, whole[1].train.labels)
    with pytest.raises(ValueError, match=r"first = 7 is not possible with 6 tasks; .* 1 to 6"):
        dataclasses.replace(whole, first=7)


def test_tasks_can_be_named_class_by_class() -> None:
    scenario = Scenario.of_names(dataset(3), [["class 2"], ["class 0", "class 1"]])
    assert scenario.order == (2, 0, 1)
    assert [task.classes for task in scenario] == [("class 2",), ("class 0", "class 1")]


def test_tasks_of_any_size_take_the_classes_in_order() -> None:
    scenario = Scenario.of_tasks(dataset(6), [3, 1, 2], "natural")
    assert [len(task.classes) for task in scenario] == [3, 1, 2]
    assert scenario[1].classes == ("class 3",)
    assert Scenario.of_tasks(dataset(6), [3, 1, 2]).order == Scenario.of(dataset(6), steps=1).order
    with pytest.raises(ValueError, match=r"\[3, 1\] classes do not divide 6"):
        Scenario.of_tasks(dataset(6), [3, 1])


def test_tasks_can_be_named_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tasks.txt"
    text = "\n# first\nclass 2\n# the same task\nclass 3\n\n\nclass 0\nclass 1\n"
    file.write_text(text, "utf-8")
    scenario = Scenario.of_tasks(dataset(4), file)
    assert [task.classes for task in scenario] == [("class 2", "class 3"), ("class 0", "class 1")]
    named = Scenario.of_tasks(dataset(4), [["class 2", "class 3"], ["class 0", "class 1"]])
    assert named.order == scenario.order
    with pytest.raises(ValueError, match="no class 'horse'"):
        Scenario.of_tasks(dataset(2), [["class 0"], ["horse", "class 1"]])


def test_the_order_can_be_natural_or_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "order.txt"
    file.write_text("# learned in this order\nclass 2\n\nclass 0\nclass 1\n", "utf-8")
    assert class_order(dataset(3), file) == [2, 0, 1]
    assert class_order(dataset(3), "natural") == [0, 1, 2]
    assert class_order(dataset(3), "icarl") == icarl_order([6, 6, 6])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("class 0\nclass 1", "lacks 1 of 3 classes.*'class 2'"),
        ("class 0\nclass 1\nclass 1\nclass 2", "the class 'class 1' 2 times"),
        ("# nothing", "names no class"),
        ("class 0\nclass 1\nclass 2\nhorse", "no class 'horse'"),
    ],
)
def test_a_wrong_order_file_is_named(tmp_path: Path, lines: str, message: str) -> None:
    file = tmp_path / "order.txt"
    file.write_text(lines, "utf-8")
    with pytest.raises(ValueError, match=message):
        class_order(dataset(3), file)


def test_other_wrong_orders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'class 1' is named twice"):
        Scenario.of_names(dataset(2), [["class 0", "class 1"], ["class 1"]])
    with pytest.raises(ValueError, match="can't be read as a text file"):
        class_order(dataset(3), tmp_path / "none.txt")
    with pytest.raises(ValueError, match="order='random'"):
        class_order(dataset(3), cast(Any, "random"))
    with pytest.raises(ValueError, match="each of the 3 classes once"):
        Scenario(dataset(3), [0, 1, 1], [3])
    with pytest.raises(ValueError, match=r"\[1, 1\] classes do not divide 3"):
        Scenario(dataset(3), [0, 1, 2], [1, 1])


def test_a_classes_file_has_a_class_per_line(tmp_path: Path) -> None:
    file = tmp_path / "classes.txt"
    file.write_text("\ufeff# mine\n n02 # a fish\n\nC#\r\nsea gull\n#n09\n", encoding="utf-8")
    assert read_names(file) == ["n02", "C#", "sea gull"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\nb\na # again\n", r"names the class 'a' 2 times"),
        (b"# nothing\n\n", "names no class"),
        (b"\xff\xfe\x00", r"can't be read as a text file.*utf-8"),
        (None, r"can't be read as a text file.*No such file"),
    ],
)
def test_a_bad_classes_file_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "classes.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_names(file)


@pytest.mark.parametrize(
    "order", [lambda names: names[::-1], lambda names: np.arange(len(names))[::-1]]
)
def test_an_order_of_ones_own(order: Any) -> None:
    made = dataset(4)
    assert class_order(made, order) == [3, 2, 1, 0]
    assert class_order(made, Path(refer(order, name="order"))) == [3, 2, 1, 0]


def test_an_order_of_ones_own_is_drawn_alike_whenever_a_run_is_resumed() -> None:
    def drawn(names: Sequence[str]) -> list[str]:
        shuffled = [names[i] for i in np.random.permutation(len(names))]  # noqa: NPY002
        return random.sample(shuffled, len(names))

    assert class_order(dataset(20), drawn) == class_order(dataset(20), drawn)


@pytest.mark.parametrize(
    "tasks", [["class 0", "class 1", "class 2"], [["class 0", "class 1", "class 2"], 3]]
)
def test_tasks_that_are_neither_numbers_nor_lists_of_names_are_refused(tasks: Any) -> None:
    with pytest.raises(ValueError, match="all numbers of classes, or all lists of class names"):
        Scenario.of_tasks(dataset(3), tasks)


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        (lambda names: names[:2], "The order mine can't be used: The order lacks 2"),
        (lambda names: ["x"], "no class 'x'"),
        (lambda names: [0, 1, 2], "all 4 class names, or the whole numbers from 0 to 3"),
        (lambda names: [0.0, 1.0, 2.0, 3.0], "whole numbers"),
    ],
)
def test_a_wrong_order_of_ones_own_is_refused(order: Any, sentence: str) -> None:
    order.__name__ = "mine"
    with pytest.raises(OwnPartError, match=sentence):
        class_order(dataset(4), order)


def test_an_order_that_is_no_function_is_refused() -> None:
    with pytest.raises(OwnPartError, match="must be a function of the class names, not 3"):
        class_order(dataset(4), Path(refer(3)))
