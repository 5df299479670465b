import dataclasses
import datetime
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from densekd.config.schema import Config, as_toml, as_tree, base_settings, influential, resolve
from densekd.config.settings_tree import digest, merge, override, read_toml
from densekd.data.sources import SOURCES
from densekd.methods.registry import HOSTS, METHODS
from densekd.methods.schedule import Schedule

SMALL = ["digits", "cifar10", "cifar100", "npz:a.npz", "hub:owner/name", "folder:photos"]
IMAGENET = ["imagenet:data", "imagenet100:data"]


def made(*assignments: str) -> Config:
    """The settings that `-o` would make."""
    return resolve(override({}, assignments))


def complaint(tree: dict[str, Any]) -> str:
    with pytest.raises(ValueError, match=r"\w") as caught:
        resolve(tree)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    return message


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
    assert (config.engine.precision, config.engine.workers) == ("auto", 0)
    assert config.training.preset == "paper"


@pytest.mark.parametrize(
    ("source", "network", "padding", "flip"),
    [
        ("digits", "resnet8", 1, False),
        ("cifar10", "resnet32", 4, True),
        ("cifar100", "resnet32", 4, True),
        ("npz:a.npz", "resnet32", 4, True),
        ("hub:owner/name", "resnet32", 4, True),
        ("folder:photos", "resnet18", 4, True),
        ("imagenet:data", "resnet18", 4, True),
        ("imagenet100:data", "resnet18", 4, True),
    ],
)
def test_network_and_augmentation_follow_from_the_data(
    source: str, network: str, padding: int, flip: bool
) -> None:
    config = resolve({"data": {"source": source}})
    assert config.network == network
    assert (config.augment.padding, config.augment.flip) == (padding, flip)
    assert config.augment.brightness == 0
    config = resolve({"data": {"source": source}, "network": "mine", "augment": {"padding": 7}})
    assert (config.network, config.augment.padding, config.augment.flip) == ("mine", 7, flip)


@pytest.mark.parametrize("source", SMALL[1:])
def test_schedules_of_small_images(source: str) -> None:
    paper = resolve({"data": {"source": source}}).training
    assert paper.base == Schedule(70, 0.1, "cosine", 1e-4, (), 128, 0.9, 1e-4)
    assert paper.increment == Schedule(40, 0.01, "cosine", 1e-4, (), 128, 0.9, 1e-4)
    ccil = resolve({"data": {"source": source}, "training": {"preset": "ccil"}}).training
    assert ccil.preset == "ccil"
    assert ccil.base == Schedule(120, 0.1, "cosine", 1e-4, (), 100, 0.9, 5e-4)
    assert ccil.increment == Schedule(120, 0.01, "cosine", 1e-4, (), 100, 0.9, 5e-4)


def test_digits_have_small_batches() -> None:
    training = resolve({}).training
    assert training.base == training.increment == Schedule(20, 0.1, batch_size=32)


@pytest.mark.parametrize(
    ("source", "ccil_decay"), [("imagenet:data", 1e-4), ("imagenet100:data", 5e-4)]
)
def test_schedules_of_imagenet(source: str, ccil_decay: float) -> None:
    paper = resolve({"data": {"source": source}}).training
    assert paper.base == Schedule(70, 0.1, "milestones", milestones=(30, 60))
    assert paper.increment == Schedule(40, 0.01, "milestones", milestones=(25, 35))
    ccil = resolve({"data": {"source": source}, "training": {"preset": "ccil"}}).training
    assert ccil.base == Schedule(
        70, 0.1, "milestones", milestones=(30, 60), weight_decay=ccil_decay
    )
    assert ccil.increment == Schedule(
        70, 0.01, "milestones", milestones=(20, 35), weight_decay=ccil_decay
    )


def test_part_of_a_schedule_can_be_given() -> None:
    training = resolve(
        {"training": {"preset": "ccil", "base": {"lr": 0.2}, "increment": {"epochs": 9}}}
    ).training
    assert training.base == Schedule(120, 0.2, batch_size=100, weight_decay=5e-4)
    assert training.increment == Schedule(9, 0.01, batch_size=100, weight_decay=5e-4)


