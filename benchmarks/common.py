"""What benchmarks share: times, photos in folders, how a model predicts them, a network."""

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from densekd.model.frozen.model import FrozenModel
from densekd.model.options import TeachOptions
from densekd.model.predict import image_files
from densekd.model.teach import teach_model
from densekd.nn.classifier import CosineClassifier
from densekd.nn.network import Network
from densekd.nn.resnet import cifar_resnet

Photos = Mapping[str, list[Path]]  # the files of each class


def seconds(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    action()
    return clock() - start


def photos_in(folder: Path, most: int | None = None) -> Photos:
    """The photos in each sub-folder, at most so many of each."""
    classes = sorted(each for each in folder.iterdir() if each.is_dir())
    return {each.name: image_files(each)[:most] for each in classes}


def copy_photos(photos: Photos, to: Path) -> Path:
    """Make a folder with a sub-folder of photos for each class."""
    for name, files in photos.items():
        (to / name).mkdir(parents=True)
        for file in files:
            shutil.copy(file, to / name)
    return to


def taught_model(photos: Path, place: Path) -> Path:
    """Teach a model on the default backbone the first five photos of each class."""
    few = copy_photos(photos_in(photos, 5), place / "few")
    teach_model(place / "model", few, TeachOptions())
    return place / "model"


def predicted_right(model: Path, photos: Photos) -> dict[str, list[bool]]:
    """Whether a model predicts the class of each photo, by class."""
    opened = FrozenModel.open(model)
    return {
        name: [guesses[0].name == name for guesses in opened.predict(files)]
        for name, files in photos.items()
    }


def percent(right: Mapping[str, list[bool]], names: Iterable[str]) -> str:
    """The share of right predictions among the photos of some classes."""
    found = [each for name in names for each in right[name]]
    return f"{100 * sum(found) / len(found):.1f}"


def resnet32(task_sizes: Iterable[int]) -> Network:
    network = Network(cifar_resnet(32), CosineClassifier(64))
    for size in task_sizes:
        network.grow(size)
    return network
