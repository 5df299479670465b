import datetime
from typing import Any

import pytest

from densekd.config.schema import resolve


def complaint(tree: dict[str, Any]) -> str:
    with pytest.raises(ValueError, match=r"\w") as caught:
        resolve(tree)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    return message


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
        "xyzzy is not a setting; there are seed, epochs, keep_steps, network, data, scenario, "
        "augment, memory, method, training, engine, metrics, loggers, start."
    )
    assert complaint({"augment": {"xyzzy": 1}}) == (
        "augment.xyzzy is not a setting; there are padding, flip, brightness, crop."
    )


def test_a_dotted_key_is_told_its_section() -> None:
    for tree in ({"scenario.steps": 5}, {"method": {"options.temperature": 4}}):
        message = complaint(tree)
        assert "is a setting in the section" in message
        assert "did you mean" not in message


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"seed": "5"}, "seed must be a whole number of 64 bits, not '5'."),
        ({"seed": True}, "seed must be a whole number of 64 bits, not True."),
        ({"seed": 1.5}, "seed must be a whole number of 64 bits, not 1.5."),
        ({"seed": None}, "seed must be a whole number of 64 bits, not None."),
        ({"network": 5}, "network must be text, not 5."),
        ({"augment": {"flip": 1}}, "augment.flip must be true or false, not 1."),
        ({"augment": {"padding": -1}}, "augment.padding must be a whole number from 0 to 256, not"),
        ({"augment": {"brightness": 1}}, "augment.brightness must be a number from 0 to below 1, "),
        (
            {"augment": {"brightness": -0.1}},
            "augment.brightness must be a number from 0 to below 1, not -0.1.",
        ),
        ({"data": {"source": None}}, "data.source must be text, not None."),
        ({"data": {"source": ["digits"]}}, "data.source must be text, not ['digits']."),
        ({"data": {"dir": 5}}, "data.dir must be a path or none, not 5."),
        (
            {"data": {"image_size": 0}},
            "data.image_size must be a whole number from 1 to 4096 or",
        ),
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
            "memory.selection must be 'random', 'herding', 'greedy' or a function such as "
            "mine.py:policy, not 'best'.",
        ),
        ({"method": {"options": {"total": 1}}}, "method.options.total must be true or false or no"),
        (
            {"method": {"options": {"temperature": "2"}}},
            "method.options.temperature must be a number, not '2'.",
        ),
        (
            {"training": {"preset": "fast"}},
            "training.preset must be 'paper', 'strong-decay' or 'ccil', not 'fast'",
        ),
        (
            {"training": {"preset": []}},
            "training.preset must be 'paper', 'strong-decay' or 'ccil', not [].",
        ),
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
        (
            {"engine": {"devices": 0}},
            "engine.devices must be a whole number from 1 to 1024, not",
        ),
        (
            {"engine": {"workers": -1}},
            "engine.workers must be a whole number from 0 to 1024 or none, not",
        ),
        (
            {"engine": {"precision": 16}},
            "engine.precision must be 'auto', '32', 'bf16' or 'fp16', n",
        ),
        (
            {"engine": {"accelerator": "abacus"}},
            "engine.accelerator must be 'auto', 'cpu', 'cuda' or 'mps', not 'abacus'.",
        ),
        (
            {"augment": "much"},
            "augment must be a section with padding, flip, brightness, crop, not 'much'.",
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
        ({"data": {"source": "cifar"}}, "data: There is no source 'cifar'; did you mean cifar10"),
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
            "scenario: Equal tasks are given by steps alone; leave out base and increment.",
        ),
        (
            {"scenario": {"equal": True, "increment": 2}},
            "scenario: Equal tasks are given by steps alone; leave out base and increment.",
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
            "A setting contains bytes that are not text; rename",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(tree: dict[str, Any], message: str) -> None:
    assert complaint(tree).startswith(message)
