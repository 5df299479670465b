"""Methods from values of one's own: a method, a specification, or a function."""

import dataclasses

import pytest

from densekd.methods.icarl import ICARL
from densekd.methods.method import Method, Phase
from densekd.methods.own import own_method, shortened
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import (
    baseline_of,
    combination_text,
    is_own_method,
    make_method,
    split_name,
)
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.terms import CrossEntropy
from densekd.parts import OwnPartError, refer

SCHEDULES = Schedules(Schedule(20), Schedule(10))


def plain(schedules: Schedules, weight: float = 1.0) -> Method:
    return Method(
        "plain",
        "linear",
        {"ce": CrossEntropy(["merged"], "all", weight=weight)},
        base=(Phase("train", schedules.base),),
        increment=(Phase("train", schedules.increment),),
        streams="merged",
    )


def test_a_function_gets_schedules_and_parameters() -> None:
    made = own_method("plain", plain, SCHEDULES, {"weight": 0.5})
    assert made.base[0].schedule.epochs == 20
    assert "0.5" in made.terms["ce"].formula


def test_a_method_is_used_as_it_is_and_can_be_shortened() -> None:
    value = plain(SCHEDULES)
    assert own_method("plain", value, Schedules()) is value
    short = shortened(value, 0.1)
    assert (short.base[0].schedule.epochs, short.increment[0].schedule.epochs) == (2, 1)


def test_the_parameters_of_a_specification_are_its_options() -> None:
    assert own_method("mine", ICARL, SCHEDULES, {"predicts": "head"}).predicts == "head"
    with pytest.raises(OwnPartError, match="no parameter 'predict'; it has predicts"):
        own_method("mine", ICARL, SCHEDULES, {"predict": "head"})


def test_a_function_may_take_anything_more() -> None:
    def build(schedules: Schedules, *rest: object, weight: float, **others: object) -> Method:
        return plain(schedules, weight + len(rest) + len(others))

    made = own_method("mine", build, SCHEDULES, {"weight": 0.5, "other": 1})
    assert "1.5" in made.terms["ce"].formula


@pytest.mark.parametrize(
    ("value", "params", "sentence"),
    [
        (plain, {"wieght": 1}, "mine takes no parameter 'wieght'; it has weight"),
        (lambda schedules, alpha: None, {}, "needs alpha: give method.params.alpha"),
        (lambda schedules, *rest: None, {"rest": 1}, "no parameter 'rest'; it has none"),
        (lambda: None, {}, "must take the schedules"),
        (lambda schedules: 3, {}, "gave int"),
        (7, {}, "mine must be a Method, a MethodSpec, or a function .* gave int"),
        (plain(SCHEDULES), {"weight": 1}, "takes no method.params"),
    ],
)
def test_what_is_no_method_is_refused(
    value: object, params: dict[str, float], sentence: str
) -> None:
    with pytest.raises(OwnPartError, match=sentence):
        own_method("mine", value, SCHEDULES, params)


def test_names_are_split_at_the_plus_behind_the_colon() -> None:
    assert split_name("icarl+rdkd") == ("icarl", "rdkd")
    assert split_name("/c++/mine.py:eeil+rdkd") == ("/c++/mine.py:eeil", "rdkd")
    assert split_name("rdkd") == ("rdkd", "")
    assert is_own_method("mine.py:eeil+rdkd")
    assert not is_own_method("icarl+rdkd")
    assert baseline_of("icarl+rdkd") is ICARL
    assert baseline_of("icarl+mine/eeil.py:eeil") is None


def test_a_distillation_is_set_in_the_slot_kd() -> None:
    name = refer(plain)
    made = make_method(f"{name}+rdkd", DenseOptions(), SCHEDULES)
    assert set(made.terms) == {"ce", "kd"}
    assert made.name == "plain+rdkd"
    assert dataclasses.replace(made, terms={"ce": made.terms["ce"]}, name="plain").name == "plain"
    assert "slot kd" in (combination_text(f"{name}+rdkd") or "")
    with pytest.raises(ValueError, match="no distillation 'none'"):
        make_method(f"{name}+none", DenseOptions(), SCHEDULES)