def test_another_decay_does_away_with_the_usual_milestones() -> None:
    imagenet = "data.source=imagenet:x"
    assert made(imagenet, "training.base.decay=cosine").training.base == Schedule(70, 0.1)
    assert made(imagenet, "training.base.decay=milestones").training.base.milestones == (30, 60)
    assert made(imagenet, "training.base.milestones=[5]").training.base.milestones == (5,)
    with pytest.raises(ValueError, match=r"^training\.base: milestones go with decay='milestones'"):
        made("training.base.milestones=[5]")


@pytest.mark.parametrize(
    ("source", "plain", "weighted"),
    [(source, 5.0, 20.0) for source in SMALL[1:]]
    + [("digits", 0.5, 0.2), ("imagenet:data", 600.0, 600.0), ("imagenet100:data", 100.0, 100.0)],
)
def test_lambda_follows_from_data_and_method(source: str, plain: float, weighted: float) -> None:
    def lambda_base(*assignments: str) -> float:
        return made(f"data.source={source}", *assignments).method.options.lambda_base

    assert lambda_base() == lambda_base("method.name=gkd") == plain
    assert lambda_base("method.options.lambda_exponent=0.5") == plain
    assert lambda_base("method.name=tkd-adaptive") == weighted
    assert lambda_base("method.options.lambda_exponent=0") == weighted
    assert lambda_base("method.name=rdkd-adaptive", "method.options.lambda_base=3") == 3.0


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
        (1.0, 1.0, 70, 40),
        ("1.0", 1.0, 70, 40),
        ("100%", 1.0, 70, 40),
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


def test_epochs_shorten_what_was_given_and_milestones_too() -> None:
    tree = {"data": {"source": "cifar100"}, "training": {"base": {"epochs": 40}}}
    config = resolve({"epochs": 20, **tree})
    assert (config.schedules().base.epochs, config.schedules().increment.epochs) == (20, 20)
    schedules = made("data.source=imagenet:x", "epochs=50%").schedules()
    assert (schedules.base.epochs, schedules.base.milestones) == (35, (15, 30))
    assert (schedules.increment.epochs, schedules.increment.milestones) == (20, (12, 18))


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        ({"scenario": {"stepz": 5}}, "scenario.stepz; scenario.steps"),
        ({"steps": 5}, "steps; scenario.steps"),
        ({"sceario": {"steps": 5}}, "sceario; scenario"),
        ({"data": {"clases_file": "a"}}, "data.clases_file; data.classes_file"),
        ({"data": {"perclass": 1}}, "data.perclass; data.per_class"),
        ({"memory": {"perclass": 1}}, "memory.perclass; memory.per_class"),
        ({"method": {"lambda": 1}}, "method.lambda; method.options.lambda_base"),
        ({"training": {"epoch": 4}}, "training.epoch; training.base.epochs"),
        ({"training": {"bas": {"lr": 1}}}, "training.bas; training.base"),
        # Of several mistakes, the one that may be the cause of the others.
        ({"seed": "x", "scenario": {"stepz": 5}}, "scenario.stepz; scenario.steps"),
    ],
)
def test_an_unknown_key_gets_the_nearest_one(tree: dict[str, Any], key: str) -> None:
    wrong, near = key.split("; ")
    assert complaint(tree) == f"{wrong} is not a setting; did you mean {near}?"


