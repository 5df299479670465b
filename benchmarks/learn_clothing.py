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
from itertools import chain
from pathlib import Path

import torch
from common import Photos, copy_photos, percent, photos_in, predicted_right, seconds

from densekd.model.frozen.backbone import BATCH
from densekd.model.frozen.model import FrozenModel
from densekd.model.parallel import map_batches

STEPS = (6, 2, 2)


def learn(model: Path, photos: Photos) -> float:
    """Teach by the command line, delete the photos, and give the seconds that it took."""
    folder = copy_photos(photos, model.parent / "photos")
    command = [sys.executable, "-m", "densekd", "learn", str(model), str(folder), "--quiet"]
    took = seconds(lambda: subprocess.run(command, check=True, capture_output=True))
    shutil.rmtree(folder)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    train, test = photos_in(folder / "train"), photos_in(folder / "test")
    names, files = list(train), list(chain(*train.values()))
    print(f"{len(files)} photos, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory() as place:
        model, total, first = Path(place, "model"), 0.0, 0
        for count in STEPS:
            new, known = names[first : first + count], names[: first + count]
            took = learn(model, {name: train[name] for name in new})
            right = predicted_right(model, {name: test[name] for name in known})
            old = f"{percent(right, names[:first])} %" if first else "-"
            print(
                f"{count} classes in {took:.1f} s: all {percent(right, known)} %, "
                f"old {old}, new {percent(right, new)} %"
            )
            total, first = total + took, first + count
        joint = Path(place, "joint")
        learn(joint, train)
        together, old_names = predicted_right(joint, test), names[: -STEPS[-1]]
        print(
            f"taught at once: all {percent(together, names)} %, "
            f"old {percent(together, old_names)} % (in steps {percent(right, old_names)} %)"
        )
        opened = FrozenModel.open(model)
        refused = [not guesses.known for guesses in opened.predict(list(chain(*test.values())))]
        print(f"refused as unknown: {sum(refused) / len(refused):.1%} of the test photos")
        batches = opened.read(files).split(BATCH)
        bare = seconds(lambda: list(map_batches(opened.backbone.features, batches)))
        print(f"three calls {total:.1f} s, backbone alone {bare:.1f} s: {bare / total:.0%}")
        took = learn(model, {"another class": test[names[0]][:20]})
        print(f"one more class from 20 photos: {took:.1f} s")


if __name__ == "__main__":
    main()
