"""What is written down of a model's updates."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """What an update is going to do.

    Args:
        step: the number of the state that it will make.
        task: how many updates the model has had.
        learned: for each new class the number of images to learn from.
        replayed: the same for known classes of which there are more images.
        tested: for each of these classes the number of images that are kept to test on.
        image_size: the height and width that images are brought to.
        network: its name.
        method: its name.
        phases: the workload of training, and the epochs of each.
        seconds: what training will take, if it was measured.
        resumed: whether it goes on where it was left.
    """

    step: int
    task: int
    learned: dict[str, int]
    replayed: dict[str, int]
    tested: dict[str, int]
    image_size: int
    network: str
    method: str
    phases: tuple[tuple[str, int], ...]
    seconds: float | None
    resumed: bool


@dataclass(frozen=True)
class Accuracy:
    """Shares from 0 to 1 of the test images that are named right; None where there are none.

    Args:
        new: of the classes that the update brought.
        old: of those known before.
        all: of both.
    """

    new: float | None
    old: float | None
    all: float | None


@dataclass(frozen=True)
class ClassChange:
    """What an update did to one class.

    Args:
        name: of the class.
        tested: how many kept images of it are tested.
        before: the share of them that was named right; None if the class is new or untested.
        after: the same after the update; None if it is untested.
    """

    name: str
    tested: int
    before: float | None
    after: float | None


@dataclass(frozen=True)
class Update:
    """What an update did.

    Args:
        step: the number of the state that it made, counted from 0.
        learned: the names of the new classes.
        replayed: the names of known classes of which it had more images.
        images: how many images were learned from, exemplars not counted.
        epochs: how often they were seen.
        before: accuracy of the model before, on the same test images; None for the first.
        after: accuracy of the model that it made.
        classes: all classes in the order in which they were learned.
        seconds: of training.
    """

    step: int
    learned: tuple[str, ...]
    replayed: tuple[str, ...]
    images: int
    epochs: int
    before: Accuracy | None
    after: Accuracy
    classes: tuple[ClassChange, ...]
    seconds: float


@dataclass(frozen=True)
class HistoryEntry:
    """A state of a model in its history.

    Args:
        step: its number.
        parent: the number of the state that it was made from; None for the first.
        when: the time when it was finished, in ISO 8601.
        current: whether the model is in this state.
        update: what made it.
    """

    step: int
    parent: int | None
    when: str
    current: bool
    update: Update