def test_a_key_that_is_like_no_other_gets_a_list() -> None:
    assert complaint({"xyzzy": 1}) == (
        "xyzzy is not a setting; there are seed, epochs, network, data, scenario, augment, "
        "memory, method, training, engine."
    )
    assert complaint({"augment": {"xyzzy": 1}}) == (
        "augment.xyzzy is not a setting; there are padding, flip, brightness."
    )


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"seed": "5"}, "seed must be a whole number, not '5'."),
        ({"seed": True}, "seed must be a whole number, not True."),
        ({"seed": 1.5}, "seed must be a whole number, not 1.5."),
        ({"seed": None}, "seed must be a whole number, not None."),
        ({"network": 5}, "network must be text, not 5."),
        ({"augment": {"flip": 1}}, "augment.flip must be true or false, not 1."),
        ({"augment": {"padding": -1}}, "augment.padding must be a whole number of at least 0, "),
        ({"augment": {"brightness": 1}}, "augment.brightness must be a number from 0 to below 1, "),
        (
            {"augment": {"brightness": -0.1}},
            "augment.brightness must be a number from 0 to below 1, not -0.1.",
        ),
        ({"data": {"source": None}}, "data.source must be text, not None."),
        ({"data": {"source": ["digits"]}}, "data.source must be text, not ['digits']."),
        ({"data": {"dir": 5}}, "data.dir must be a path or none, not 5."),
        ({"data": {"image_size": 0}}, "data.image_size must be a whole number of at least 1 or no"),
        ({"data": {"per_class": 0}}, "data.per_class must be a whole number of at least 1 or none"),
        ({"scenario": {"steps": -1}}, "scenario.steps must be a whole number of at least 0 or "),
        ({"scenario": {"base": 0}}, "scenario.base must be a whole number of at least 1 or none"),
        ({"scenario": {"increment": 0}}, "scenario.increment must be a whole number of at least 1"),
        (
            {"scenario": {"order": 5.5}},
            "scenario.order must be a seed from 0 to 4294967295, 'natural', 'icarl' or a path, "
            "not 5.5.",
        ),
        ({"scenario": {"order": -1}}, "scenario.order must be a seed from 0 to 4294967295, "),
        ({"scenario": {"order": 2**32}}, "scenario.order must be a seed from 0 to 4294967295, "),
        ({"memory": {"total": "many"}}, "memory.total must be a whole number or none, not 'many'."),
        (
            {"memory": {"selection": "best"}},
            "memory.selection must be 'random', 'herding' or 'greedy', not 'best'.",
        ),
        ({"method": {"options": {"total": 1}}}, "method.options.total must be true or false or no"),
        (
            {"method": {"options": {"temperature": "2"}}},
            "method.options.temperature must be a number, not '2'.",
        ),
        ({"training": {"preset": "fast"}}, "training.preset must be 'paper' or 'ccil', not 'fast'"),
        ({"training": {"preset": []}}, "training.preset must be 'paper' or 'ccil', not []."),
        (
            {"training": {"base": {"decay": "linear"}}},
            "training.base.decay must be 'cosine', 'milestones' or 'constant', not 'linear'.",
        ),
        (
            {"training": {"base": {"milestones": [1, "a"]}}},
            "training.base.milestones must be a list of whole numbers, not [1, 'a'].",
        ),
        (
            {"training": {"increment": {"lr": float("inf")}}},
            "training.increment.lr must be a number, not inf.",
        ),
        ({"engine": {"devices": 0}}, "engine.devices must be a whole number of at least 1, not 0."),
        ({"engine": {"workers": -1}}, "engine.workers must be a whole number of at least 0, not -"),
        ({"engine": {"precision": 16}}, "engine.precision must be 'auto', '32' or 'bf16', not '16"),
        (
            {"engine": {"accelerator": "abacus"}},
            "engine.accelerator must be 'auto', 'cpu', 'cuda' or 'mps', not 'abacus'.",
        ),
        (
            {"augment": "much"},
            "augment must be a section with padding, flip, brightness, not 'much'.",
        ),
        ({"data": "digits"}, "data must be a section with source, dir, "),
        ({"memory": 5}, "memory must be a section with per_class, total, selection, not 5."),
        ({"training": {"base": 5}}, "training.base must be a section with epochs, lr, "),
        (
            {"epochs": 0},
            "epochs must be a whole number of at least 1, a share above 0 or none, not 0.",
        ),
        ({"epochs": -0.5}, "epochs must be a whole number of at least 1, a share above 0 or none"),
        ({"epochs": True}, "epochs must be a whole number of at least 1, a share above 0 or none"),
        ({"epochs": "-3"}, "epochs must be a whole number of at least 1, a share above 0 or none"),
        ({"epochs": "0%"}, "epochs must be a whole number of at least 1, a share above 0 or none"),
        ({"epochs": "nan"}, "epochs must be a whole number of at least 1, a share above 0 or none"),
        (
            {"epochs": "few"},
            "epochs must be a number such as 10, or a share such as 0.3 or 30%, not 'few'.",
        ),
        ({"epochs": "%"}, "epochs must be a number such as 10, or a share such as 0.3 or 30%, no"),
        ({"epochs": "³"}, "epochs must be a number such as 10, or a share such as 0.3 or 30%, not"),
    ],
)
def test_a_wrong_value_is_told_what_it_may_be(tree: dict[str, Any], message: str) -> None:
    assert complaint(tree).startswith(message)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"data": {"source": "cifar"}}, "data: There is no source 'cifar'; the nearest of "),
        ({"data": {"source": "folder"}}, "data: folder must say which; write it as folder:PATH."),
        ({"method": {"name": "rdk"}}, "method: There is no method 'rdk'; did you mean rdkd?"),
        (
            {"method": {"options": {"lambda_base": -1}}},
            "method.options: lambda_base must be at least 0, not -1.0.",
        ),
        (
            {"method": {"options": {"temperature": 0}}},
            "method: temperature must be a positive number, not 0.0.",
        ),
        (
            {"method": {"name": "gkd", "options": {"draws": 2}}},
            "method: draws goes with groups='random' or 'every', not 'whole'.",
        ),
        (
            {"memory": {"per_class": 20, "total": 2000}},
            "memory: Give either per_class or total exemplars, and not both.",
        ),
        (
            {"memory": {"per_class": None}},
            "memory: Give either per_class or total exemplars, and not both.",
        ),
        ({"memory": {"per_class": -1}}, "memory: Can't keep -1 exemplars."),
        (
            {"scenario": {"steps": 5, "increment": 10}},
            "scenario: Give either steps or increment, and not both.",
        ),
        (
            {"scenario": {"steps": None}},
            "scenario: Give either steps or increment, and not both.",
        ),
        (
            {"scenario": {"equal": True, "base": 2}},
            "scenario: Equal tasks are given by steps alone: base and increment follow.",
        ),
        (
            {"scenario": {"equal": True, "increment": 2}},
            "scenario: Equal tasks are given by steps alone: base and increment follow.",
        ),
        (
            {"training": {"increment": {"epochs": 0}}},
            "training.increment: Can't train for 0 epochs at rate 0.1 in batches of 32.",
        ),
        (
            {"data": {"dir": datetime.date(2020, 1, 2)}},
            "2020-01-02 is not a value that a setting can have; write text in quotes.",
        ),
        (
            {"data": {"dir": "caf\udce9"}},
            "A setting has bytes in it that are no text; rename what it names.",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(tree: dict[str, Any], message: str) -> None:
    assert complaint(tree).startswith(message)


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


def test_later_trees_come_first() -> None:
    below = {"seed": 1, "data": {"source": "digits", "dir": "a"}, "memory": {"total": 9}}
    above = {"data": {"dir": None}, "memory": {"per_class": 3}, "epochs": 2}
    before = json.dumps([below, above])
    assert merge(below, above) == {
        "seed": 1,
        "data": {"source": "digits", "dir": None},
        "memory": {"total": None, "per_class": 3},
        "epochs": 2,
    }
    assert json.dumps([below, above]) == before
    assert merge() == {}
    assert merge({"data": 5}, {"data": {"dir": "a"}}) == {"data": {"dir": "a"}}
    assert merge({"data": {"dir": "a"}}, {"data": 5}) == {"data": 5}
    # What one tree contradicts itself in stays, to be refused.
    both = {"scenario": {"steps": 1, "increment": 1}}
    assert merge(both) == both


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("0.5", 0.5),
        ("1e-3", 1e-3),
        ("true", True),
        ("[30, 60]", [30, 60]),
        ("'natural'", "natural"),
        ('"5"', "5"),
        ("natural", "natural"),
        ("folder:a=b", "folder:a=b"),
        ("30%", "30%"),
        ("", ""),
        ("none", None),
        ("None", None),
        ("2020-01-02", "2020-01-02"),
        ("5\nb = 6", "5\nb = 6"),
    ],
)
def test_overrides_are_read_as_toml_or_text(text: str, value: Any) -> None:
    for assignment in (f"a.b={text}", f" a . b = {text} "):
        overridden = override({"a": {"b": 1, "c": 2}, "d": 3}, [assignment])
        assert overridden == {"a": {"b": value, "c": 2}, "d": 3}
        assert type(overridden["a"]["b"]) is type(value)


