"""Baselines, alone and combined with a distillation, from a configuration to a result."""

import dataclasses
import itertools
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
from densekd.methods.paper import DISTILLATIONS, DenseOptions
from densekd.methods.registry import METHODS, combination_text, make_method
from densekd.methods.terms import Step, Term
from densekd.runs.run import run_config

from support.tiny_learners import SCHEDULES, learned

Result = Mapping[str, Any]

# The published baselines; one that is added brings its own tests.
PUBLISHED = ("icarl", "icarl-softmax", "bic", "ucir", "podnet", "ccil", "afc")
PAPER = [name for name, spec in METHODS.items() if not spec.published]
REPLACED = ("icarl", "icarl-softmax", "bic", "ccil")  # baselines with their own distillation
PROXIES = ("podnet", "afc")
COMBINATIONS = [f"{host}+{kd}" for host in PUBLISHED for kd in DISTILLATIONS]
# Every combination is built; these are trained. They have each baseline, each distillation, and
# all pairs of: distillation, adaptive or not, replaced or added. A test checks that.
TRAINED = (
    "icarl+gkd",
    "ucir+gkd-adaptive",
    "podnet+tkd",
    "icarl-softmax+tkd-adaptive",
    "bic+fdkd",
    "afc+fdkd-adaptive",
    "ucir+rdkd",
    "ccil+rdkd-adaptive",
)

SHORT = {
    "epochs": 6,
    "data": {"per_class": 20},
    "memory": {"per_class": 5},
    "training": {"base": {"batch_size": 16}, "increment": {"batch_size": 16}},
    "engine": {"accelerator": "cpu"},
}
# Cosine scores from -4 to 0 take long to separate, above all before eta has grown.
LONGER = {
    "epochs": None,
    "training": {
        "base": {"epochs": 20},
        "increment": {"epochs": 5},
        "finish": {"epochs": 5},
    },
}
# Sigmoid outputs learn slowly: after six epochs their gain depends on how a processor rounds.
SIGMOID = {"epochs": 9}
FORGETFUL = {
    "memory": {"per_class": 0},
    "method": {"name": "finetune", "options": {"streams": "merged"}},
}


def reached(out: Path, steps: int, changes: Mapping[str, Any]) -> Result:
    return run_config(resolve(merge(SHORT, {"scenario": {"steps": steps}}, changes)), out)


def by(out: Path, steps: int, name: str) -> Result:
    longer = SIGMOID if name == "icarl" else LONGER if name.partition("+")[0] in PROXIES else {}
    return reached(out, steps, {**longer, "method": {"name": name}})


def check(result: Result, seen: list[int]) -> None:
    """All tasks were learned, and all measures are finite."""
    assert [step["classes_seen"] for step in result["steps"]] == seen
    assert math.isfinite(result["forgetting"])
    for step in result["steps"]:
        measured = [step["accuracy"], step["head_accuracy"], *step["task_accuracies"]]
        assert all(0 <= share <= 1 for share in [*measured, step["nme_accuracy"]])
        assert all(math.isfinite(value) for value in step["notes"].values())


def gain(result: Result, forgetful: Result) -> float:
    """How much more it reaches on average than fine-tuning without replay."""
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
    """One folder for the runs of all test processes, so that they share bases."""
    own = tmp_path_factory.getbasetemp()
    return (own if worker_id == "master" else own.parent) / "baselines"


@pytest.fixture(scope="module")
def forgetful(out: Path) -> Mapping[int, Result]:
    """Fine-tuning without replay, by the number of steps."""
    out.mkdir(exist_ok=True)
    with FileLock(out / "forgetful.lock"):
        return {steps: reached(out, steps, FORGETFUL) for steps in (1, 5)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*(n for n, spec in METHODS.items() if not spec.published), *TRAINED]
)
def test_one_class_at_a_time(out: Path, forgetful: Mapping[int, Result], name: str) -> None:
    result = by(out, 5, name)
    check(result, [5, 6, 7, 8, 9, 10])
    assert result["combination"] == combination(name)
    assert gain(result, forgetful[5]) > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_five_classes_at_once(out: Path, forgetful: Mapping[int, Result], name: str) -> None:
    result = by(out, 1, name)
    check(result, [5, 10])
    assert gain(result, forgetful[1]) > 0.08


def test_trained_combinations_cover_all_pairs() -> None:
    def parts(name: str) -> tuple[str, str, bool, bool]:
        host, _, kd = name.partition("+")
        return host, kd.removesuffix("-adaptive"), kd.endswith("-adaptive"), host in REPLACED

    for first, second in itertools.combinations(range(1, 4), 2):
        trained = {(parts(name)[first], parts(name)[second]) for name in TRAINED}
        assert trained == {(parts(name)[first], parts(name)[second]) for name in COMBINATIONS}
    assert {parts(name)[0] for name in TRAINED} == set(PUBLISHED)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_a_distillation_replaces_that_of_the_baseline_or_is_added(name: str) -> None:
    assert combination_text(name) == combination(name)
    host, _, kd = name.partition("+")
    plain, combined = method(host), method(name)
    check_same_but_kd(plain, combined)
    assert combined.name == name
    assert ("kd" in plain.terms) == (host in REPLACED)
    # The same distillation, but of the baseline's batches.
    assert combined.terms["kd"].formula.endswith(method(kd).terms["kd"].formula.partition("]")[2])


class Weightless(Term):
    """A term with a weight of 0, which still gives gradients."""

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


def check_same_but_kd(plain: Method, combined: Method) -> None:
    for field in dataclasses.fields(Method):
        if field.name not in ("name", "terms"):
            assert getattr(combined, field.name) == getattr(plain, field.name)
    assert set(combined.terms) == {*plain.terms, "kd"}


@pytest.mark.parametrize("host", PUBLISHED)
def test_a_combination_trains_differently_only_by_its_slot_kd(host: str) -> None:
    # With a weight of 0 both give the same network, whatever groups are drawn.
    expected = weights(without_kd(host))
    assert same(weights(method(f"{host}+rdkd")), expected)
    assert same(weights(method(f"{host}+rdkd-adaptive")), expected)
    assert not same(weights(method(f"{host}+rdkd", lambda_base=5.0)), expected)
