"""The settings of a compression: a teacher, a student, and how one learns from the other."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from densekd.compression.method import CompressionMethod, CompressionOptions, compression
from densekd.config.defaults import fit_milestones, usual
from densekd.config.schema import (
    AugmentConfig,
    Count,
    DataConfig,
    EngineConfig,
    EpochShare,
    OrderSeed,
    checked,
    influential,
    uniform,
)
from densekd.config.settings_tree import digest, given, merge, plain
from densekd.data.memory import Quota
from densekd.data.scenario import Task
from densekd.jobs.estimate import PhaseWork, workload
from densekd.methods.method import Method
from densekd.methods.schedule import Schedule


@dataclass(frozen=True)
class Lessons:
    """How long and how fast teacher and student are trained."""

    teacher: Schedule
    student: Schedule


@dataclass(frozen=True, kw_only=True)
class CompressionConfig:
    """All settings of a compression; `resolve_compression` makes them from what a user wrote.

    Args:
        seed: of everything that is drawn, but for the order of the classes.
        epochs: the epochs of the student, or, as a float, the share of all epochs to train; the
            teacher's are shortened in proportion. None leaves them as they are.
        method: how the student learns.
        teacher: the name of the large network.
        student: the name of the small one.
        teacher_file: where a trained teacher is; without it, one is trained.
        groups: into how many blocks of classes the pool divides them.
        order: the order of the classes, of which groups are blocks.
        options: how much labels and teacher weigh.
        data: which images.
        augment: how training images are varied.
        training: how long and how fast, before ``epochs`` shortens it.
        engine: what it runs on.
    """

    seed: int = 1993
    epochs: Count | EpochShare | None = None
    method: CompressionMethod = "rdkd"
    teacher: str
    student: str
    teacher_file: Path | None = None
    groups: Count = 10
    order: OrderSeed | Literal["natural", "icarl"] | Path = 1993
    options: CompressionOptions
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig
    training: Lessons
    engine: EngineConfig = field(default_factory=EngineConfig)

    def lessons(self) -> Lessons:
        """The schedules to train by: those of ``training``, shortened by ``epochs``."""
        share = 1.0 if self.epochs is None else self.epochs
        if isinstance(self.epochs, int):
            share = self.epochs / self.training.student.epochs
        return Lessons(self.training.teacher.scaled(share), self.training.student.scaled(share))

    def workload(self, tasks: Sequence[Task]) -> list[PhaseWork]:
        """All epochs of teacher and student, to estimate the time that is left."""
        both = zip((self.make_teacher(), self.make()), tasks, strict=True)
        return [each for method, task in both for each in workload(method, [task], Quota(0))]

    def make(self) -> Method:
        """How the student is trained."""
        return compression(self.method, self.options, self.lessons().student)

    def make_teacher(self) -> Method:
        """How the teacher is trained: by labels."""
        return compression("alone", CompressionOptions(), self.lessons().teacher)


def resolve_compression(tree: Mapping[str, Any]) -> CompressionConfig:
    """All settings, from those that a user gave and what is usual for such data.

    Args:
        tree: sections as nested mappings; anything may be left out. It has the keys of
            `CompressionConfig`: ``{"method": "kd", "data": {"source": "cifar100"}}``, say, is all
            that the paper's first experiment needs.

    Raises:
        ValueError: with one sentence that names the setting and what it may be.
    """
    tree = uniform(tree)
    config = checked(CompressionConfig, merge(_usual(tree), tree))
    config.make()  # which raises if these don't go together
    return config


def compression_folder(config: CompressionConfig, out: Path) -> Path:
    """The folder of a compression: its method by name, all else by a hash of the settings."""
    return out / f"compress-{config.method}-{digest(influential(config))}"


def teacher_settings(config: CompressionConfig) -> dict[str, Any]:
    """What a trained teacher depends on, so that compressions which agree in it can share it."""
    tree = influential(config)
    return {
        **{name: tree[name] for name in ("seed", "teacher", "order", "data", "augment", "engine")},
        "schedule": plain(dataclasses.asdict(config.lessons().teacher)),
    }


def _stepped(epochs: int, lr: float, *milestones: int, batch: int, decay: float) -> Schedule:
    return Schedule(
        epochs, lr, "milestones", milestones=milestones, batch_size=batch, weight_decay=decay
    )


# Those of RepDistiller and mdistiller for CIFAR-100, and of mdistiller for ImageNet. Digits are
# learned in a tenth of the epochs.
_DIGITS = _stepped(24, 0.05, 15, 18, 21, batch=32, decay=5e-4)
_SMALL = _stepped(240, 0.05, 150, 180, 210, batch=64, decay=5e-4)
_LARGE = _stepped(100, 0.2, 30, 60, 90, batch=512, decay=1e-4)


def _usual(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What is usual for the data of a tree, which may be wrong as yet."""
    kind = str(given(tree, "data", "source") or "digits").partition(":")[0]
    networks, schedule, options = ("wrn-40-4", "resnet32"), _SMALL, CompressionOptions()
    if kind == "digits":
        networks, schedule = ("wrn-16-2", "resnet8"), _DIGITS
    elif kind in ("folder", "imagenet", "imagenet100"):
        networks, schedule = ("wrn-28-10-large", "resnet18"), _LARGE
        options = CompressionOptions(temperature=1.0, labels=0.5, teacher=0.5)
    training = dataclasses.asdict(Lessons(schedule, schedule))
    return {
        "teacher": networks[0],
        "student": networks[1],
        "options": dataclasses.asdict(options),
        "augment": usual(tree)["augment"],
        "training": fit_milestones(training, tree),
    }