def test_overrides_come_after_the_tree_and_one_after_the_other() -> None:
    tree = {"memory": {"per_class": 20}, "seed": 1}
    assert override(tree, []) == {"memory": {"per_class": 20, "total": None}, "seed": 1}
    assert override(tree, ["seed=2", "seed=3", "memory.total=9"]) == {
        "memory": {"per_class": None, "total": 9},
        "seed": 3,
    }
    assert tree == {"memory": {"per_class": 20}, "seed": 1}
    assert override({}, ["memory={per_class = 5}"])["memory"]["per_class"] == 5
    with pytest.raises(ValueError, match="either per_class or total"):
        made("memory.total=9", "memory.per_class=9")


@pytest.mark.parametrize("assignment", ["scenario.steps", "=5", "scenario.=5", ".steps=5", ""])
def test_an_override_is_key_and_value(assignment: str) -> None:
    with pytest.raises(ValueError, match=r"KEY=VALUE, such as scenario\.steps=5, not '.*'\.$"):
        override({}, [assignment])


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xef\xbb\xbfepochs = '30%'\r\n[scenario]\r\nsteps = 2\r\n")
    assert read_toml(path) == {"epochs": "30%", "scenario": {"steps": 2}}


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    with pytest.raises(ValueError, match=rf"^There is no configuration file {path}\.$"):
        read_toml(path)
    path.write_text("seed = 1\nsteps 5\n")
    with pytest.raises(ValueError, match=rf"^{path} is not TOML: .* \(at line 2, column 7\)\.$"):
        read_toml(path)
    path.write_bytes(b"seed = '\xff'")
    with pytest.raises(ValueError, match=rf"^{path} can't be read as a text file \(.*\)\.$"):
        read_toml(path)
    with pytest.raises(ValueError, match=rf"^{tmp_path} can't be read as a text file \(.*\)\.$"):
        read_toml(tmp_path)


