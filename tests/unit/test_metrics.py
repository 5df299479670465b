import math

import numpy as np
import pytest

from densekd.metrics import (
    StepMetrics,
    accuracy_matrix,
    average_incremental_accuracy,
    confusion_matrix,
    forgetting,
    step_metrics,
)


def step(predicted: list[int], labels: list[int], sizes: list[int]) -> StepMetrics:
    return step_metrics(confusion_matrix(predicted, labels, sum(sizes)), sizes)


def test_confusion_counts_truth_by_row() -> None:
    counts = confusion_matrix([0, 1, 1, 2, 0], [0, 0, 1, 2, 2], 3)
    assert counts.tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 1]]


def test_accuracies_of_unequal_tasks_are_over_images() -> None:
    # Base of classes 0 and 1 (four images, three right), then 2 (two images, one right), then 3.
    given = step([0, 0, 1, 3, 2, 0, 3], [0, 0, 1, 1, 2, 2, 3], [2, 1, 1])
    assert given.classes_seen == 4
    assert given.accuracy == pytest.approx(5 / 7)
    assert given.base_accuracy == pytest.approx(3 / 4)
    assert given.old_accuracy == pytest.approx(4 / 6)
    assert given.new_accuracy == 1
    assert given.task_accuracies == (3 / 4, 1 / 2, 1)


def test_after_the_base_task_there_is_no_old_accuracy() -> None:
    given = step([0, 1], [0, 0], [2])
    assert math.isnan(given.old_accuracy)
    assert given.accuracy == given.base_accuracy == given.new_accuracy == 1 / 2


def test_average_accuracy_and_forgetting_of_a_run() -> None:
    steps = [
        step([0, 0, 1, 1], [0, 0, 1, 1], [2]),
        step([0, 2, 2, 2, 2, 2], [0, 0, 1, 1, 2, 2], [2, 1]),
        step([0, 0, 2, 3, 3, 2, 3, 0], [0, 0, 1, 1, 2, 2, 3, 3], [2, 1, 1]),
    ]
    assert average_incremental_accuracy(steps) == pytest.approx((1 + 1 / 2 + 1 / 2) / 3)
    expected = [[1, np.nan, np.nan], [1 / 4, 1, np.nan], [1 / 2, 1 / 2, 1 / 2]]
    np.testing.assert_array_equal(accuracy_matrix(steps), expected)
    # The base fell from 1 to 1/2, the second task from 1 to 1/2.
    assert forgetting(steps) == pytest.approx(1 / 2)
    assert math.isnan(forgetting(steps[:1]))


def test_a_class_without_test_images_has_no_accuracy() -> None:
    steps = [step([0], [0], [1]), step([1], [0], [1, 1]), step([1, 2], [0, 2], [1, 1, 1])]
    assert math.isnan(steps[1].new_accuracy)
    assert forgetting(steps) == 1  # of the base alone


def test_wrong_shapes_and_labels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \[1\] for labels of shape \[2\]"):
        confusion_matrix([0], [0, 1], 2)
    with pytest.raises(ValueError, match="prediction 2 is not one of the 2"):
        confusion_matrix([2], [0], 2)
    with pytest.raises(ValueError, match="label -1 is not one of the 2"):
        confusion_matrix([0], [-1], 2)
    with pytest.raises(ValueError, match=r"\[2, 2\] for 3 classes"):
        step_metrics(confusion_matrix([0], [0], 2), [2, 1])
