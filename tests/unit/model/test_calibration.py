import pytest
import torch

from densekd.model.calibration import (
    calibration_error,
    class_changes,
    fit_temperature,
    split_accuracy,
)
from densekd.model.store import Accuracy, ClassChange


def drawn(count: int, classes: int, sharpness: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores that are too sharp by a factor, and labels drawn by what they should say."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(count, classes, generator=generator) * 2
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).flatten()
    return logits * sharpness, labels


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 4.0])
def test_the_temperature_corrects_overconfidence(sharpness: float) -> None:
    scores, labels = drawn(20_000, 5, sharpness)
    temperature = fit_temperature(scores, labels)
    assert temperature == pytest.approx(sharpness, rel=0.05)
    error = calibration_error((scores / temperature).softmax(1), labels)
    assert error is not None
    assert error < 0.02
    before = calibration_error(scores.softmax(1), labels)
    assert before is not None
    assert sharpness == 1.0 or before > 5 * error


def test_few_correct_images_give_no_certainty() -> None:
    scores = torch.eye(3) * 10
    sure = []
    for count in (1, 3, 30):
        labels = torch.arange(count) % 3
        temperature = fit_temperature(scores[labels], labels)
        sure.append(float((scores / temperature).softmax(1).max()))
    # Platt's (n + 1) / (n + 2).
    assert sure == pytest.approx([2 / 3, 4 / 5, 31 / 32], abs=1e-3)


def test_without_images_the_temperature_is_one() -> None:
    assert fit_temperature(torch.zeros(0, 4), torch.zeros(0).long()) == 1.0
    assert fit_temperature(torch.zeros(5, 1), torch.zeros(5).long()) == 1.0
    assert calibration_error(torch.zeros(0, 4), torch.zeros(0).long()) is None


def test_the_calibration_error_of_a_small_example() -> None:
    shares = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.4, 0.6]])
    labels = torch.tensor([0, 1, 0, 1])
    # Two at 0.9 of which one is right, two at 0.6 that are both right.
    expected = (abs(1 - 1.8) + abs(2 - 1.2)) / 4
    assert calibration_error(shares, labels) == pytest.approx(expected)


def test_accuracy_of_new_and_old_classes() -> None:
    labels = torch.tensor([0, 0, 1, 2, 2, 2, 2])
    named = torch.tensor([True, False, True, False, False, False, True])
    assert split_accuracy(named, labels, known=2) == Accuracy(new=1 / 4, old=2 / 3, all=3 / 7)
    assert split_accuracy(named, labels, known=0) == Accuracy(new=3 / 7, old=None, all=3 / 7)


def test_accuracy_of_each_class_before_and_after() -> None:
    labels = torch.tensor([0, 0, 1, 2, 2, 2, 2])
    after = torch.tensor([True, False, True, False, False, False, True])
    before = torch.tensor([True, True, False, False, False, False, False])
    assert class_changes(["a", "b", "c", "d"], labels, before, after, known=2) == (
        ClassChange("a", 2, 1.0, 0.5),
        ClassChange("b", 1, 0.0, 1.0),
        ClassChange("c", 4, None, 0.25),
        ClassChange("d", 0, None, None),
    )
    assert class_changes(["a"], labels[:2], None, after[:2], known=0) == (
        ClassChange("a", 2, None, 0.5),
    )
