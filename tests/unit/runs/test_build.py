from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from densekd.config.schema import Config, resolve
from densekd.data.dataset import PixelImages
from densekd.data.scenario import icarl_order
from densekd.nn.classifier import CosineClassifier, LinearClassifier
from densekd.nn.registry import make_backbone
from densekd.runs.build import limit_per_class, make_engine, make_learner, make_scenario
from densekd.training.learner import Learner

from support.datasets import dataset


def settings(**tree: Any) -> Config:
    return resolve({"network": "resnet8", "engine": {"accelerator": "cpu"}, **tree})


def learner(**tree: Any) -> Learner:
    config = settings(**tree)
    return make_learner(config, (dataset().mean, dataset().std), make_engine(config))


@pytest.fixture
def npz(tmp_path: Path) -> str:
    """A source of eight classes with five images each; pixels are the class, one the image."""
    labels = np.arange(40) % 8
    pixels = np.broadcast_to(labels[:, None, None], (40, 8, 8)).astype(np.uint8)
    pixels[:, -1, -1] = np.arange(40)
    np.savez(tmp_path / "a.npz", train_x=pixels, train_y=labels, test_x=pixels, test_y=labels)
    return f"npz:{tmp_path / 'a.npz'}"


@pytest.mark.parametrize(
    ("scenario", "sizes"),
    [
        ({"steps": 2}, (4, 2, 2)),
        ({"steps": 3, "base": 2}, (2, 2, 2, 2)),
        ({"steps": None, "increment": 3, "base": 5}, (5, 3)),
        ({"steps": 3, "equal": True}, (2, 2, 2, 2)),
    ],
)
def test_the_classes_are_divided_as_was_said(
    scenario: dict[str, Any], sizes: tuple[int, ...], npz: str
) -> None:
    made = make_scenario(settings(data={"source": npz}, scenario=scenario))
    assert made.sizes == sizes


def test_the_classes_come_in_the_order_that_was_said(npz: str) -> None:
    def order(scenario: dict[str, Any], seed: int = 0) -> tuple[int, ...]:
        config = settings(data={"source": npz}, scenario={"steps": 2, **scenario}, seed=seed)
        return tuple(make_scenario(config).order)

    assert order({"order": "natural"}) == tuple(range(8))
    assert order({"order": 7}) != tuple(range(8))
    # The seed of a run is another one.
    assert order({"order": 7}) == order({"order": 7}, seed=1) != order({"order": 8})


def test_fewer_images_are_the_first_of_each_class(npz: str) -> None:
    whole = dataset(classes=4, per_class=6, test=3)
    less = limit_per_class(whole, 2)
    assert less.train.labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert isinstance(less.train.images, PixelImages)
    assert less.train.images.pixels[:, 1, 0, 0].tolist() == [0] * 4 + [1] * 4
    assert less.test is whole.test
    assert (less.name, less.classes) == (whole.name, whole.classes)
    assert (less.mean, less.std) == (whole.mean, whole.std)
    first, _ = make_scenario(
        settings(data={"source": npz, "per_class": 3}, scenario={"steps": 1, "base": 4})
    )
    assert first.train.labels.bincount().tolist() == [3, 3, 3, 3]
    assert first.test.labels.bincount().tolist() == [5, 5, 5, 5]


def test_test_images_can_be_capped(npz: str) -> None:
    capped = make_scenario(
        settings(data={"source": npz, "test_per_class": 1}, scenario={"tasks": [4, 1, 3]})
    )
    assert [len(task.classes) for task in capped] == [4, 1, 3]
    whole = make_scenario(settings(data={"source": npz}, scenario={"tasks": [4, 1, 3]}))
    for task, every in zip(capped, whole, strict=True):
        labels = range(task.first, task.first + len(task.classes))
        assert sorted(task.test.labels.tolist()) == list(labels)
        assert torch.equal(task.train.labels, every.train.labels)


def test_fewer_images_than_there_are_leave_a_small_class_as_it_is() -> None:
    whole = dataset(classes=2, per_class=3)
    uneven = limit_per_class(whole, 100)
    assert torch.equal(uneven.train.labels, whole.train.labels)
    rows = torch.tensor([0, 1, 2, 4])
    parts = whole.name, whole.classes, whole.train.take(rows), whole.test, whole.mean, whole.std
    assert limit_per_class(type(whole)(*parts), 2).train.labels.tolist() == [0, 1, 0]


