"""Metrics of one's own: what they get, and what they may return."""

import math
from typing import Any

import pytest
import torch

from densekd.data.dataset import join_splits
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.parts import OwnPartError, refer
from densekd.training.evaluate import evaluate
from densekd.training.learner import Learner
from densekd.training.own_metrics import (
    StepOutputs,
    find_metrics,
    measure,
    try_metrics,
)

from support.tiny_learners import SCHEDULES, STEPS_OF_TWO, learned

TASKS = STEPS_OF_TWO[:2]
TEST = join_splits([task.test for task in TASKS])


@pytest.fixture(scope="module", params=["rdkd", "icarl"])
def learner(request: pytest.FixtureRequest) -> Learner:
    """A learner of two tasks that predicts by its head, or by the nearest mean."""
    return learned(make_method(request.param, DenseOptions(), SCHEDULES), TASKS)


@pytest.fixture(scope="module")
def outputs(learner: Learner) -> StepOutputs:
    kept = evaluate(learner, TEST, keep_outputs=True).outputs
    assert kept is not None
    return kept


def accuracy(outputs: StepOutputs) -> torch.Tensor:
    return (outputs.predictions == outputs.labels).float().mean()


def sizes(outputs: StepOutputs) -> dict[str, float]:
    return {"tasks": len(outputs.sizes), "seen": outputs.logits.shape[1], "step": outputs.step}


def test_a_metric_gets_what_the_accuracy_is_computed_from(
    learner: Learner, outputs: StepOutputs
) -> None:
    assert torch.equal(outputs.logits, learner.logits(TEST.images))
    assert outputs.classes == learner.classes
    confusion = evaluate(learner, TEST).by(learner.method.predicts)
    right = float(confusion.trace() / confusion.sum())
    numbers = measure(find_metrics([refer(accuracy), refer(sizes)]), outputs)
    assert numbers == {"accuracy": pytest.approx(right), "tasks": 2, "seen": 6, "step": 1}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("high", "bad.* must return a number, or numbers by name, not str"),
        (None, "not NoneType"),
        (torch.zeros(2), "not Tensor"),
        ({"a": "b"}, "not str"),
        ({1: 0.5}, "numbers by name"),
        (math.nan, "bad.* returned nan after task 2"),
        ({"a": math.inf}, "returned inf"),
    ],
)
def test_what_is_no_number_is_refused(outputs: StepOutputs, value: Any, sentence: str) -> None:
    metrics = find_metrics([refer(lambda outputs: value, name="bad", digest="0" * 12)])
    with pytest.raises(OwnPartError, match=sentence):
        measure(metrics, outputs)


def test_two_metrics_need_two_names(outputs: StepOutputs) -> None:
    both = {"mine.py:accuracy": accuracy, "yours.py:accuracy": accuracy}
    with pytest.raises(OwnPartError, match="Two metrics are called 'accuracy'"):
        measure(both, outputs)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(OwnPartError, match="must be a function of the outputs, not 3"):
        find_metrics([refer(3)])


def test_a_metric_is_tried_before_training() -> None:
    seen: list[StepOutputs] = []

    def wrong(outputs: StepOutputs) -> Any:
        seen.append(outputs)
        return "text"

    with pytest.raises(OwnPartError, match="not str"):
        try_metrics({"mine.py:wrong": wrong}, STEPS_OF_TWO)
    assert seen[0].logits.shape == (len(TASKS[0].test), 4)
    assert seen[0].sizes == (4,)
    try_metrics({"mine.py:rare": lambda outputs: math.nan}, STEPS_OF_TWO)  # random outputs may be
