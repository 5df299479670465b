"""Processor time of inference by batch size, and whether it changes a bit of the logits."""

import statistics
import time
from unittest import mock

import torch

from densekd.data.augment import Augment
from densekd.data.batches import in_order
from densekd.data.dataset import PixelImages, Split
from densekd.nn.classifier import LinearClassifier
from densekd.nn.network import Network
from densekd.nn.registry import make_backbone
from densekd.training import inference
from densekd.training.engine import Engine
from densekd.training.settings import Settings

SIZES, ROUNDS, IMAGES = (256, 128, 64, 32), 5, 1024


def main() -> None:
    """Print a line for each batch size, relative to the first; rounds take turns."""
    torch.manual_seed(0)
    backbone = make_backbone("resnet32")
    network = Network(backbone, LinearClassifier(backbone.width))
    network.grow(100)
    engine = Engine("cpu", precision="32")
    engine.place(network)
    settings = Settings(Augment((0.5,) * 3, (0.25,) * 3), 1, engine)
    images = PixelImages(torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8))
    data = Split(images, torch.zeros(IMAGES, dtype=torch.int64))
    times: dict[int, list[float]] = {size: [] for size in SIZES}
    logits, reading = {}, []
    for _ in range(ROUNDS):
        for size in SIZES:
            began = time.process_time()
            with mock.patch.object(inference, "batch_size", return_value=size):
                logits[size] = inference.infer(network, images, settings).logits
            times[size].append(time.process_time() - began)
        began = time.process_time()
        for _batch in in_order(data, SIZES[0], settings.augment):
            pass
        reading.append(time.process_time() - began)
    first = statistics.median(times[SIZES[0]])
    for size in SIZES:
        same = "same bits" if torch.equal(logits[size], logits[SIZES[0]]) else "other bits"
        print(f"{size:4}: {statistics.median(times[size]) / first:.2f} of the time, {same}")
    print(f"reading and normalising alone: {statistics.median(reading) / first:.3f} of the time")


if __name__ == "__main__":
    main()
