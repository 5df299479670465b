import json
import math
import subprocess
from dataclasses import asdict
from typing import Any

import pytest

from densekd.files import to_json
from densekd.metrics import confusion_matrix, step_metrics
from densekd.runs.record import StepRecord, commit, result_of

LABELS = [0, 0, 1, 1, 2, 2]


def record(number: int, **extra: Any) -> StepRecord:
    """After the base of classes 0 and 1 (all right), or after class 2 (base half, new all)."""
    predicted = [0, 0, 1, 1] if number == 0 else [0, 2, 2, 1, 2, 2]
    sizes = [2] if number == 0 else [2, 1]
    truth = LABELS[: len(predicted)]
    within = confusion_matrix(truth, truth, sum(sizes))
    known = step_metrics(confusion_matrix(predicted, truth, sum(sizes)), sizes, within)
    other: dict[str, Any] = {"head_accuracy": 0.5, "nme_accuracy": None, "seconds": 1.0}
    other |= {"images_per_second": 2.0, "notes": {"kd.lambda": 8.0}, "classes": ("a", "b")}
    return StepRecord(number=number, **asdict(known), **other, **extra)


def test_a_result_has_every_metric() -> None:
    records = [record(0), record(1, forward_transfer=0.25)]
    last = confusion_matrix([0, 2, 2, 1, 2, 2], LABELS, 3)
    result = result_of(records, last)
    assert result["average_incremental_accuracy"] == pytest.approx((1 + 4 / 6) / 2)
    assert result["average_mean_task_accuracy"] == pytest.approx((1 + (1 / 2 + 1) / 2) / 2)
    assert result["average_mean_class_accuracy"] == pytest.approx((1 + (1 / 2 + 1 / 2 + 1) / 3) / 2)
    assert result["average_task_incremental_accuracy"] == 1
    assert result["last_accuracy"] == pytest.approx(4 / 6)
    assert result["learning_accuracy"] == 1
    assert result["forgetting"] == 1 / 2
    assert result["backward_transfer"] == -1 / 2
    assert result["forward_transfer"] == 0.25
    assert result["steps"][1]["class_accuracies"] == (1 / 2, 1 / 2, 1)


def test_a_run_of_one_task_has_no_transfer() -> None:
    result = result_of([record(0)], confusion_matrix(LABELS[:4], LABELS[:4], 2))
    assert result["forward_transfer"] is None
    assert math.isnan(result["backward_transfer"])


def test_records_survive_json() -> None:
    for given in (record(0), record(1, forward_transfer=0.25)):
        again = StepRecord.from_json(json.loads(to_json(asdict(given))))
        assert to_json(asdict(again)) == to_json(asdict(given))
        assert again.task_accuracies == given.task_accuracies
        assert again.nme_accuracy is None
    assert math.isnan(StepRecord.from_json(json.loads(to_json(asdict(record(0))))).old_accuracy)


def test_records_of_versions_without_the_newer_metrics_are_read() -> None:
    facts = json.loads(to_json(asdict(record(0))))
    newer = {"class_accuracies", "mean_task_accuracy", "mean_class_accuracy", "forward_transfer"}
    newer |= {"task_incremental_accuracy", "task_incremental_accuracies"}
    old = StepRecord.from_json({k: v for k, v in facts.items() if k not in newer})
    assert old.accuracy == 1
    assert math.isnan(old.mean_task_accuracy)
    # A resumed run whose first steps lack a metric has no average of it, rather than a wrong one.
    result = result_of([old, record(1)], confusion_matrix(LABELS, LABELS, 3))
    assert math.isnan(result["average_task_incremental_accuracy"])
    assert result["average_incremental_accuracy"] == pytest.approx((1 + 4 / 6) / 2)


def test_what_later_versions_add_to_a_record_is_left_out() -> None:
    facts = json.loads(to_json(asdict(record(0))))
    held = {k: facts[k] for k in ("classes_seen", "accuracy", "base_accuracy", "task_accuracies")}
    held |= {"old_accuracy": None, "new_accuracy": 1.0, "later": 1}
    known = StepRecord.from_json({**facts, "validation": held})
    assert StepRecord.from_json({**facts, "validation": held, "later": {"a": 1}}) == known


def test_the_commit_is_named_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(command: list[str], timeout: float, **_: Any) -> Any:
        if timeout < 50:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, 0, "abc")

    monkeypatch.setattr(subprocess, "run", busy)
    assert commit.__wrapped__() == "abc"
