"""Measure how fast a model predicts a folder, compared with its network alone.

    python benchmarks/predict_speed.py [--images 1000] [--rounds 7]
    python benchmarks/predict_speed.py --photos FOLDER [--images 1000] [--rounds 7]

The first trains a model of 10 classes of generated images, ResNet-20 at 32 x 32. The second teaches
the default model, on a frozen backbone, 5 photos of each class of a folder that has a sub-folder
for each, and predicts its photos. Then two things take turns: prediction of the files, decoding
included, and the bare forward pass on the same images in memory, in as many threads. Prints medians
over rounds, and of their ratio.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import seconds, taught_model
from PIL import Image
from rich.console import Console
from rich.progress import track

from densekd.model.frozen.backbone import BATCH
from densekd.model.frozen.model import FrozenModel
from densekd.model.model import Model
from densekd.model.options import TeachOptions
from densekd.model.parallel import map_batches
from densekd.model.predict import image_files, predict_files
from densekd.model.teach import teach_model
from densekd.model.trained.model import TrainedModel

CLASSES, SIZE, IN_MEMORY = 10, 32, 64


# A model, files to predict, and the forward pass of its network alone on them.
Measured = tuple[Model, list[Path], Callable[[], None]]


def write(folder: Path, per_class: int) -> None:
    """Write noise in one colour per class: as much to decode as a photo."""
    source = np.random.default_rng(0)
    for label in range(CLASSES):
        (folder / str(label)).mkdir(parents=True)
        for number in range(per_class):
            pixels = source.integers(0, 128, (SIZE, SIZE, 3)) + 12 * label
            Image.fromarray(pixels.astype(np.uint8)).save(folder / str(label) / f"{number}.png")


def trained(place: Path, images: int) -> Measured:
    """A network that was trained, on generated images."""
    write(place / "few", 5)
    write(place / "many", images // CLASSES)
    teach_model(place / "model", place / "few", TeachOptions(network="resnet20", epochs=1))
    model, files = TrainedModel.open(place / "model"), image_files(place / "many")
    engine, network = model.learner.settings.engine, model.learner.network.eval()
    normalised = model.learner.settings.augment.normalise(model.read(files).to(engine.device))
    batches = [engine.lay_out(batch) for batch in normalised.split(IN_MEMORY)]

    def bare() -> None:
        with torch.inference_mode(), engine.autocast():
            for batch in batches:
                network(batch).logits.cpu()

    return model, files, bare


def frozen(place: Path, photos: Path, images: int) -> Measured:
    """A frozen backbone, on photos."""
    model, files = FrozenModel.open(taught_model(photos, place)), image_files(photos)[:images]
    batches = model.read(files).split(BATCH)

    def bare() -> None:
        list(map_batches(model.backbone.features, batches))

    return model, files, bare


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--photos", type=Path, help="folder with a sub-folder for each class")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        chosen = given.photos and frozen(place, given.photos, given.images)
        model, files, bare = chosen or trained(place, given.images)

        def whole() -> None:
            assert len(list(predict_files(model, files))) == len(files)

        bare()
        whole()
        times = [
            (seconds(whole), seconds(bare))
            for _ in track(range(given.rounds), console=Console(stderr=True))
        ]
    speeds = [len(files) / statistics.median(each) for each in zip(*times, strict=True)]
    share = statistics.median(alone / with_files for with_files, alone in times)
    print(f"{len(files)} images, {torch.get_num_threads()} threads")
    print(f"folder {speeds[0]:.0f} images/s, bare forward {speeds[1]:.0f} images/s: {share:.2f}")


if __name__ == "__main__":
    main()
