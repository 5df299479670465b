import dataclasses
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from densekd.config.schema import Config, as_toml, as_tree, resolve
from densekd.config.settings_tree import override
from densekd.data.sources import SOURCES
from densekd.methods.registry import METHODS

SMALL = ["digits", "cifar10", "cifar100", "npz:a.npz", "hub:owner/name"]
LARGE = ["imagenet:data", "imagenet100:data", "folder:photos", "packed:file"]
LARGE += [f"imagenet100-{paper}:data" for paper in ("ccil", "ucir", "podnet")]


def made(*assignments: str) -> Config:
    """The settings that `-o` would make."""
    return resolve(override({}, assignments))


def test_nothing_given_is_a_run_on_digits() -> None:
    config = resolve({})
    assert (config.seed, config.epochs, config.network) == (1993, None, "resnet8")
    assert config.data.source == "digits"
    assert config.data.dir is None
    scenario, memory = config.scenario, config.memory
    assert (scenario.steps, scenario.increment, scenario.order) == (5, None, 1993)
    assert (memory.per_class, memory.total, memory.selection) == (20, None, "random")
    assert config.method.name == "rdkd"
    assert (config.engine.accelerator, config.engine.devices) == ("auto", 1)
    assert (config.engine.precision, config.engine.workers) == ("auto", None)
    assert config.training.preset == "paper"


@pytest.mark.parametrize(
    ("given", "kept", "base", "increment"),
    [
        (None, None, 70, 40),
        (10, 10, 10, 6),
        ("10", 10, 10, 6),
        (" 7 ", 7, 7, 4),
        (1, 1, 1, 1),
        (140, 140, 140, 80),
        (0.3, 0.3, 21, 12),
        ("0.3", 0.3, 21, 12),
        ("30%", 0.3, 21, 12),
        ("12.5 %", 0.125, 9, 5),
        (1.0, 1, 1, 1),
        ("1.0", 1, 1, 1),
        (7.0, 7, 7, 4),
        ("100%", 1.0, 70, 40),
        ("1x", 1.0, 70, 40),
        ("0.3x", 0.3, 21, 12),
        ("150%", 1.5, 105, 60),
        (0.001, 0.001, 1, 1),
    ],
)
def test_epochs_shorten_all_schedules(
    given: int | float | str | None, kept: int | float | None, base: int, increment: int
) -> None:
    config = resolve({"epochs": given, "data": {"source": "cifar100"}})
    assert config.epochs == kept
    assert type(config.epochs) is type(kept)
    # What was asked for and what follows are kept apart, so that it isn't shortened twice.
    assert (config.training.base.epochs, config.training.increment.epochs) == (70, 40)
    schedules = config.schedules()
    assert (schedules.base.epochs, schedules.increment.epochs) == (base, increment)
    assert schedules.base == dataclasses.replace(config.training.base, epochs=base)


@pytest.mark.parametrize("wrong", [1.5, "1.5", "x", "inf", "nan", "ten", "%"])
def test_epochs_that_are_neither_a_number_nor_a_share_are_refused(wrong: float | str) -> None:
    with pytest.raises(ValueError, match=r"^epochs must be") as caught:
        resolve({"epochs": wrong})
    if "1.5" in str(wrong):
        assert "write 1.5x" in str(caught.value)


def test_an_override_of_a_stored_file_is_what_the_user_wrote() -> None:
    stored = tomllib.loads(as_toml(made()))
    assert resolve(override(stored, ["epochs=2.0"])).epochs == 2
    assert resolve(override(stored, ["epochs=2x"])).epochs == 2.0
    assert resolve(override(stored, ["epochs=0.5"])).epochs == 0.5
    assert type(resolve(override(stored, ["epochs=2.0"])).epochs) is int


def test_unset_settings_are_comments() -> None:
    lines = as_toml(made(), unset=True).splitlines()
    for key in ("epochs", "dir", "image_size", "per_class", "base", "increment", "total"):
        assert f"# {key} = none" in lines
    assert not any(line.startswith("#") for line in as_toml(made()).splitlines())


def test_epochs_shorten_what_was_given_and_milestones_too() -> None:
    tree = {"data": {"source": "cifar100"}, "training": {"base": {"epochs": 40}}}
    config = resolve({"epochs": 20, **tree})
    assert (config.schedules().base.epochs, config.schedules().increment.epochs) == (20, 20)
    schedules = made("data.source=imagenet:x", "epochs=50%").schedules()
    assert (schedules.base.epochs, schedules.base.milestones) == (35, (15, 30))
    assert (schedules.increment.epochs, schedules.increment.milestones) == (20, (12, 18))


def test_values_get_their_types() -> None:
    config = resolve(
        {
            "data": {"dir": "~/sets", "classes_file": Path("classes.txt"), "source": "imagenet:x"},
            "scenario": {"order": "order.txt"},
            "training": {"base": {"milestones": [3, 6]}},
            "method": {"options": {"lambda_base": 7}},
            "engine": {"precision": 32},
        }
    )
    assert (config.data.dir, config.data.classes_file) == (Path("~/sets"), Path("classes.txt"))
    assert config.scenario.order == Path("order.txt")
    assert config.training.base.milestones == (3, 6)
    assert isinstance(config.method.options.lambda_base, float)
    assert config.engine.precision == "32"
    for order in ("natural", "icarl", 7):
        assert resolve({"scenario": {"order": order}}).scenario.order == order


def test_a_total_unsets_the_exemplars_of_each_class() -> None:
    memory = resolve({"memory": {"total": 2000}}).memory
    assert (memory.per_class, memory.total) == (None, 2000)
    assert resolve({"memory": {"per_class": 0}}).memory.per_class == 0
    scenario = resolve({"scenario": {"increment": 10}}).scenario
    assert (scenario.steps, scenario.increment) == (None, 10)


