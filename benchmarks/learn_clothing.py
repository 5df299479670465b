"""Teach clothes in three steps by the command line: accuracy on test photos, time, and its parts.

``python benchmarks/learn_clothing.py FOLDER``, where FOLDER has ``train`` and ``test`` with a
sub-folder of photos for each of ten classes. Photos are copied, taught and deleted, 6, 2 and 2
classes at a time, then one more class from 20 photos. The time of the three calls is compared with
that of the backbone alone on the same photos, decoded before, in the same number of threads.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from densekd.model.frozen.backbone import BATCH
from densekd.model.frozen.model import FrozenModel
from densekd.model.parallel import map_batches
from densekd.model.predict import image_files

STEPS = (6, 2, 2)


def learn(model: Path, folder: Path) -> float:
    """Teach by the command line, delete the photos, and give the seconds that it took."""
    began = time.monotonic()
    command = [sys.executable, "-m", "densekd", "learn", str(model), str(folder), "--quiet"]
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.monotonic() - began
    shutil.rmtree(folder)
    return seconds


def copied(source: Path, names: list[str], to: Path, most: int | None = None) -> Path:
    for name in names:
        (to / name).mkdir(parents=True)
        for file in sorted((source / name).iterdir())[:most]:
            shutil.copy(file, to / name)
    return to


def accuracy(model: Path, test: Path, names: list[str]) -> dict[str, float]:
    """The share of right predictions of each class; unknown counts as wrong where it says so."""
    opened, shares = FrozenModel.open(model), {}
    for name in names:
        found = opened.predict(image_files(test / name))
        shares[name] = sum(guesses[0].name == name for guesses in found) / len(found)
    return shares


def refused(model: Path, test: Path, names: list[str]) -> float:
    found = FrozenModel.open(model).predict([f for n in names for f in image_files(test / n)])
    return sum(not guesses.known for guesses in found) / len(found)


def bare_forward(model: Path, files: list[Path]) -> float:
    """The seconds of the backbone alone, on all files."""
    opened = FrozenModel.open(model)
    batches = opened.read(files).split(BATCH)
    began = time.monotonic()
    for _ in map_batches(opened.backbone.features, batches):
        pass
    return time.monotonic() - began


def mean(shares: dict[str, float], names: list[str], counts: dict[str, int]) -> float:
    return sum(shares[n] * counts[n] for n in names) / sum(counts[n] for n in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    train, test = folder / "train", folder / "test"
    names = sorted(path.name for path in train.iterdir())
    counts = {name: len(image_files(test / name)) for name in names}
    files = image_files(train)
    print(f"{len(files)} photos, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory() as place:
        model, seconds, first = Path(place, "model"), 0.0, 0
        for count in STEPS:
            new, known = names[first : first + count], names[: first + count]
            took = learn(model, copied(train, new, Path(place, "photos")))
            shares = accuracy(model, test, known)
            old = f"{mean(shares, names[:first], counts):.1%}" if first else "-"
            print(
                f"{count} classes in {took:.1f} s: all {mean(shares, known, counts):.1%}, "
                f"old {old}, new {mean(shares, new, counts):.1%}"
            )
            seconds, first = seconds + took, first + count
        joint = Path(place, "joint")
        learn(joint, copied(train, names, Path(place, "photos")))
        together = accuracy(joint, test, names)
        old_names = names[: -STEPS[-1]]
        print(
            f"taught at once: all {mean(together, names, counts):.1%}, "
            f"old {mean(together, old_names, counts):.1%} "
            f"(in steps {mean(shares, old_names, counts):.1%})"
        )
        print(f"refused as unknown: {refused(model, test, names):.1%} of the test photos")
        bare = bare_forward(model, files)
        print(f"three calls {seconds:.1f} s, backbone alone {bare:.1f} s: {bare / seconds:.0%}")
        again = copied(test, names[:1], Path(place, "photos"), 20)
        (again / names[0]).rename(again / "another class")
        print(f"one more class from 20 photos: {learn(model, again):.1f} s")


if __name__ == "__main__":
    main()
