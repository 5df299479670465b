from typing import Any

import pytest

from densekd.config.schema import Config
from densekd.model.options import TeachOptions
from densekd.model.trained.settings import (
    METHOD,
    update_settings,
    usual_epochs,
    with_schedule,
)


def first(**options: object) -> Config:
    return update_settings(None, TeachOptions(**options), 32)  # type: ignore[arg-type]


def test_defaults_of_a_new_model() -> None:
    config = first()
    assert (config.network, config.data.image_size) == ("resnet20", 32)
    assert config.method.name == METHOD
    assert config.augment.padding == 4
    assert update_settings(None, TeachOptions(), 128).network == "resnet18"


def test_options_and_overrides_replace_defaults() -> None:
    config = first(network="resnet8", method="gkd", overrides=("training.base.lr=0.2",))
    assert (config.network, config.method.name, config.training.base.lr) == ("resnet8", "gkd", 0.2)
    # A baseline comes with what it was released with.
    released = first(method="icarl")
    assert released.training.base.lr == 2.0
    assert first(overrides=("method.name=icarl",)) == released


def test_settings_stay_from_one_update_to_the_next() -> None:
    config = first(overrides=("memory.per_class=7", "training.increment.lr=0.03"))
    later = update_settings(config, TeachOptions(), 64)
    assert later == config
    changed = update_settings(config, TeachOptions(overrides=("memory.per_class=9",)), 64)
    assert changed.memory.per_class == 9


def test_epochs_given_as_a_setting_are_for_one_update() -> None:
    config, options = first(overrides=("epochs=7",)), TeachOptions(epochs=16)
    assert with_schedule(config, "base", TeachOptions(), 100, 2).schedules().base.epochs == 7
    later = with_schedule(update_settings(config, options, 32), "increment", options, 100, 2)
    assert later.schedules().increment.epochs == 16


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"network": "resnet14"}, "network is resnet20 and can't become resnet14"),
        ({"image_size": 64}, "image size is 32 and can't become 64"),
        ({"overrides": ("method.name=gkd",)}, f"method is {METHOD} and can't become gkd"),
        ({"overrides": ("engine.devices=2",)}, "is taught on one device"),
        ({"overrides": ("method.options.head=linear",)}, "head is cosine and can't become linear"),
    ],
)
def test_fixed_settings_of_a_model_cannot_change(options: dict[str, object], words: str) -> None:
    config = first()
    with pytest.raises(ValueError, match=words):
        update_settings(config, TeachOptions(**options), 32)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"network": "mine.py:x"},
        {"method": "mine.py:x"},
        {"method": "mine.py:x+rdkd"},
        {"overrides": ("memory.selection=mine.py:x",)},
    ],
)
def test_code_of_ones_own_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"^mine\.py:x is code of your own.*densekd run"):
        first(**options)


def test_epochs_depend_on_the_number_of_images() -> None:
    config, options = first(), TeachOptions()
    base = with_schedule(config, "base", options, 10, 2).training.base
    assert (base.epochs, base.batch_size) == (usual_epochs("base", 10), 32)
    few, many = (with_schedule(config, "increment", options, n, 2).training for n in (100, 100_000))
    assert few.increment.epochs > many.increment.epochs >= 1
    assert few.base == config.training.base
    given = TeachOptions(epochs=3)
    assert with_schedule(config, "increment", given, 100, 2).training.increment.epochs == 3
    override = TeachOptions(overrides=("training.increment.epochs=5",))
    chosen = with_schedule(update_settings(config, override, 32), "increment", override, 100, 2)
    assert chosen.training.increment.epochs == 5


@pytest.mark.parametrize(
    ("images", "classes", "streams"), [(1000, 1, "merged"), (50, 5, "merged"), (1000, 5, "split")]
)
def test_few_images_share_a_batch_with_exemplars(images: int, classes: int, streams: str) -> None:
    config = with_schedule(first(), "increment", TeachOptions(), images, classes)
    assert config.method.options.streams == streams
    given = TeachOptions(overrides=("method.options.streams=split",))
    assert (
        with_schedule(first(), "increment", given, images, classes).method.options.streams
        == "split"
    )


def test_later_phases_are_shortened_to_a_quarter_at_most() -> None:
    options = TeachOptions(method="bic", epochs=25)
    config = update_settings(None, options, 32)
    before = config.training
    assert before.finish is not None
    after = with_schedule(config, "increment", options, 100, 2).training
    assert after.finish is not None
    share = 25 / before.increment.epochs
    assert share < 0.25
    assert after.finish == before.finish.scaled(0.25)
    assert after.increment.milestones == before.increment.scaled(share).milestones


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 1, "budget": 1.0}, "either epochs or a budget"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1, not 0"),
        ({"epochs": "3"}, "epochs must be a whole number of at least 1, not '3'"),
        ({"image_size": 0}, "image size must be a whole number of at least 1, not 0"),
        ({"image_size": 32.5}, "image size must be a whole number of at least 1, not 32.5"),
        ({"budget": 0.0}, "minutes above 0"),
        ({"budget": "3"}, "minutes above 0, not '3'"),
        ({"budget": float("nan")}, "minutes above 0"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TeachOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "given", "words"),
    [
        ("base", {"epochs": 5}, "--epochs has no effect, because training.base.epochs"),
        ("base", {"budget": 5.0}, "training.base.epochs has no effect, because --budget"),
        ("increment", {"epochs": 5}, ""),  # which the next update has
        ("base", {}, ""),
    ],
)
def test_epochs_that_are_given_twice_are_told(
    key: str, given: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = TeachOptions(overrides=(f"training.{key}.epochs=3",), **given)
    with_schedule(update_settings(None, options, 32), "base", options, 100, 2)
    assert [words in record.getMessage() for record in caplog.records] == [True] * bool(words)


def test_generations_are_shortened_with_the_base_task() -> None:
    options = TeachOptions(method="ccil", overrides=("method.ccil.generations=2",))
    config = with_schedule(update_settings(None, options, 32), "base", options, 5000, 5)
    epochs = [phase.schedule.epochs for phase in config.make_method().base]
    assert epochs == [10, 18, 18]  # of 120 and 70; of a finish at least a quarter
