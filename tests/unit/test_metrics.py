import math

import numpy as np
import pytest

from densekd.metrics import (
    StepMetrics,
    accuracy_matrix,
    average_incremental_accuracy,
    backward_transfer,
    confusion_matrix,
    forgetting,
    learning_accuracy,
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


def test_transfer_and_learning_accuracy_of_a_run_computed_by_hand() -> None:
    # Rows of A: 1; 1/4, 1; 1/2, 1/2, 1/2. The base first falls to 1/4, and rises to 1/2.
    steps = [
        step([0, 0, 1, 1], [0, 0, 1, 1], [2]),
        step([0, 2, 2, 2, 2, 2], [0, 0, 1, 1, 2, 2], [2, 1]),
        step([0, 0, 2, 3, 3, 2, 3, 0], [0, 0, 1, 1, 2, 2, 3, 3], [2, 1, 1]),
    ]
    assert backward_transfer(steps) == pytest.approx(((1 / 2 - 1) + (1 / 2 - 1)) / 2)
    assert backward_transfer(steps[:2]) == pytest.approx(1 / 4 - 1)
    assert math.isnan(backward_transfer(steps[:1]))
    assert learning_accuracy(steps) == pytest.approx((1 + 1 + 1 / 2) / 3)


def test_backward_transfer_differs_from_forgetting_if_a_task_was_better_later() -> None:
    # A task learned at 1/2 that rises to 1 and falls to 0 has lost 1, but 1/2 since it was learned.
    steps = [
        step([0, 1], [0, 0], [2]),
        step([0, 0, 2], [0, 0, 2], [2, 1]),
        step([3, 3, 2, 3], [0, 0, 2, 3], [2, 1, 1]),
    ]
    assert forgetting(steps) == pytest.approx((1 + 0) / 2)
    assert backward_transfer(steps) == pytest.approx((-1 / 2 + 0) / 2)


def test_means_over_tasks_and_classes_count_each_once() -> None:
    # Class 0 has three images, all right; class 1 one, wrong; class 2 (task 2) two, one right.
    given = step([0, 0, 0, 0, 2, 0], [0, 0, 0, 1, 2, 2], [2, 1])
    assert given.class_accuracies == (1, 0, 1 / 2)
    assert given.accuracy == pytest.approx(4 / 6)
    assert given.mean_task_accuracy == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert given.mean_class_accuracy == pytest.approx((1 + 0 + 1 / 2) / 3)
    first = step([0, 0, 1, 1], [0, 0, 0, 1], [2])
    average = average_incremental_accuracy([first, given], "mean_class_accuracy")
    assert average == pytest.approx(((2 / 3 + 1) / 2 + 1 / 2) / 2)


def test_task_incremental_accuracies_come_from_predictions_within_the_task() -> None:
    labels, sizes = [0, 1, 2, 2, 3], [2, 2]
    among_all = confusion_matrix([0, 2, 0, 0, 0], labels, 4)
    within = confusion_matrix([0, 1, 2, 3, 3], labels, 4)
    given = step_metrics(among_all, sizes, within)
    assert given.accuracy == pytest.approx(1 / 5)
    assert given.task_incremental_accuracy == pytest.approx(4 / 5)
    assert given.task_incremental_accuracies == (1, 2 / 3)
    unknown = step_metrics(among_all, sizes)
    assert math.isnan(unknown.task_incremental_accuracy)
    assert unknown.task_incremental_accuracies == ()
    with pytest.raises(ValueError, match=r"\[3, 3\] for 4 classes"):
        step_metrics(among_all, sizes, within[:3, :3])


def test_a_class_without_test_images_has_no_accuracy() -> None:
    steps = [step([0], [0], [1]), step([1], [0], [1, 1]), step([1, 2], [0, 2], [1, 1, 1])]
    assert math.isnan(steps[1].new_accuracy)
    assert forgetting(steps) == 1  # of the base alone
    assert backward_transfer(steps) == -1
    assert learning_accuracy(steps) == 1
    assert steps[1].mean_class_accuracy == steps[1].mean_task_accuracy == 0
    assert math.isnan(steps[1].class_accuracies[1])


def test_wrong_shapes_and_labels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \[1\] for labels of shape \[2\]"):
        confusion_matrix([0], [0, 1], 2)
    with pytest.raises(ValueError, match="prediction 2 is not one of the 2"):
        confusion_matrix([2], [0], 2)
    with pytest.raises(ValueError, match="label -1 is not one of the 2"):
        confusion_matrix([0], [-1], 2)
    with pytest.raises(ValueError, match=r"\[2, 2\] for 3 classes"):
        step_metrics(confusion_matrix([0], [0], 2), [2, 1])
