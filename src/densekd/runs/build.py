"""Build data, network, method and learner from a configuration."""

import dataclasses

from densekd.config.schema import CommonConfig, Config
from densekd.data.augment import Augment
from densekd.data.dataset import Channels, Dataset, OnProgress
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario
from densekd.data.selection import selection_of
from densekd.data.sources import SourceOptions, load
from densekd.data.stratify import first_of_each, stratified_split
from densekd.nn.network import Backbone, own_statistics
from densekd.training.engine import Engine
from densekd.training.learner import Learner, Settings
from densekd.training.settings import draw_backbone

# Mean and standard deviation of the channels, by which images are normalised.
Normalisation = tuple[Channels, Channels]


def make_scenario(config: Config, on_progress: OnProgress | None = None) -> Scenario:
    """Load the data, hold out validation images, and divide the classes into tasks."""
    whole = load_dataset(config, on_progress)
    protocol = dict(vars(config.scenario))
    first, tasks = protocol.pop("first"), protocol.pop("tasks")
    # From the whole data set, because the order ``icarl`` depends on the number of images.
    if tasks is None:
        scenario = Scenario.of(whole, **protocol)
    else:
        scenario = Scenario.of_tasks(whole, tasks, config.scenario.order)
    dataset = limit_per_class(whole, config.data.per_class, config.data.test_per_class)
    if share := config.data.validation:
        # Seed and class alone decide which images are held out, so runs with other methods,
        # tasks or orders hold out the same ones.
        train, held = stratified_split(dataset.train, share, config.seed, stream="validation")
        dataset = dataclasses.replace(dataset, train=train, validation=held)
    return dataclasses.replace(scenario, dataset=dataset, first=first)


def load_dataset(config: CommonConfig, on_progress: OnProgress | None) -> Dataset:
    """Load the data set, with all images of each class."""
    data = config.data
    options = SourceOptions(
        data_dir=data.dir,
        image_size=data.image_size,
        classes_file=data.classes_file,
        seed=config.seed,
        image_column=data.image_column,
        label_column=data.label_column,
        # Images in memory are cut to their centre, but a resized crop can be anywhere in an image.
        memory_bytes=0 if config.augment.crop == "resized" else None,
    )
    return load(data.source, options, on_progress=on_progress)


def limit_per_class(
    dataset: Dataset, per_class: int | None = None, test_per_class: int | None = None
) -> Dataset:
    """Keep the first ``per_class`` training and ``test_per_class`` test images of each class."""
    if per_class is not None:
        dataset = dataclasses.replace(dataset, train=first_of_each(dataset.train, per_class))
    if test_per_class is not None:
        dataset = dataclasses.replace(dataset, test=first_of_each(dataset.test, test_per_class))
    return dataset


def make_engine(config: CommonConfig) -> Engine:
    """Set up device, precision and ranks."""
    chosen = config.engine
    return Engine(
        chosen.accelerator, chosen.devices, chosen.precision, chosen.nodes, chosen.compile
    )


def make_learner(
    config: Config,
    normalisation: Normalisation,
    engine: Engine,
    size: tuple[int, int] | None = None,
) -> Learner:
    """Make an untrained learner; weights that aren't pretrained are drawn from the seed.

    ``size`` is the height and width of the images, at which a custom network is tried.
    """
    backbone = draw_backbone(config.network, config.seed, size)
    method = config.make_method()
    quota = Quota(config.memory.per_class, config.memory.total)
    memory = ExemplarMemory(quota, selection_of(config.memory.selection))
    return Learner(backbone, method, memory, make_settings(config, normalisation, backbone, engine))


def make_settings(
    config: CommonConfig, normalisation: Normalisation, backbone: Backbone, engine: Engine
) -> Settings:
    """Make the settings that a learner needs besides network, method and memory."""
    mean, std = own_statistics(backbone) or normalisation
    return Settings(
        Augment(mean, std, **vars(config.augment)),
        config.seed,
        engine,
        config.engine.workers,
        oversample_rare=config.data.oversample_rare,
    )