def test_validation_images_are_the_same_whatever_the_tasks(npz: str) -> None:
    def held(**changes: Any) -> list[tuple[str, Any]]:
        data = {"source": npz, "validation": 0.4}
        scenario = make_scenario(settings(data=data, **changes))
        assert [len(task.train) for task in scenario] == [3 * len(t.classes) for t in scenario]
        found = []
        for task in scenario:
            assert task.validation is not None
            assert isinstance(task.validation.images, PixelImages)
            names = [scenario.classes[label] for label in task.validation.labels.tolist()]
            found += list(
                zip(names, task.validation.images.pixels.flatten(1).tolist(), strict=True)
            )
        return sorted(found)

    usual = held(scenario={"steps": 2})
    assert len(usual) == 16
    assert held(scenario={"steps": 4, "order": "natural"}) == usual
    assert held(scenario={"steps": 2}, method={"name": "icarl"}, memory={"total": 9}) == usual
    assert held(scenario={"steps": 2}, seed=3) != usual


def test_without_validation_there_is_none(npz: str) -> None:
    scenario = make_scenario(settings(data={"source": npz}, scenario={"steps": 2, "first": 2}))
    assert [task.validation for task in scenario] == [None, None]
    assert sum(len(task.train) for task in scenario) == 6 * 5


def test_weights_are_drawn_from_the_seed_and_nothing_else() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = learner(seed=1).network.state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again = learner(seed=1, method={"name": "finetune"}).network.state_dict()
    other = learner(seed=2).network.state_dict()
    assert one.keys() == again.keys() == other.keys()
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_a_learner_is_what_the_settings_say() -> None:
    made = learner(
        seed=9,
        method={"name": "tkd", "options": {"head": "linear", "lambda_base": 7.0}},
        memory={"total": 30, "selection": "herding"},
        augment={"padding": 3, "flip": True, "brightness": 0.25},
        engine={"accelerator": "cpu", "precision": "bf16", "workers": 2},
    )
    assert made.method.name == "tkd"
    assert isinstance(made.network.classifier, LinearClassifier)
    assert made.memory.quota.of(3) == 10
    assert made.memory.selection == "herding"
    assert made.settings.seed == 9
    assert made.settings.workers == 2
    assert made.settings.engine.precision == "bf16"
    augment = made.settings.augment
    assert (augment.padding, augment.flip, augment.brightness) == (3, True, 0.25)
    assert isinstance(learner().network.classifier, CosineClassifier)


def test_schedules_are_shortened_by_epochs() -> None:
    training = {"base": {"epochs": 20}, "increment": {"epochs": 10}}
    method = learner(epochs=4, training=training).method
    assert [phase.schedule.epochs for phase in (*method.base, *method.increment)] == [4, 2]


@pytest.mark.parametrize(
    ("name", "width", "convolutions"),
    [
        ("resnet8", 64, 7),
        ("resnet32", 64, 31),
        ("resnet18", 512, 17),
        ("podnet32", 64, 31),
        ("podnet18", 512, 17),
        ("ucir18", 512, 17),
        ("wrn-10-2", 128, 7),
    ],
)
def test_a_network_is_known_by_its_name(name: str, width: int, convolutions: int) -> None:
    backbone = make_backbone(name)
    assert backbone.width == width
    assert isinstance(backbone, torch.nn.Module)
    layers = [layer for layer in backbone.modules() if isinstance(layer, torch.nn.Conv2d)]
    # Those of 1 x 1 pixels are in shortcuts, which don't count.
    assert sum(layer.kernel_size != (1, 1) for layer in layers) == convolutions


@pytest.mark.parametrize("name", ["", "resnet", "Resnet32", "resnet32x", "wrn-40", "vgg16"])
def test_an_unknown_network_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"There is no network '{name}'.*resnet20"):
        make_backbone(name)


@pytest.mark.parametrize("name", ["resnet9", "podnet9", "wrn-11-2"])
def test_an_impossible_depth_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="depths are "):
        make_backbone(name)


def test_icarls_order_is_that_of_the_whole_data_set(npz: str) -> None:
    def order(**data: Any) -> tuple[int, ...]:
        tree = {"scenario": {"steps": 2, "order": "icarl"}, "data": {"source": npz, **data}}
        return tuple(make_scenario(settings(**tree)).order)

    whole = order()
    assert whole == tuple(icarl_order([5] * 8)) != tuple(icarl_order([3] * 8))
    assert order(per_class=3) == order(validation=0.4) == order(test_per_class=1) == whole
