"""Baselines, alone and with a distillation put into them, from a configuration to a result."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from densekd.config.schema import resolve
from densekd.config.settings_tree import merge
from densekd.methods.method import Method
from densekd.methods.paper import DenseOptions, dense_names
from densekd.methods.registry import HOSTS, METHODS, make_method, what_kd_does
from densekd.methods.terms import Step, Term
from densekd.runs.run import run

from support.tiny_learners import SCHEDULES, learned

Result = Mapping[str, Any]

REPLACED = ("icarl", "icarl-softmax", "bic", "ccil")  # those with a distillation of their own
PROXIES = ("podnet", "afc")
COMBINATIONS = [f"{host}+{kd}" for host in HOSTS for kd in dense_names()]

SHORT = {
    "epochs": 6,
    "data": {"per_class": 20},
    "memory": {"per_class": 5},
    "training": {"base": {"batch_size": 16}, "increment": {"batch_size": 16}},
    "engine": {"accelerator": "cpu"},
}
# Scores between -4 and 0 take long to come apart, above all before eta has grown.
LONGER = {
    "epochs": None,
    "training": {
        "base": {"epochs": 40},
        "increment": {"epochs": 10},
        "finish": {"epochs": 10},
    },
}
FORGETFUL = {
    "memory": {"per_class": 0},
    "method": {"name": "finetune", "options": {"streams": "merged"}},
}


def reached(out: Path, steps: int, changes: Mapping[str, Any]) -> Result:
    return run(resolve(merge(SHORT, {"scenario": {"steps": steps}}, changes)), out)


def by(out: Path, steps: int, name: str) -> Result:
    longer = LONGER if name.partition("+")[0] in PROXIES else {}
    return reached(out, steps, {**longer, "method": {"name": name}})


def check(result: Result, seen: list[int]) -> None:
    """It went through all tasks, and whatever was measured is a number."""
    assert [step["classes_seen"] for step in result["steps"]] == seen
    assert math.isfinite(result["forgetting"])
    for step in result["steps"]:
        measured = [step["accuracy"], step["head_accuracy"], *step["task_accuracies"]]
        assert all(0 <= share <= 1 for share in [*measured, step["nme_accuracy"]])
        assert all(math.isfinite(value) for value in step["notes"].values())


def gain(result: Result, forgetful: Result) -> float:
    """By how much it is better on average than what keeps nothing of the past."""
    average = "average_incremental_accuracy"
    return float(result[average] - forgetful[average])


def combination(name: str) -> str | None:
    host, plus, kd = name.partition("+")
    if not plus:
        return None
    own = host in REPLACED
    return f"replaced {host}'s own distillation by {kd}" if own else f"added {kd} to {host}"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Where all runs are, of all processes that test, so that they share a base where they may."""
    own = tmp_path_factory.getbasetemp()
    return (own if worker_id == "master" else own.parent) / "baselines"


@pytest.fixture(scope="module")
def forgetful(out: Path) -> Mapping[int, Result]:
    """Fine-tuning without replay, by the number of steps."""
    out.mkdir(exist_ok=True)
    with FileLock(out / "forgetful.lock"):
        return {steps: reached(out, steps, FORGETFUL) for steps in (1, 5)}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*METHODS, *COMBINATIONS])
def test_one_class_at_a_time(out: Path, forgetful: Mapping[int, Result], name: str) -> None:
    result = by(out, 5, name)
    check(result, [5, 6, 7, 8, 9, 10])
    assert result["combination"] == combination(name)
    assert gain(result, forgetful[5]) > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("name", [*HOSTS, *(f"{host}+rdkd-adaptive" for host in HOSTS)])
def test_five_classes_at_once(out: Path, forgetful: Mapping[int, Result], name: str) -> None:
    result = by(out, 1, name)
    check(result, [5, 10])
    assert gain(result, forgetful[1]) > 0.08


@pytest.mark.parametrize("name", COMBINATIONS)
def test_a_distillation_replaces_that_of_the_baseline_or_is_added(name: str) -> None:
    assert what_kd_does(name) == combination(name)


class Weightless(Term):
    """A term that counts for nothing, but still gives gradients, of 0."""

    def __init__(self, term: Term) -> None:
        super().__init__(term.streams)
        self.term = term
        self.needs_teacher = term.needs_teacher

    def __call__(self, step: Step) -> torch.Tensor:
        return 0 * self.term(step)


def method(name: str, lambda_base: float = 0.0) -> Method:
    return make_method(name, DenseOptions(lambda_base=lambda_base), SCHEDULES)


def without_kd(host: str) -> Method:
    plain = method(host)
    own = plain.terms.get("kd")
    return plain if own is None else plain.with_term("kd", Weightless(own))


def weights(how: Method) -> dict[str, torch.Tensor]:
    return learned(how).network.state_dict()


def same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    assert list(first) == list(second)
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize("host", HOSTS)
def test_a_combination_differs_from_its_baseline_in_the_slot_kd_only(host: str) -> None:
    plain, combined = method(host), method(f"{host}+rdkd")
    for field in dataclasses.fields(Method):
        if field.name not in ("name", "terms"):
            assert getattr(combined, field.name) == getattr(plain, field.name)
    assert set(combined.terms) == {*plain.terms, "kd"}
    assert ("kd" in plain.terms) == (host in REPLACED)
    # With a weight of 0 nothing is left of the difference, whatever is drawn for it.
    expected = weights(without_kd(host))
    assert same(weights(combined), expected)
    assert same(weights(method(f"{host}+rdkd-adaptive")), expected)
    assert not same(weights(method(f"{host}+rdkd", lambda_base=5.0)), expected)
