"""From a configuration to what it stands for: the only such place."""

import dataclasses

import torch

from densekd.data.augment import Augment
from densekd.data.dataset import Dataset, Progress
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario
from densekd.data.sources import SourceOptions, load
from densekd.data.split import first_of_each
from densekd.experiment.compression import CompressionConfig
from densekd.experiment.config import Config
from densekd.learn.engine import Engine
from densekd.learn.learner import Learner, Settings
from densekd.methods.method import Method
from densekd.nn.catalog import make_backbone as make_backbone
from densekd.nn.network import Backbone
from densekd.nn.pretrained import own_statistics
from densekd.seeds import Seeds


def make_scenario(config: Config, on_progress: Progress | None = None) -> Scenario:
    """Read the data, and divide its classes into tasks."""
    scenario = config.scenario
    return Scenario.of(
        make_dataset(config, on_progress),
        steps=scenario.steps,
        base=scenario.base,
        increment=scenario.increment,
        equal=scenario.equal,
        order=scenario.order,
    )


def make_whole(config: CompressionConfig, on_progress: Progress | None = None) -> Scenario:
    """Read the data as one task of all classes, in the order that groups are blocks of."""
    dataset = make_dataset(config, on_progress)
    return Scenario.of(dataset, base=len(dataset.classes), steps=0, order=config.order)


def make_dataset(
    config: Config | CompressionConfig, on_progress: Progress | None = None
) -> Dataset:
    """Read the data."""
    data = config.data
    options = SourceOptions(
        data_dir=data.dir,
        image_size=data.image_size,
        classes_file=data.classes_file,
        seed=config.seed,
        image_column=data.image_column,
        label_column=data.label_column,
    )
    dataset = load(data.source, options, on_progress=on_progress)
    return dataset if data.per_class is None else fewer(dataset, data.per_class)


def fewer(dataset: Dataset, per_class: int) -> Dataset:
    """The data set with the first ``per_class`` training images of each class."""
    return dataclasses.replace(dataset, train=first_of_each(dataset.train, per_class))


def make_engine(config: Config | CompressionConfig) -> Engine:
    """Where it is computed."""
    engine = config.engine
    return Engine(engine.accelerator, engine.devices, engine.precision)


def make_learner(config: Config, dataset: Dataset, engine: Engine) -> Learner:
    """A learner that has learned nothing yet; its weights are drawn from the seed."""
    backbone = _drawn(config.network, config.seed)
    method = config.method.make(config.course())
    quota = Quota(config.memory.per_class, config.memory.total)
    memory = ExemplarMemory(quota, config.memory.selection)
    return Learner(backbone, method, memory, _settings(config, dataset, backbone, engine))


def make_pupil(
    config: CompressionConfig, network: str, method: Method, dataset: Dataset, engine: Engine
) -> Learner:
    """A teacher or student that has learned nothing yet, and that will keep no exemplars."""
    backbone = _drawn(network, config.seed)
    settings = _settings(config, dataset, backbone, engine)
    return Learner(backbone, method, ExemplarMemory(Quota(0)), settings)


def _drawn(network: str, seed: int) -> Backbone:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Seeds(seed).number("init"))
        return make_backbone(network)


def _settings(
    config: Config | CompressionConfig, dataset: Dataset, backbone: Backbone, engine: Engine
) -> Settings:
    mean, std = own_statistics(backbone) or (dataset.mean, dataset.std)
    augment = Augment(
        mean,
        std,
        padding=config.augment.padding,
        flip=config.augment.flip,
        brightness=config.augment.brightness,
    )
    return Settings(augment, config.seed, engine, config.engine.workers, even=config.data.even)
