"""The settings of a compression: a teacher, a student, and how the student learns."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from densekd.compression.method import CompressionMethod, CompressionOptions, compression
from densekd.config.defaults import fit_schedules, kind_of, source_of
from densekd.config.digests import digested_schedule, result_settings
from densekd.config.file_checksums import base_code
from densekd.config.schema import (
    AnySeed,
    AugmentConfig,
    Count,
    DataConfig,
    EngineConfig,
    EpochShare,
    OrderSeed,
    as_tree,
    checked,
    epoch_share,
)
from densekd.config.settings_tree import digest, merge, settle_spelling
from densekd.data.memory import Quota
from densekd.data.scenario import Task
from densekd.jobs.estimate import PhaseWork, workload
from densekd.methods.defaults import default_augment
from densekd.methods.method import Method
from densekd.methods.schedule import Schedule, stepped


@dataclass(frozen=True)
class CompressionSchedules:
    """The schedules of teacher and student."""

    teacher: Schedule
    student: Schedule


@dataclass(frozen=True, kw_only=True)
class CompressionConfig:
    """All settings of a compression; make them with `resolve_compression`.

    ``epochs`` is the student's number of epochs, or, as a float, the share of all epochs to train;
    the teacher's epochs shrink in proportion. None trains the full schedules.
    """

    seed: AnySeed = 1993  # of all random numbers except the class order
    epochs: Count | EpochShare | None = None
    method: CompressionMethod = "rdkd"
    teacher: str  # the name of the large network
    student: str  # the name of the small network
    teacher_file: Path | None = None  # where a trained teacher is; without it, one is trained
    groups: Count = 10  # the number of blocks of classes; groups of the loss are made of blocks
    order: OrderSeed | Literal["natural", "icarl"] | Path = 1993  # of the classes, before dividing
    options: CompressionOptions
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig
    training: CompressionSchedules  # before ``epochs`` shortens them
    engine: EngineConfig = field(default_factory=EngineConfig)

    def schedules(self) -> CompressionSchedules:
        """The schedules of ``training``, shortened by ``epochs``."""
        share = epoch_share(self.epochs, self.training.student)
        return CompressionSchedules(
            self.training.teacher.scaled(share), self.training.student.scaled(share)
        )

    def workload(self, tasks: Sequence[Task]) -> list[PhaseWork]:
        """The work of teacher and student, to estimate the time left."""
        both = zip((self.make_teacher(), self.make()), tasks, strict=True)
        return [each for method, task in both for each in workload(method, [task], Quota(0))]

    def make(self) -> Method:
        """Make the method that trains the student."""
        return compression(self.method, self.options, self.schedules().student)

    def make_teacher(self) -> Method:
        """Make the method that trains the teacher: cross-entropy alone."""
        return compression("alone", CompressionOptions(), self.schedules().teacher)


def resolve_compression(tree: Mapping[str, Any]) -> CompressionConfig:
    """Complete and check the settings that a user gave.

    Args:
        tree: nested mappings with the keys of `CompressionConfig`, such as
            ``{"method": "kd", "data": {"source": "cifar100"}}``. What is missing gets the
            default for the data.

    Raises:
        ValueError: one sentence that names the setting and its valid values.
    """
    tree = settle_spelling(tree)
    config = checked(CompressionConfig, merge(_default_settings(tree), tree))
    config.make()  # raises if method and options don't go together
    if config.data.validation:
        raise ValueError("data.validation has no meaning for a compression; leave it out.")
    return config


def compression_folder(config: CompressionConfig, out: Path) -> Path:
    """The folder of a compression: named by method and a hash of the settings."""
    return out / f"compress-{config.method}-{digest(result_settings(config))}"


def teacher_settings(config: CompressionConfig) -> dict[str, Any]:
    """The settings that a trained teacher depends on; compressions with the same ones share it."""
    tree, code = result_settings(config), base_code(config)
    return {
        **{name: tree[name] for name in ("seed", "teacher", "order", "data", "augment", "engine")},
        "schedule": digested_schedule(as_tree(config.schedules().teacher)),
        **({"code": code} if code else {}),
    }


# The schedules are those of RepDistiller and mdistiller for CIFAR-100, and of mdistiller for
# ImageNet. Digits are learned in a tenth of the epochs.
_DIGITS = stepped(24, 0.05, milestones=(15, 18, 21), weight_decay=5e-4, batch_size=32)
_SMALL = stepped(240, 0.05, milestones=(150, 180, 210), weight_decay=5e-4, batch_size=64)
_LARGE = stepped(100, 0.2, milestones=(30, 60, 90), batch_size=512)


def _default_settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults for the data that a settings tree names; the tree need not be valid."""
    kind = kind_of(tree)
    networks, schedule, options = ("wrn-40-4", "resnet32"), _SMALL, CompressionOptions()
    if kind == "digits":
        networks, schedule = ("wrn-16-2", "resnet8"), _DIGITS
    elif kind != "small":
        networks, schedule = ("wrn-28-10-large", "resnet18"), _LARGE
        options = CompressionOptions(temperature=1.0, labels=0.5, teacher=0.5)
    training = {"teacher": dataclasses.asdict(schedule), "student": dataclasses.asdict(schedule)}
    return {
        "teacher": networks[0],
        "student": networks[1],
        "options": dataclasses.asdict(options),
        "augment": default_augment(source_of(tree), kind),
        "training": fit_schedules(training, tree),
    }