VARIED: list[dict[str, Any]] = [
    *({"data": {"source": source}} for source in SMALL + LARGE),
    *({"data": {"source": source}, "training": {"preset": "ccil"}} for source in SMALL + LARGE),
    {"data": {"source": "cifar100"}, "training": {"preset": "strong-decay"}},
    *({"method": {"name": name}} for name in METHODS),
    *({"epochs": epochs} for epochs in (3, 0.25, "30%", 1.0, "100%", "1.1x")),
    {"memory": {"total": 2000, "selection": "herding"}},
    {"scenario": {"increment": 1, "base": 4, "order": "orders/mine.txt"}},
    {"scenario": {"steps": 4, "equal": True, "order": "icarl"}},
    {"data": {"dir": 'C:\\a "b"\t\n\x7f\x01é日📁', "per_class": 5}},
    {"training": {"base": {"lr": 1e-5, "weight_decay": 1e-17, "epochs": 3}}},
    {"method": {"name": "fdkd", "options": {"draws": 4, "total": True}}},
    {"engine": {"precision": "bf16", "devices": 2, "workers": 3, "accelerator": "cpu"}},
]


def test_all_sources_are_varied() -> None:
    kinds = {source.partition(":")[0] for source in SOURCES}
    assert {source.partition(":")[0] for source in SMALL + LARGE} == kinds


@pytest.mark.parametrize("tree", VARIED)
def test_settings_survive_toml_and_json(tree: dict[str, Any]) -> None:
    config = resolve(tree)
    text = as_toml(config)
    assert resolve(tomllib.loads(text)) == config
    assert resolve(tomllib.loads(as_toml(config, unset=True))) == config
    assert resolve(json.loads(json.dumps(as_tree(config)))) == config
    assert config.schedules() == resolve(tomllib.loads(text)).schedules()


def test_trees_are_full_and_toml_is_to_be_read() -> None:
    config = made("data.source=imagenet:x", "data.dir=sets", "epochs=3", "memory.total=50")
    tree = as_tree(config)
    assert tree["data"]["dir"] == "sets"
    assert tree["data"]["image_size"] is None
    assert tree["training"]["base"]["milestones"] == [30, 60]
    assert list(tree) == [field.name for field in dataclasses.fields(Config)]
    text = as_toml(config)
    assert text.startswith(
        'seed = 1993\nepochs = 3\nkeep_steps = false\nnetwork = "resnet18"\n\n'
        '[data]\nsource = "imagenet:x"\ndir = "sets"\noversample_rare = false\n'
        "validation = 0.0\n\n[scenario]\n"
    )
    assert "\n[training.base]\nepochs = 70\nlr = 0.1\n" in text
    assert "\nmilestones = [30, 60]\n" in text
    assert "per_class" not in text
    assert text.endswith('precision = "auto"\nnodes = 1\ncompile = "auto"\n')


def test_the_earlier_name_of_oversampling_is_still_read() -> None:
    assert made("data.even=true") == made("data.oversample_rare=true") != made()
    assert made("data.even=true").data.oversample_rare
    assert made("data.even=false") == made()
    # The present name counts if both are given.
    assert not made("data.even=true", "data.oversample_rare=false").data.oversample_rare
    with pytest.raises(ValueError, match=r"data\.oversample_rare must be true or false, not 5"):
        made("data.even=5")


@pytest.mark.parametrize("name", ["icarl", "ccil", "podnet+rdkd"])
@pytest.mark.parametrize("preset", ["paper", "strong-decay", "ccil"])
def test_a_preset_is_refused_where_it_has_no_effect(name: str, preset: str) -> None:
    with pytest.raises(ValueError, match=rf"training\.preset .* {re.escape(name)}.*leave it out"):
        made(f"method.name={name}", f"training.preset={preset}")


def test_a_preset_beside_full_schedules_is_read() -> None:
    # Such as in the configuration of an earlier run, whose preset was ignored.
    tree = as_tree(made("method.name=icarl"))
    assert tree["training"]["preset"] == "paper"
    assert resolve(tree) == made("method.name=icarl")
    tree["training"]["preset"] = "ccil"
    assert resolve(tree).schedules() == made("method.name=icarl").schedules()


HUGE = str(10**20)


@pytest.mark.parametrize(
    "assignment",
    [
        *(f"memory.{key}={HUGE}" for key in ("per_class", "total")),
        *(f"training.base.{key}={HUGE}" for key in ("epochs", "batch_size", "lr", "weight_decay")),
        *("training.base.lr=1e30", "training.base.clamp=1e30", "training.increment.momentum=1e30"),
        *("augment.padding=100000", "data.image_size=0", "data.image_size=100000"),
        *(f"engine.devices={HUGE}", "engine.workers=1000000", f"data.per_class={HUGE}"),
        *(f"scenario.steps={HUGE}", "method.options.temperature=1e308", f"seed={10**30}"),
        *("method.options.draws=999999", f"seed={'9' * 5000}", f"training.base.lr={'9' * 5000}"),
        *(f"data.dir={'[' * 100_000}", f"{'a.' * 5000}b=1", "epochs=1e300x", f"epochs={HUGE}"),
    ],
    ids=lambda assignment: assignment[:40],
)
def test_what_nobody_means_is_refused_in_a_short_sentence(assignment: str) -> None:
    with pytest.raises(ValueError, match=r"\.$") as caught:
        made(assignment)
    assert len(str(caught.value)) < 500
