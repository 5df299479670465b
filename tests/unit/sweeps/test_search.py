import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densekd.sweeps.search import Parameter, Search, hyper_parameters, read_search

TEMPERATURE = {"low": 0.5, "high": 8.0, "log": True}


def search(**changes: Any) -> Search:
    tree = {"kind": "random", "trials": 9, "parameters": {"method.options.t": TEMPERATURE}}
    return read_search({**tree, **changes})


def test_a_grid_tries_all_values_together() -> None:
    parameters = {"a": [1, 2, 1], "b": {"c": {"values": ["x", "y"]}}}
    found = read_search({"kind": "grid", "parameters": parameters, "tasks": 3})
    assert found.tasks == 3
    assert found.listed() == [
        *({"a": 1, "b.c": "x"}, {"a": 1, "b.c": "y"}),
        *({"a": 2, "b.c": "x"}, {"a": 2, "b.c": "y"}),
    ]


def test_random_trials_follow_from_the_seed_and_more_add_to_them() -> None:
    parameters = {"t": TEMPERATURE, "n": {"low": 1, "high": 4}, "c": ["a", "b"]}
    nine = search(parameters=parameters).listed()
    assert nine == search(parameters=parameters).listed()
    assert search(parameters=parameters, trials=20).listed()[:9] == nine
    assert search(parameters=parameters, seed=1).listed() != nine
    # A key more doesn't move the others.
    more = search(parameters={**parameters, "further": [1, 2, 3]}).listed()
    assert [{**trial, "further": 0} for trial in nine] == [{**t, "further": 0} for t in more]
    assert len({trial["t"] for trial in nine}) == 9
    drawn = [trial["n"] for trial in search(parameters=parameters, trials=60).listed()]
    assert set(drawn) == {1, 2, 3, 4}
    assert all(type(number) is int for number in drawn)


def test_random_numbers_spread_evenly_over_their_range() -> None:
    even = search(parameters={"t": {"low": 0.0, "high": 1.0}}, trials=400).listed()
    assert sum(trial["t"] for trial in even) / 400 == pytest.approx(0.5, abs=0.05)
    orders = search(parameters={"t": {"low": 0.01, "high": 100.0, "log": True}}, trials=400)
    below = sum(trial["t"] < 1 for trial in orders.listed())
    assert below / 400 == pytest.approx(0.5, abs=0.08)


@given(st.floats(0, 1, exclude_max=True), st.booleans(), st.booleans(), st.integers(1, 50))
def test_every_value_is_in_its_range(share: float, whole: bool, log: bool, width: int) -> None:
    low, high = (1, 1 + width) if whole else (1.0, 1.0 + width)
    value = Parameter(low=low, high=high, log=log).at(share)
    assert low <= value <= high
    assert isinstance(value, int) == whole


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "bayes"}, "search.kind must be grid, random or optuna, not 'bayes'"),
        ({"trails": 3}, "trails is not a key of search; did you mean trials?"),
        ({"parameters": {}}, "search.parameters has no key"),
        ({"parameters": {"a": 3}}, "search.parameters.a must be a list or {low, high}, not 3"),
        ({"parameters": {"a": []}}, "must have values"),
        ({"parameters": {"a": {"low": 1, "hihg": 2}}}, "did you mean high?"),
        ({"parameters": {"a": {"low": 2, "high": 1}}}, "low and high, two numbers"),
        ({"parameters": {"a": {"low": 1, "high": 10**400}}}, "low and high, two numbers"),
        ({"parameters": {"a": {"low": 0, "high": 1, "log": True}}}, "only for a low above 0"),
        ({"kind": "grid"}, "search.parameters.method.options.t is a range; a grid needs values"),
        ({"kind": "grid", "parameters": {"a": [1]}}, "search.trials has no meaning for a grid"),
        ({"trials": 0}, "search.trials must be a whole number of at least 1, not 0"),
        ({"tasks": 1.5}, "search.tasks must be a whole number of at least 1, not 1.5"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        search(**changes)


def test_trials_must_be_said() -> None:
    with pytest.raises(ValueError, match=r"search\.trials is missing"):
        read_search({"kind": "optuna", "parameters": {"a": [1, 2]}})


def test_numbers_of_a_method_are_hyper_parameters_and_questions_are_not() -> None:
    grid: dict[str, tuple[Any, ...]] = {
        "method.name": ("gkd", "rdkd"),
        "method.options.temperature": (1.0, 2.0),
        "method.options.per_image": (False, True),
        "training.increment.lr": (0.1,),
        "training.base.lr": (0.1, 0.2),
        "memory.per_class": (5, 10),
        "seed": (1, 2),
    }
    assert hyper_parameters(grid) == ["method.options.temperature", "training.base.lr"]
