"""Measure how fast a model predicts a folder, compared with its network alone.

Trains a model of 10 classes of generated images, ResNet-20 at 32 x 32. Then two things take turns:
prediction of a folder of PNG files, decoding included, and the bare forward pass on the same images
in memory, batch by batch. Prints medians over rounds, and of their ratio.

    python benchmarks/predict_speed.py [--images 1000] [--rounds 7]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import track

from densekd.model.options import TeachOptions
from densekd.model.predict import image_files, predict_files
from densekd.model.teach import teach_model
from densekd.model.trained import TrainedModel

CLASSES, SIZE, BATCH = 10, 32, 64


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def write(folder: Path, per_class: int) -> None:
    """Write noise in one colour per class: as much to decode as a photo."""
    source = np.random.default_rng(0)
    for label in range(CLASSES):
        (folder / str(label)).mkdir(parents=True)
        for number in range(per_class):
            pixels = source.integers(0, 128, (SIZE, SIZE, 3)) + 12 * label
            Image.fromarray(pixels.astype(np.uint8)).save(folder / str(label) / f"{number}.png")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        write(Path(place, "few"), 5)
        write(Path(place, "many"), given.images // CLASSES)
        teach_model(
            Path(place, "model"), Path(place, "few"), TeachOptions(network="resnet20", epochs=1)
        )
        model, files = TrainedModel.open(Path(place, "model")), image_files(Path(place, "many"))
        engine, network = model.learner.settings.engine, model.learner.network.eval()
        normalised = model.learner.settings.augment.normalise(model.read(files).to(engine.device))
        batches = [engine.lay_out(batch) for batch in normalised.split(BATCH)]

        def bare() -> None:
            with torch.inference_mode(), engine.autocast():
                for batch in batches:
                    network(batch).logits.cpu()

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
