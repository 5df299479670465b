import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from densekd.data.augment import Augment
from densekd.data.dataset import Dataset, PixelImages, Split, join_splits
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario, Task
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.methods.schedule import Schedule, Schedules
from densekd.nn.network import Features
from densekd.training.engine import Engine
from densekd.training.evaluate import evaluate, forward_transfer, restrict_to_task
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


def test_scores_restricted_to_a_task_keep_its_own_alone() -> None:
    scores = torch.tensor([[0.1, 0.2, 0.9], [0.8, 0.3, 0.2]])
    found = restrict_to_task(scores, torch.tensor([1, 2]), [2, 1])
    out = -torch.inf
    assert torch.equal(found, torch.tensor([[0.1, 0.2, out], [out, out, 0.2]]))


@pytest.mark.parametrize("predicts", ["head", "nearest-mean"])
def test_predictions_within_the_task_come_from_the_scores_of_the_method(predicts: str) -> None:
    each, test = learned(), join_splits([task.test for task in scenario()])
    each.method = replace(each.method, predicts=predicts)  # type: ignore[arg-type]
    scores, labels = each.scores(test.images), test.labels.tolist()
    guesses = []
    for row, label in zip(scores.tolist(), labels, strict=True):
        task = range(4) if label < 4 else range(4, 6)  # the classes of the base, and of the rest
        guesses.append(max(task, key=row.__getitem__))
    found = evaluate(each, test)
    assert found.within_task is not None
    assert found.within_task.tolist() == counted(guesses, labels)
    # It knows more than the one that must choose among all classes.
    assert found.within_task.trace() > found.by(each.method.predicts).trace()


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


def nearest_class(each: Learner, task: Task) -> float:
    """The accuracy by the nearest mean of unit features, computed one image after the other."""
    train, test = (array(each.infer(x.images).features) for x in (task.train, task.test))
    unit = train / np.linalg.norm(train, axis=1, keepdims=True)
    names = range(task.first, task.first + len(task.classes))
    means = np.stack([unit[task.train.labels.numpy() == name].mean(0) for name in names])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    guesses = [names[int((means @ row).argmax())] for row in test]
    return float(np.mean(np.array(guesses) == task.test.labels.numpy()))


def test_forward_transfer_compares_features_before_the_task_with_untrained_ones() -> None:
    first, task = scenario()
    each, untrained = learner(), learner()
    each.learn(first)
    untrained.network.grow(4)  # only so that `infer` has logits
    wanted = nearest_class(each, task) - nearest_class(untrained, task)
    state = {name: x.clone() for name, x in each.network.state_dict().items()}
    found = forward_transfer(each, untrained.network, task)
    assert found == pytest.approx(wanted)
    assert found != 0
    assert forward_transfer(untrained, untrained.network, task) == 0
    # It changes nothing.
    assert all(torch.equal(x, state[name]) for name, x in each.network.state_dict().items())
    empty = replace(task, test=task.test.take(torch.arange(0)))
    assert math.isnan(forward_transfer(each, untrained.network, empty))
    # Among one class, every prediction is right.
    names = [["class 0", "class 1", "class 2", "class 3"], ["class 4"], ["class 5"]]
    single = Scenario.of_names(scenario().dataset, names)[1]
    assert math.isnan(forward_transfer(each, untrained.network, single))
