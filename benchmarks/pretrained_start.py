"""The paper's protocol on CIFAR-100 from a pretrained start: frozen lite0, only the head learns.

    python benchmarks/pretrained_start.py --data DIR --cache DIR

Half of the classes first, then the others in T steps, order and seed 1993, 20 exemplars a class.
Features are computed once and kept; if that is stopped, the same call goes on. The network computes
them in bfloat16, twice as fast as float32 where the processor has it; they are 2 to 3 degrees from
those of float32. Then each method learns the cosine head on them, with its own terms, by the
paper's schedules. Two rows are no methods of the paper: the head of
``densekd learn``, refitted after each step to the features of the new images and the exemplars, and
of all images so far. The latter is left out by default, since it takes 20 seconds a step:
``--steps 5 --only "refitted to all"``.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from photo_features import Photos, compute_features, crops_of
from torch import Tensor, nn

from densekd import DenseOptions, Learner, Scenario, Schedules, Settings, make_method, metrics
from densekd.data.augment import Augment
from densekd.data.cifar import load_cifar
from densekd.data.dataset import Dataset, PixelImages, Split, join_splits
from densekd.model.frozen.backbone import FrozenBackbone, pretrained_backbone
from densekd.model.frozen.head import fit_head
from densekd.nn.network import Features
from densekd.training.checkpoint import State, load_state, save_state
from densekd.training.engine import Engine
from densekd.training.evaluate import evaluate

PARTS = 50  # of a split; each is saved when its features are computed
EXEMPLARS = 20  # of each class
METHODS = ("finetune", "gkd", "tkd", "rdkd", "fdkd")
HEADS = {"refitted to exemplars": EXEMPLARS, "refitted to all": None}  # images of a class
COLUMNS = ("average", "base", "last", "base, last", "old, last", "new, last", "forgetting", "s")


def cifar_features(data_dir: Path, cache: Path, parts: int) -> tuple[Photos, Photos]:
    """Features of the training and of all test images.

    Args:
        data_dir: has CIFAR-100.
        cache: a folder for the features in half precision.
        parts: how many of the 50 parts of the training images; part i has every 50th from i on.
    """
    backbone = pretrained_backbone("lite0")
    cifar = load_cifar("cifar100", data_dir, download=False)
    cache.mkdir(parents=True, exist_ok=True)
    test = _features(backbone, "test", cifar.test, cache, PARTS)
    return _features(backbone, "train", cifar.train, cache, parts), test


def _features(backbone: FrozenBackbone, name: str, split: Split, cache: Path, parts: int) -> Photos:
    found, places = [], []
    for part in range(parts):
        index = torch.arange(part, len(split), PARTS)
        file = cache / f"cifar100-{name}-{part:02d}"
        if not file.with_name(f"{file.name}.json").exists():
            crops = crops_of(split.take(index))
            with torch.autocast("cpu", torch.bfloat16):
                features = compute_features(backbone, f"{name} {part + 1}/{parts}", crops)
            save_state(file, State({}, features))
        found.append(load_state(file).tensors["features"].float())
        places.append(index)
    return Photos(torch.cat(found), split.labels[torch.cat(places)])


class LookUp(nn.Module):
    """A backbone whose images are the numbers of rows in a table of features."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.width, self.table = table.shape[1], [table]  # in a list: no part of its state

    def __deepcopy__(self, memo: object) -> "LookUp":
        return self  # it learns nothing

    def forward(self, images: Tensor) -> Features:
        return Features(self.table[0][rows(255 * images)], ())


def numbered(first: int, labels: Tensor) -> Split:
    """Images of one pixel that hold the numbers from ``first`` on, in their three bytes."""
    number = torch.arange(first, first + len(labels))
    pixels = torch.stack([number >> shift & 255 for shift in (16, 8, 0)], 1).byte()
    return Split(PixelImages(pixels[:, :, None, None]), labels)


def rows(pixels: Tensor) -> Tensor:
    high, middle, low = pixels.round().long().flatten(1).unbind(1)
    return (high << 16) + (middle << 8) + low


