"""The paper's protocols on the real CIFAR-100."""

import pytest
import torch

from densekd.data.dataset import Dataset
from densekd.data.scenario import Scenario


@pytest.mark.parametrize("steps", [5, 10, 25, 50])
def test_the_protocols_partition_the_real_classes(cifar100: Dataset, steps: int) -> None:
    scenario = Scenario.of(cifar100, steps=steps, order=1993)
    assert scenario.sizes == (50, *[50 // steps] * steps)
    assert sorted(scenario.classes) == sorted(cifar100.classes)
    first = [68, 56, 78, 8, 23, 84, 90, 65, 74, 76, 40, 89, 3, 92, 55, 9, 26, 80, 43, 38]
    assert list(scenario.order[:20]) == first
    assert scenario.classes[:3] == ("road", "palm_tree", "snake")
    for task in scenario:
        last = task.first + len(task.classes)
        for split, each in ((task.train, 500), (task.test, 100)):
            counts = torch.bincount(split.labels, minlength=last)[task.first :]
            assert counts.tolist() == [each] * len(task.classes)
            assert len(split) == each * len(task.classes)


def test_icarls_order_follows_from_the_real_counts(cifar100: Dataset) -> None:
    scenario = Scenario.of(cifar100, steps=5, order="icarl")
    assert list(scenario.order[:10]) == [87, 0, 52, 58, 44, 91, 68, 97, 51, 15]
