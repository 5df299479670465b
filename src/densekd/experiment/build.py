"""From a configuration to what it stands for: the only such place."""

import re

import torch

from densekd.data.augment import Augment
from densekd.data.dataset import Dataset, Progress, Split
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario
from densekd.data.sources import SourceOptions, load
from densekd.experiment.config import Config
from densekd.learn.engine import Engine
from densekd.learn.learner import Learner, Settings
from densekd.nn.network import Backbone
from densekd.nn.podnet import podnet_resnet, podnet_resnet18
from densekd.nn.resnet import cifar_resnet, resnet18
from densekd.nn.wideresnet import WideResNet
from densekd.seeds import Seeds

NETWORKS = (
    "resnet20, resnet32, ... and wrn-40-4, ... for small images, resnet18 for large, and PODNet's "
    "own, podnet32 and podnet18"
)


def make_scenario(config: Config, on_progress: Progress | None = None) -> Scenario:
    """Read the data, and divide its classes into tasks."""
    data, scenario = config.data, config.scenario
    options = SourceOptions(
        data_dir=data.dir,
        image_size=data.image_size,
        classes_file=data.classes_file,
        seed=config.seed,
        image_column=data.image_column,
        label_column=data.label_column,
    )
    dataset = load(data.source, options, on_progress=on_progress)
    if data.per_class is not None:
        dataset = fewer(dataset, data.per_class)
    return Scenario.of(
        dataset,
        steps=scenario.steps,
        base=scenario.base,
        increment=scenario.increment,
        equal=scenario.equal,
        order=scenario.order,
    )


def fewer(dataset: Dataset, per_class: int) -> Dataset:
    """The data set with the first ``per_class`` training images of each class."""
    labels = dataset.train.labels
    ranks = torch.empty_like(labels)
    for label in range(len(dataset.classes)):
        own = labels == label
        ranks[own] = torch.arange(int(own.sum()))
    train: Split = dataset.train.take(torch.nonzero(ranks < per_class).flatten())
    parts = dataset.name, dataset.classes, train, dataset.test, dataset.mean, dataset.std
    return Dataset(*parts)


def make_engine(config: Config) -> Engine:
    """Where it is computed."""
    engine = config.engine
    return Engine(engine.accelerator, engine.devices, engine.precision)


def make_learner(config: Config, dataset: Dataset, engine: Engine) -> Learner:
    """A learner that has learned nothing yet; its weights are drawn from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Seeds(config.seed).number("init"))
        backbone = make_backbone(config.network)
    augment = Augment(
        dataset.mean,
        dataset.std,
        padding=config.augment.padding,
        flip=config.augment.flip,
        brightness=config.augment.brightness,
    )
    method = config.method.make(config.course())
    quota = Quota(config.memory.per_class, config.memory.total)
    memory = ExemplarMemory(quota, config.memory.selection)
    settings = Settings(augment, config.seed, engine, config.engine.workers)
    return Learner(backbone, method, memory, settings)


def make_backbone(name: str) -> Backbone:
    """The network of that name, such as ``resnet32``, ``resnet18`` or ``wrn-40-4``."""
    if name == "resnet18":
        return resnet18()
    if name == "podnet18":
        return podnet_resnet18()
    if found := re.fullmatch(r"podnet(\d+)", name):
        return podnet_resnet(int(found[1]))
    if found := re.fullmatch(r"resnet(\d+)", name):
        return cifar_resnet(int(found[1]))
    if found := re.fullmatch(r"wrn-(\d+)-(\d+)", name):
        return WideResNet(int(found[1]), int(found[2]))
    raise ValueError(f"There is no network {name!r}; there are {NETWORKS}.")