def scenario(train: Photos, test: Photos, steps: int) -> Scenario:
    classes = tuple(str(rank) for rank in range(train.classes))
    splits = numbered(0, train.labels), numbered(len(train.labels), test.labels)
    return Scenario.of(Dataset("features", classes, *splits, (0,) * 3, (1,) * 3), steps=steps)


def learner_of(name: str, table: Tensor, epochs: float) -> Learner:
    augment = Augment((0.0,) * 3, (1.0,) * 3, padding=0, flip=False)
    settings = Settings(augment=augment, seed=1993, engine=Engine("cpu", precision="32"))
    method = make_method(name, DenseOptions(), Schedules().scaled(epochs))
    return Learner(LookUp(table), method, EXEMPLARS, settings)


def by_method(learner: Learner, tasks: Scenario, base: Learner) -> Iterator[metrics.StepMetrics]:
    """Learn all tasks but the base, which ``base`` has learned."""
    learner.load_state(base.state(), change_method=True)
    for number, task in enumerate(tasks):
        if number:
            learner.learn(task)
        tested = evaluate(learner, join_splits([each.test for each in tasks[: number + 1]]))
        yield metrics.step_metrics(tested.head, learner.sizes)


def by_head(tasks: Scenario, table: Tensor, most: int | None) -> Iterator[metrics.StepMetrics]:
    """Refit a head after each task, to at most so many images of each earlier class."""
    for number, task in enumerate(tasks):
        old = [_first(each.train, most) for each in tasks[:number]]
        train = join_splits([*old, task.train])
        test = join_splits([each.test for each in tasks[: number + 1]])
        classes = task.first + len(task.classes)
        head = fit_head(table[_rows(train)], train.labels, classes)
        guesses = head.scores(table[_rows(test)]).argmax(1)
        confusion = metrics.confusion_matrix(guesses, test.labels, classes)
        yield metrics.step_metrics(confusion, [len(each.classes) for each in tasks[: number + 1]])


def _first(split: Split, most: int | None) -> Split:
    """At most so many images of each class, drawn at random."""
    if most is None:
        return split
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(1993))
    ranks = torch.zeros(len(split), dtype=torch.int64)
    for label in split.labels.unique():
        own = order[split.labels[order] == label]
        ranks[own] = torch.arange(len(own))
    return split.take(ranks < most)


def _rows(split: Split) -> Tensor:
    assert isinstance(split.images, PixelImages)
    return rows(split.images.pixels)


def row(name: str, steps: Sequence[metrics.StepMetrics], seconds: float) -> str:
    last = steps[-1]
    shares = (
        metrics.average_incremental_accuracy(steps),
        *(steps[0].accuracy, last.accuracy, last.base_accuracy),
        *(last.old_accuracy, last.new_accuracy, metrics.forgetting(steps)),
    )
    digits = (2, *[1] * (len(shares) - 1))
    cells = [f"{100 * share:.{n}f}" for share, n in zip(shares, digits, strict=True)]
    return f"| {name} | {' | '.join(cells)} | {seconds:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that has CIFAR-100")
    parser.add_argument("--cache", type=Path, required=True, help="folder for the features")
    parser.add_argument("--parts", type=int, default=PARTS, help="of the training images' 50")
    parser.add_argument("--steps", type=int, nargs="+", default=[5, 50])
    parser.add_argument("--epochs", type=float, default=1.0, help="share of the paper's")
    parser.add_argument("--only", nargs="+", default=[*METHODS, "refitted to exemplars"])
    given = parser.parse_args()
    train, test = cifar_features(given.data, given.cache, given.parts)
    table = torch.cat([train.x, test.x])
    base = learner_of("finetune", table, given.epochs)
    base.learn(scenario(train, test, given.steps[0])[0])
    for steps in given.steps:
        tasks = scenario(train, test, steps)
        print(f"\nT = {steps}\n\n| | {' | '.join(COLUMNS)} |\n{'|---' * (len(COLUMNS) + 1)}|")
        for name in given.only:
            began = time.process_time()
            if name in HEADS:
                found = list(by_head(tasks, table, HEADS[name]))
            else:
                found = list(by_method(learner_of(name, table, given.epochs), tasks, base))
            print(row(name, found, time.process_time() - began), flush=True)


if __name__ == "__main__":
    main()
