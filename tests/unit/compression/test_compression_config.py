import tomllib
from pathlib import Path
from typing import Any

import pytest

from densekd.compression.compress import group_sizes
from densekd.compression.config import (
    CompressionConfig,
    compression_folder,
    resolve_compression,
    teacher_settings,
)
from densekd.compression.method import CompressionOptions
from densekd.config.schema import as_toml
from densekd.config.settings_tree import override
from densekd.methods.schedule import Schedule


def made(*assignments: str) -> CompressionConfig:
    """The settings that `-o` would make."""
    return resolve_compression(override({}, assignments))


def complaint(*assignments: str) -> str:
    with pytest.raises(ValueError, match=r"\w") as caught:
        made(*assignments)
    message = str(caught.value)
    assert "\n" not in message
    return message


SMALL = Schedule(
    240, 0.05, "milestones", milestones=(150, 180, 210), batch_size=64, weight_decay=5e-4
)
LARGE = Schedule(100, 0.2, "milestones", milestones=(30, 60, 90), batch_size=512, weight_decay=1e-4)


@pytest.mark.parametrize("source", ["cifar100", "cifar10", "npz:a.npz", "hub:owner/name"])
def test_the_recipe_of_small_images(source: str) -> None:
    config = made(f"data.source={source}")
    assert (config.teacher, config.student) == ("wrn-40-4", "resnet32")
    assert config.training.teacher == config.training.student == SMALL
    assert config.options == CompressionOptions(4.0, 0.1, 0.9, whole=False)
    assert (config.augment.padding, config.augment.flip) == (4, True)
    assert (config.method, config.groups, config.order) == ("rdkd", 10, 1993)
    assert (config.seed, config.epochs, config.teacher_file) == (1993, None, None)


@pytest.mark.parametrize("source", ["imagenet:data", "imagenet100:data", "folder:photos"])
def test_the_recipe_of_large_images(source: str) -> None:
    config = made(f"data.source={source}")
    assert (config.teacher, config.student) == ("wrn-28-10-large", "resnet18")
    assert config.training.teacher == config.training.student == LARGE
    assert config.options == CompressionOptions(1.0, 0.5, 0.5, whole=False)


def test_digits_take_a_tenth_of_the_epochs() -> None:
    config = made()
    assert (config.teacher, config.student) == ("wrn-16-2", "resnet8")
    assert config.training.student.epochs == 24
    assert config.training.student.milestones == (15, 18, 21)
    assert config.augment.flip is False


@pytest.mark.parametrize(("epochs", "student", "teacher"), [("24", 24, 12), ("10%", 24, 12)])
def test_epochs_shorten_both(epochs: str, student: int, teacher: int) -> None:
    given = ["data.source=cifar100", "training.teacher.epochs=120"]
    schedules = made(*given, f"epochs={epochs}").schedules()
    assert (schedules.student.epochs, schedules.teacher.epochs) == (student, teacher)
    assert schedules.student.milestones == (15, 18, 21)


def test_another_decay_does_away_with_the_usual_milestones() -> None:
    training = made("training.student.decay=cosine").training
    assert training.student.milestones == ()
    assert training.teacher.milestones == (15, 18, 21)


def test_what_a_file_says_is_what_was_meant() -> None:
    config = made("method=fdkd", "teacher_file=some/where", "order=natural", "epochs=0.5")
    assert resolve_compression(tomllib.loads(as_toml(config))) == config


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("method=gkd", "method must be 'alone', 'kd', 'rdkd' or 'fdkd', not 'gkd'."),
        ("techer=wrn-16-1", "techer is not a setting; did you mean teacher?"),
        (
            "options.temperatur=2",
            "options.temperatur is not a setting; did you mean options.temperature?",
        ),
        ("options.temperature=0", "options: temperature must be a positive number, not 0"),
        ("groups=0", "groups must be a whole number of at least 1, not 0."),
        ("epochs=none1", "epochs must be a number such as 10, or a share"),
        ("data.source=nowhere", "data: There is no source 'nowhere'"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(assignment: str, words: str) -> None:
    assert complaint(assignment).startswith(words)


def test_settings_that_do_not_go_together() -> None:
    assert "leave it out with kd" in complaint("method=kd", "options.whole=true")


def test_what_does_not_matter_has_no_part_in_the_name(tmp_path: Path) -> None:
    def name(*assignments: str) -> str:
        return compression_folder(made(*assignments), tmp_path).name

    assert name("method=kd").startswith("compress-kd-")
    assert name("data.dir=elsewhere") == name() == name("engine.workers=2")
    names = {name(), name("seed=1"), name("groups=5"), name("options.whole=true"), name("epochs=3")}
    assert len(names) == 5


def test_a_teacher_is_known_by_what_matters_to_it() -> None:
    usual = teacher_settings(made())
    for same in ("method=fdkd", "groups=2", "student=resnet14", "options.labels=1.0"):
        assert teacher_settings(made(same)) == usual
    others: list[dict[str, Any]] = [
        teacher_settings(made(other))
        for other in ("teacher=wrn-10-1", "seed=1", "training.teacher.lr=0.1", "order=natural")
    ]
    assert all(other != usual for other in others)


@pytest.mark.parametrize(
    ("classes", "groups", "sizes"),
    [(100, 10, (10,) * 10), (10, 3, (4, 3, 3)), (10, 10, (1,) * 10), (5, 1, (5,))],
)
def test_groups_are_nearly_equal(classes: int, groups: int, sizes: tuple[int, ...]) -> None:
    assert group_sizes(classes, groups) == sizes


def test_there_are_not_more_groups_than_classes() -> None:
    with pytest.raises(ValueError, match="10 classes can't be divided into 11 groups"):
        group_sizes(10, 11)