VARIED: list[dict[str, Any]] = [
    *({"data": {"source": source}} for source in SMALL + IMAGENET),
    *({"data": {"source": source}, "training": {"preset": "ccil"}} for source in SMALL + IMAGENET),
    *({"method": {"name": name}} for name in METHODS),
    *({"epochs": epochs} for epochs in (3, 0.25, "30%", 1.0)),
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
    assert {source.partition(":")[0] for source in SMALL + IMAGENET} == kinds


@pytest.mark.parametrize("tree", VARIED)
def test_settings_survive_toml_and_json(tree: dict[str, Any]) -> None:
    config = resolve(tree)
    text = as_toml(config)
    assert resolve(tomllib.loads(text)) == config
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
        'seed = 1993\nepochs = 3\nnetwork = "resnet18"\n\n'
        '[data]\nsource = "imagenet:x"\ndir = "sets"\neven = false\n\n[scenario]\n'
    )
    assert "\n[training.base]\nepochs = 70\nlr = 0.1\n" in text
    assert "\nmilestones = [30, 60]\n" in text
    assert "per_class" not in text
    assert text.endswith("workers = 0\n")


def test_digests_stay_and_do_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": [1, 2.5, None, "é"]}) == "cd12671bab98"
    assert digest({"b": 1, "a": {"d": 2, "c": 3}}) == digest({"a": {"c": 3, "d": 2}, "b": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert digest([1, 2]) != digest([2, 1])
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest(float("nan"))


# One change of every setting.
CHANGES = [
    "seed=1",
    "epochs=5",
    "network=resnet32",
    "data.source=cifar10",
    "data.dir=sets",
    "data.image_size=16",
    "data.classes_file=names.txt",
    "data.image_column=img",
    "data.label_column=label",
    "data.per_class=9",
    "data.even=true",
    "scenario.steps=1",
    "scenario.base=4",
    "scenario.increment=1",
    "scenario.equal=true",
    "scenario.order=natural",
    "augment.padding=2",
    "augment.flip=true",
    "augment.brightness=0.1",
    "memory.per_class=10",
    "memory.total=100",
    "memory.selection=greedy",
    "method.name=gkd",
    "method.options.lambda_base=1",
    "method.options.lambda_exponent=0",
    "method.options.temperature=4",
    "method.options.reduction=batch",
    "method.options.tau_squared=false",
    "method.options.direction=student",
    "method.options.single=resample",
    "method.options.draws=3",
    "method.options.per_image=true",
    "method.options.distil_on=new",
    "method.options.streams=merged",
    "method.options.similarity=rescaled",
    "method.options.size_ratio=all",
    "method.options.vectors=recomputed",
    "method.options.head=linear",
    "training.preset=ccil",
    "training.base.epochs=9",
    "training.base.lr=0.5",
    "training.base.decay=constant",
    "training.base.lr_end=0.01",
    "training.base.batch_size=64",
    "training.base.momentum=0.5",
    "training.base.weight_decay=0",
    "training.increment.epochs=9",
    "training.increment.lr=0.5",
    "training.increment.decay=constant",
    "training.increment.lr_end=0.001",
    "training.increment.batch_size=64",
    "training.increment.momentum=0.5",
    "training.increment.weight_decay=0",
    "engine.accelerator=cpu",
    "engine.devices=2",
    "engine.precision=bf16",
    "engine.workers=2",
]
WITHOUT_INFLUENCE = {"data.dir", "engine.workers"}
# What acts on the base task: sections, and single settings.
ON_THE_BASE = (
    "seed",
    "epochs",
    "network",
    "data.",
    "augment.",
    "engine.",
    "training.base.",
    "training.preset",
    "scenario.order",
    "method.options.streams",
    "method.options.head",
)


def leaves(tree: dict[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for key, value in tree.items():
        inside = isinstance(value, dict)
        found |= leaves(value, f"{prefix}{key}.") if inside else {prefix + key}
    return found


def test_every_setting_is_changed_once() -> None:
    changed = [change.partition("=")[0] for change in CHANGES]
    # These exclude something in what the changes start from.
    others = {"training.base.milestones", "training.increment.milestones"}
    others |= {"method.options.total", "method.options.skip_base"}
    # These have no effect with it.
    others |= {f"method.{host.replace('-', '_')}" for host in HOSTS} | {"training.finish"}
    others |= {
        f"training.{part}.{k}" for part in ("base", "increment") for k in ("clamp", "factor")
    }
    assert sorted([*changed, *others]) == sorted(leaves(as_tree(resolve({}))))


@pytest.mark.parametrize("change", CHANGES)
def test_what_influences_a_run_and_what_its_base(change: str) -> None:
    usual, changed = resolve({}), made(change)
    assert usual != changed
    key = change.partition("=")[0]
    same = digest(influential(usual)) == digest(influential(changed))
    assert same == (key in WITHOUT_INFLUENCE)
    shared = digest(base_settings(usual, 5)) == digest(base_settings(changed, 5))
    assert shared == (key in WITHOUT_INFLUENCE or not key.startswith(ON_THE_BASE))


@pytest.mark.parametrize("name", METHODS)
def test_methods_share_a_base(name: str) -> None:
    other = made(f"method.name={name}")
    same = base_settings(other, 5) == base_settings(resolve({}), 5)
    assert same == (name != "joint" and name not in HOSTS)
    if name in HOSTS:
        return
    merged = made(f"method.name={name}", "method.options.streams=merged")
    assert base_settings(merged, 5) == base_settings(made("method.name=joint"), 5)


def test_a_base_that_holds_images_out_is_shared_by_runs_that_keep_as_many() -> None:
    def of(*changes: str) -> dict[str, Any]:
        return base_settings(made("method.name=bic", *changes), 5)

    assert of() != of("memory.per_class=40")
    assert of() == of("method.options.lambda_base=1.0")
    assert base_settings(made("method.name=icarl"), 5) == base_settings(
        made("method.name=icarl", "memory.per_class=40"), 5
    )


def test_a_base_is_shared_by_what_is_trained_not_by_how_it_is_written() -> None:
    usual = base_settings(resolve({}), 5)
    assert base_settings(resolve({}), 4) != usual
    assert base_settings(made("epochs=1.0"), 5) == usual
    assert base_settings(made("epochs=7"), 5) == base_settings(made("training.base.epochs=7"), 5)
    assert base_settings(made("epochs=7"), 5) == base_settings(made("epochs=35%"), 5)
    assert base_settings(made("scenario.base=5", "scenario.steps=1"), 5) == usual
    imagenet = base_settings(made("data.source=imagenet:x"), 500)
    assert json.loads(json.dumps(imagenet)) == imagenet
    assert imagenet["schedule"]["milestones"] == [30, 60]
    assert "dir" not in imagenet["data"]
    assert "workers" not in imagenet["engine"]
