"""Measure what fine-tuning gains over frozen features, with and without distillation.

A model learns 10 classes in steps of 6, 2 and 2 from folders, with its backbone frozen. Copies of
it are then fine-tuned. All are tested on photos that played no role before. The decision whether to
keep a result is ignored, so that every result is seen.

    DENSEKD_DATA=FOLDER python benchmarks/finetune.py clothing --per-class 36
    DENSEKD_DATA=FOLDER python benchmarks/finetune.py people-and-trees --per-class 36

The folder has ``clothing/train`` and ``clothing/test``, with a sub-folder for each class, or
CIFAR-100, of which the classes of people and trees are written out at 224 pixels. ``--only NAME``
measures one way. Prints accuracy in % and the seconds of processor time.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from common import Photos, copy_photos, percent, photos_in, predicted_right, seconds
from PIL import Image
from torch import Tensor

from densekd.data.cifar import load_cifar
from densekd.data.dataset import PixelImages
from densekd.model.frozen import finetune as finetuning
from densekd.model.frozen.finetune import FinetuneOptions
from densekd.model.options import TeachOptions
from densekd.model.teach import teach_model

STEPS = (slice(0, 6), slice(6, 8), slice(8, 10))
OLD = STEPS[-1].start  # the classes learned before the last step
CIFAR = (
    *("baby", "boy", "girl", "man", "woman"),
    *("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
)
WAYS = {
    "frozen": None,
    "plain": FinetuneOptions(lambda_base=0.0),
    "fdkd": FinetuneOptions(),
    "fdkd, all layers": FinetuneOptions("all"),
}


def people_and_trees(data: Path, per_class: int, out: Path) -> tuple[Photos, Photos]:
    cifar = load_cifar("cifar100", data)
    found: list[Photos] = []
    for split, most in ((cifar.train, per_class), (cifar.test, 40)):
        photos: dict[str, list[Path]] = {}
        for name in sorted(CIFAR):
            places = (split.labels == cifar.classes.index(name)).nonzero().flatten()[:most]
            assert isinstance(split.images, PixelImages)
            photos[name] = list(write(split.images.pixels[places], out / str(most) / name))
        found.append(photos)
    return found[0], found[1]


def write(pixels: Tensor, folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True)
    for number, image in enumerate(pixels):
        file = folder / f"{number:04}.png"
        small = Image.fromarray(image.permute(1, 2, 0).numpy())
        small.resize((224, 224), Image.Resampling.BICUBIC).save(file)
        yield file


def learn(model: Path, photos: Photos, place: Path) -> None:
    names = list(photos)
    for number, step in enumerate(STEPS):
        own = {name: photos[name] for name in names[step]}
        teach_model(model, copy_photos(own, place / f"step{number}"), TeachOptions())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("photos", choices=("clothing", "people-and-trees"))
    parser.add_argument("--per-class", type=int, default=36)
    parser.add_argument("--only", choices=WAYS)
    given, data = parser.parse_args(), Path(os.environ["DENSEKD_DATA"])
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if given.photos == "clothing":
            train = photos_in(data / "clothing" / "train", given.per_class)
            test = photos_in(data / "clothing" / "test")
        else:
            train, test = people_and_trees(data, given.per_class, place / "written")
        took = seconds(lambda: learn(place / "frozen", train, place), time.process_time)
        for name, options in WAYS.items():
            if given.only not in (None, name):
                continue
            model, note = place / "frozen", ""
            if options is not None:
                model = Path(shutil.copytree(model, place / "copy", dirs_exist_ok=False))
                began = time.process_time()
                with mock.patch.object(finetuning, "_rises", return_value=True):
                    update = finetuning.finetune_model(model, options).update
                took = time.process_time() - began
                assert update.before is not None
                held_out = [100 * (each.all or 0.0) for each in (update.before, update.after)]
                note = f"held-out {held_out[0]:.1f} to {held_out[1]:.1f}, epoch {update.epochs}"
            right, names = predicted_right(model, test), list(test)
            print(
                f"{given.photos}, {name}: old {percent(right, names[:OLD])}, "
                f"new {percent(right, names[OLD:])}, all {percent(right, names)}, "
                f"{took:.0f} s {note}",
                flush=True,
            )
            if options is not None:
                shutil.rmtree(model)


if __name__ == "__main__":
    main()
