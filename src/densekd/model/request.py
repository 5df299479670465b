"""An update before it is carried out: its plan, its observer, and the base class of all kinds."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from densekd.data.dataset import OnProgress
from densekd.files import ASIDE, is_inside
from densekd.model.model import Model
from densekd.model.options import TeachOptions
from densekd.model.pointer import POINTER_FILE, Pointer
from densekd.model.store import Store, Update
from densekd.training.callbacks import Callback


@dataclass(frozen=True)
class Plan:
    """What an update is going to do."""

    step: int  # the step that it will make
    task: int  # the number of updates before it
    learned: dict[str, int]  # training images of each new class
    replayed: dict[str, int]  # training images of each known class
    tested: dict[str, int]  # new test images of each class
    image_size: int
    network: str
    method: str
    phases: tuple[tuple[str, int], ...] = ()  # name and epochs
    seconds: float | None = None  # of training, if measured
    resumed: bool = False  # whether it continues an interrupted update


class TeachObserver(Callback):
    """Receives the progress of an update, and can stop it; this base class ignores everything."""

    def reading(self, done: int, total: int) -> None:
        """Called while images are read and their features computed."""

    def planned(self, plan: Plan) -> None:
        """Called before training begins."""

    def doing(self, what: str) -> None:
        """Called before each of ``measuring``, ``fitting``, ``testing`` and ``saving``."""

    def repeated(self, step: int) -> None:
        """Called if ``step`` is the result of the same update, so that nothing is done."""

    def finetuned_before(self) -> None:
        """Called if the same fine-tuning was done before, kept or rejected: nothing is done."""


@dataclass(frozen=True)
class UpdateRequest(ABC):
    """Everything that an update needs."""

    store: Store
    pointer: Pointer | None  # None for a new model
    options: TeachOptions
    digest: str  # identifies the update by its images and options
    model: Model | None  # None for a new one

    @property
    def step(self) -> int:
        """The step that the update will make."""
        return 0 if self.pointer is None else self.pointer.steps

    @property
    def parent(self) -> int | None:
        """The step that the update starts from; None for a new model."""
        return None if self.pointer is None else self.pointer.step

    @property
    def known(self) -> tuple[str, ...]:
        """The classes that the model knows."""
        return () if self.model is None else self.model.classes

    @property
    def pending(self) -> Path:
        """The folder for the unfinished update."""
        return self.store.pending_update(self.digest, self.parent)

    @classmethod
    @abstractmethod
    def read(
        cls, store: Store, source: Path, options: TeachOptions, on_progress: OnProgress
    ) -> Self | Update:
        """Read and check all that the update needs; see `densekd.model.teach.teach_model`.

        Gives the model's last update if it had the same images and options.
        """

    @abstractmethod
    def timed_plan(self, observer: TeachObserver, began: float) -> Plan:
        """The plan, with the measured time; ``began`` is the start on the monotonic clock."""

    @abstractmethod
    def carry_out(self, observer: TeachObserver, began: float) -> Update:
        """Make the update and commit it; the caller holds the model's lock."""


def check_places(folder: Path, source: Path) -> None:
    """Raise ValueError if the folders of model and images overlap or are swapped."""
    if is_inside(folder, source) or is_inside(source, folder):
        raise ValueError(
            f"The model {folder} and the images {source} must not contain each other; "
            "give the model a folder of its own."
        )
    check_place(folder)


def check_place(folder: Path) -> None:
    """Raise ValueError if ``folder`` has something other than a model in it."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder for the model.")
    ours = {POINTER_FILE, "lock", "pending", ASIDE, "steps"}
    # Ignore hidden files: a killed update or the operating system may have left them.
    others = [p.name for p in folder.iterdir() if p.name not in ours and p.name[0] != "."]
    if Store(folder).pointer() is None and others:
        raise ValueError(
            f"{folder} is not a model, and has other files in it, such as {others[0]!r}; the model "
            "comes first and the images second: give a new folder for the model."
        )
