import numpy as np
import pytest
import torch
from torch import Tensor, nn

from densekd.data.augment import Augment
from densekd.data.dataset import Dataset, PixelImages, Split, join_splits
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.methods.schedule import Schedule, Schedules
from densekd.nn.network import Features
from densekd.training.engine import Engine
from densekd.training.evaluate import evaluate
from densekd.training.learner import Learner, Settings

import reference

CLASSES = 6


class Small(nn.Module):
    """A backbone that distinguishes mirror images."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 9
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(
                nn.Conv2d(3, 9, 3, 2, 1), nn.ReLU(), nn.Conv2d(9, 9, 4), nn.BatchNorm2d(9)
            )

    def forward(self, images: Tensor) -> Features:
        return Features(self.layers(images).flatten(1), ())


def noise(per_class: int, seed: int) -> Split:
    """One random picture per class under much noise; no picture is symmetric."""
    pictures = torch.rand(CLASSES, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(CLASSES * per_class) % CLASSES
    noisy = torch.rand(len(labels), 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    pixels = (255 * (pictures[labels] + noisy) / 2).to(torch.uint8)
    return Split(PixelImages(pixels), labels)


def scenario() -> Scenario:
    names = tuple(f"class {i}" for i in range(CLASSES))
    data = Dataset("noise", names, noise(8, 1), noise(7, 2), (0.5,) * 3, (0.25,) * 3)
    return Scenario.of(data, base=4, steps=1)


def learner(exemplars: int = 3, name: str = "finetune") -> Learner:
    schedule = Schedule(6, 0.05, batch_size=8)
    method = make_method(name, DenseOptions(), Schedules(schedule, schedule))
    settings = Settings(
        Augment((0.5,) * 3, (0.25,) * 3, padding=0), 1, Engine("cpu", precision="32")
    )
    return Learner(Small(), method, ExemplarMemory(Quota(exemplars)), settings)


def learned(exemplars: int = 3, name: str = "finetune") -> Learner:
    each = learner(exemplars, name)
    for task in scenario():
        each.learn(task)
    return each


def array(tensor: Tensor) -> reference.Array:
    return tensor.double().numpy()


def mirrored(split: Split) -> PixelImages:
    assert isinstance(split.images, PixelImages)
    return PixelImages(split.images.pixels.flip(-1))


def counted(guesses: list[int], labels: list[int]) -> list[list[int]]:
    matrix = [[0] * CLASSES for _ in range(CLASSES)]
    for guess, label in zip(guesses, labels, strict=True):
        matrix[label][guess] += 1
    return matrix


def test_both_confusion_matrices_match_the_definitions() -> None:
    each, test = learned(), join_splits([task.test for task in scenario()])
    exemplars, labels = each.memory.exemplars(), test.labels.tolist()
    seen = each.infer(test.images)
    means = reference.class_means(
        array(each.infer(exemplars.images).features),
        array(each.infer(mirrored(exemplars)).features),
        exemplars.labels.tolist(),
    )
    nearest = reference.nearest_mean(array(seen.features), means)
    most_likely = [max(range(CLASSES), key=row.__getitem__) for row in seen.logits.tolist()]
    found = evaluate(each, test)
    assert found.head.tolist() == counted(most_likely, labels)
    assert found.nearest_mean is not None
    assert found.nearest_mean.tolist() == counted(nearest, labels)
    # They are not one and the same, and neither knows nothing.
    assert most_likely != nearest
    for guesses in (most_likely, nearest):
        assert np.mean(np.array(guesses) == np.array(labels)) > 0.7


@pytest.mark.parametrize("name", ["finetune", "rdkd"])
def test_without_exemplars_there_is_no_nearest_mean(name: str) -> None:
    each, test = learned(exemplars=0, name=name), scenario()[0].test
    assert each.class_means() is None
    found = evaluate(each, test)
    assert found.nearest_mean is None
    assert found.head.sum(axis=1).tolist() == [7, 7, 7, 7, 0, 0]


def test_no_images_give_empty_matrices() -> None:
    test = scenario()[0].test
    found = evaluate(learned(), test.take(torch.arange(0)))
    assert not found.head.any()
    assert found.head.shape == (CLASSES, CLASSES)


def test_images_of_unknown_classes_are_refused() -> None:
    each = learner()
    each.learn(scenario()[0])
    with pytest.raises(ValueError, match=r"The label \d is not one of the 4 classes seen"):
        evaluate(each, scenario()[1].test)
