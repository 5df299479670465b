"""What can be said of a model."""

from dataclasses import dataclass
from pathlib import Path

import torch

from densekd.model.model import Model
from densekd.model.records import HistoryEntry
from densekd.model.store import Store


@dataclass(frozen=True)
class ClassFacts:
    """What is known of a class.

    Args:
        name: of the class.
        step: in which it was learned.
        exemplars: how many of its images are kept to rehearse.
        tested: how many are kept to test on.
        accuracy: the share of these that is named right; None without any.
    """

    name: str
    step: int
    exemplars: int
    tested: int
    accuracy: float | None


@dataclass(frozen=True)
class About:
    """What a model knows, what it is made of, and how far it can be trusted.

    Args:
        entry: how its state came about.
        method: by which it learns.
        network: the backbone's name.
        parameters: how many numbers were trained.
        image_size: the height and width that images are brought to.
        exemplars: how many images are kept to rehearse.
        tested: how many are kept to test on.
        temperature: what scores are divided by, to calibrate the probabilities.
        calibration_error: the expected calibration error on the images to test on, to which the
            temperature was fitted; None without any.
        uncalibrated_error: the same at a temperature of 1.
        bytes: on disk, with all states.
        classes: in the order in which they were learned.
    """

    entry: HistoryEntry
    method: str
    network: str
    parameters: int
    image_size: int
    exemplars: int
    tested: int
    temperature: float
    calibration_error: float | None
    uncalibrated_error: float | None
    bytes: int
    classes: tuple[ClassFacts, ...]


def about(folder: Path, step: int | None = None) -> About:
    """What can be said of a model as it is, or as it was after an earlier step."""
    model = Model.open(folder, step)
    store = Store(folder)
    learned_in = {
        name: number
        for number in store.line(model.step)
        for name in store.entry(number, current=False).update.learned
    }
    memory = model.learner.memory
    counts = torch.bincount(memory.exemplars().labels, minlength=len(model.classes)).tolist()
    changes = model.entry.update.classes
    classes = tuple(
        ClassFacts(each.name, learned_in[each.name], count, each.tested, each.after)
        for each, count in zip(changes, counts, strict=True)
    )
    calibration = model.facts["calibration"]
    return About(
        model.entry,
        model.learner.method.name,
        model.config.network,
        sum(parameter.numel() for parameter in model.learner.network.parameters()),
        model.image_size,
        len(memory),
        sum(each.tested for each in classes),
        model.temperature,
        calibration["error"],
        calibration["error_before"],
        sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        classes,
    )
