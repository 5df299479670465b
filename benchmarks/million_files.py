"""Measure time and memory of a data set as large as ImageNet, in files and packed.

`make` writes 1,000 classes of 1,281 training and 50 test images of 16 x 16 pixels; the files of a
class are links to one, so they take no space. `densekd data pack` packs them. `measure` loads a
source, makes the scenario of T = 10 and reads the first batch of its base task, as `densekd run`
does; with --exemplars it also samples and herds 20 exemplars of each class, and saves them.

    python benchmarks/million_files.py make FOLDER
    densekd data pack imagenet:FOLDER FILE --shorter-side 0
    python benchmarks/million_files.py measure imagenet:FOLDER [--exemplars]
    python benchmarks/million_files.py measure packed:FILE [--exemplars]

Seconds are those of the clock and, in brackets, of the processor, since the program began; the
memory is the peak so far, in which pages of a mapped file count once they were read.
"""

import argparse
import io
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES, TRAIN, TEST = 1000, 1281, 50
FEATURES = 64  # ResNet-18 has 512, which would measure the features more than the herding


def make(folder: Path, classes: int) -> None:
    """Write the tree; links of a class lead to one file of its own."""
    for label in range(classes):
        pixels = np.random.default_rng(label).integers(0, 256, (16, 16, 3), np.uint8)
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "JPEG", quality=50)
        for part, count in (("train", TRAIN), ("val", TEST)):
            inside = folder / part / f"n{label:08}"
            inside.mkdir(parents=True)
            first = inside / f"n{label:08}_0.JPEG"
            first.write_bytes(out.getvalue())
            for i in range(1, count):
                os.link(first, inside / f"n{label:08}_{i}.JPEG")


def say(what: str) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    clock = time.clock_gettime(time.CLOCK_MONOTONIC) - _started()
    print(f"{what:45} {clock:7.1f} s ({time.process_time():6.1f} s)  {peak:7.0f} MB", flush=True)


def _started() -> float:
    """When this process began, by the clock that does not jump."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(source: str, exemplars: bool, size: int) -> None:
    import torch

    torch.set_num_threads(1)
    from densekd.data.augment import Augment
    from densekd.data.batches import Batches
    from densekd.data.dataset import fingerprint
    from densekd.data.memory import ExemplarMemory, Quota
    from densekd.data.scenario import Scenario
    from densekd.data.sources import SourceOptions, load
    from densekd.seeds import Seeds
    from densekd.training.checkpoint import State, save_state
    from densekd.training.engine import Engine

    Engine("cpu")
    say("imports, with torch and Fabric")
    data = load(source, SourceOptions(image_size=size, memory_bytes=0))
    say(f"lists {len(data.train) + len(data.test):,} images")
    scenario = Scenario.of(data, steps=10)
    base = scenario[0].train
    say(f"scenario of {len(scenario)} tasks")
    fingerprint(base)
    say("name of the shared base")
    augment = Augment(data.mean, data.std, crop="resized")
    next(Batches(base, 128, augment, Seeds(1993), workers=0).epoch(0))
    say("first batch")
    if not exemplars:
        return
    for selection in ("random", "herding"):
        memory = ExemplarMemory(Quota(per_class=20), selection)
        generator = torch.Generator().manual_seed(0)
        for task in scenario:
            features = torch.randn(len(task.train), FEATURES, generator=generator)
            memory.learn(task.train, len(task.classes), generator, features)
        say(f"{len(memory):,} exemplars, {selection}")
    with tempfile.TemporaryDirectory() as folder:
        save_state(Path(folder) / "memory", State({}, memory.state_dict()))
    say("checkpoint of the exemplars")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["make", "measure"])
    parser.add_argument("source", help="the folder to make, or the source to measure")
    parser.add_argument("--exemplars", action="store_true")
    parser.add_argument("--classes", type=int, default=CLASSES)
    parser.add_argument("--image-size", type=int, default=16)
    given = parser.parse_args()
    if given.action == "make":
        make(Path(given.source), given.classes)
    else:
        measure(given.source, given.exemplars, given.image_size)


if __name__ == "__main__":
    main()
