"""The defaults of a configuration, for all data, and those published for the baselines."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from densekd.config.schema import Config, resolve
from densekd.config.settings_tree import override
from densekd.methods.method import DataKind
from densekd.methods.registry import BASELINES
from densekd.methods.schedule import Schedule
from densekd.methods.ucir import UcirOptions
from densekd.nn.registry import make_backbone

from support.schedules import schedule_facts

SMALL = ["digits", "cifar10", "cifar100", "npz:a.npz", "hub:owner/name"]
SOURCES: dict[DataKind, str] = {
    "digits": "digits",
    "small": "cifar100",
    "imagenet100": "imagenet100:x",
    "imagenet": "imagenet:x",
}


def made(*assignments: str) -> Config:
    """The settings that `-o` would make."""
    return resolve(override({}, assignments))


def of_method(name: str, source: str = "digits", **other: Any) -> Config:
    return resolve({"method": {"name": name}, "data": {"source": source}, **other})


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
        ("imagenet100-podnet:data", "resnet18", 4, True),
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


@pytest.mark.parametrize("source", [*SMALL, "imagenet:data"])
def test_strong_decay_is_the_papers_schedule_but_for_weight_decay(source: str) -> None:
    paper, strong = (
        resolve({"data": {"source": source}, "training": {"preset": preset}}).training
        for preset in ("paper", "strong-decay")
    )
    assert strong.preset == "strong-decay"
    for part in ("base", "increment"):
        assert getattr(strong, part) == replace(getattr(paper, part), weight_decay=5e-4)


def test_digits_have_small_batches() -> None:
    training = resolve({}).training
    assert training.base == training.increment == Schedule(20, 0.1, batch_size=32)


@pytest.mark.parametrize(
    ("source", "ccil_decay"),
    [("imagenet:data", 1e-4), ("imagenet100:data", 5e-4), ("folder:photos", 5e-4)],
)
def test_schedules_of_large_images(source: str, ccil_decay: float) -> None:
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
    + [("digits", 0.5, 0.2), ("imagenet:data", 600.0, 600.0), ("imagenet100:data", 100.0, 100.0)]
    + [("folder:photos", 100.0, 100.0)],
)
def test_lambda_follows_from_data_and_method(source: str, plain: float, weighted: float) -> None:
    def lambda_base(*assignments: str) -> float:
        return made(f"data.source={source}", *assignments).method.options.lambda_base

    assert lambda_base() == lambda_base("method.name=gkd") == plain
    assert lambda_base("method.options.lambda_exponent=0.5") == plain
    assert lambda_base("method.name=tkd-adaptive") == weighted
    assert lambda_base("method.options.lambda_exponent=0") == weighted
    assert lambda_base("method.name=rdkd-adaptive", "method.options.lambda_base=3") == 3.0


POD = (160, 0.1, 128, 5e-4, 0.0)
POD_FINISH = (20, 0.05, 128, 5e-4, "constant")


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("host", BASELINES)
def test_all_of_it_arrives_in_the_configuration(host: str, kind: DataKind) -> None:
    known = BASELINES[host].published_for(kind)
    for name in (host, f"{host}+rdkd-adaptive"):
        config = of_method(name, SOURCES[kind])
        assert config.method.own == known.options
        assert config.schedules() == known.schedules
        assert known.network in (None, config.network)
        assert config.memory.selection == known.selection
        assert config.augment.brightness == known.brightness


def test_podnet_as_a_whole() -> None:
    config = of_method("podnet", "cifar100")
    assert (config.network, config.memory.selection) == ("podnet32", "herding")
    assert (config.augment.padding, config.augment.flip) == (4, True)
    assert config.augment.brightness == 63 / 255
    assert schedule_facts(config.training.base) == schedule_facts(config.training.increment) == POD
    assert schedule_facts(config.training.finish) == POD_FINISH
    assert of_method("podnet", "imagenet:x").network == of_method("afc", "imagenet100:x").network


def test_ucirs_features_are_not_rectified_on_imagenet_either() -> None:
    for source in ("imagenet:x", "imagenet100:x"):
        network = make_backbone(of_method("ucir", source).network)
        assert (network(torch.randn(2, 3, 64, 64)).pooled < 0).any()


@pytest.mark.parametrize(
    ("host", "selection"),
    [("icarl", "herding"), ("bic", "greedy"), ("ucir", "herding"), ("ccil", "random")],
)
def test_exemplars_are_chosen_as_published(host: str, selection: str) -> None:
    assert (
        of_method(host).memory.selection
        == of_method(host, "cifar100").memory.selection
        == selection
    )


def test_what_a_user_gives_comes_before_what_was_published() -> None:
    config = of_method(
        "podnet",
        "cifar100",
        network="podnet14",
        epochs=16,
        memory={"selection": "random"},
        training={"finish": {"lr": 0.2}},
    )
    assert (config.network, config.memory.selection) == ("podnet14", "random")
    schedules = config.schedules()
    assert (schedules.base.epochs, schedules.increment.epochs) == (16, 16)
    assert schedule_facts(schedules.finish) == (5, 0.2, 128, 5e-4, "constant")
    ucir = resolve({"method": {"name": "ucir", "ucir": {"margin": 0.3}}})
    assert ucir.method.own == UcirOptions(lambda_base=5.0, margin=0.3)


@pytest.mark.parametrize("part", ["base", "increment"])
def test_another_decay_leaves_the_published_milestones_out(part: str) -> None:
    config = of_method("ucir", "cifar100", training={part: {"decay": "cosine"}})
    schedule: Schedule = getattr(config.training, part)
    assert (schedule.decay, schedule.milestones, schedule.epochs) == ("cosine", (), 160)


def test_a_decay_can_be_given_to_a_finish_of_ones_own() -> None:
    finish = of_method("ucir", training={"finish": {"decay": "constant"}}).training.finish
    assert finish == Schedule(decay="constant")
    # Also one with published milestones.
    finish = of_method(
        "bic", "cifar100", training={"finish": {"decay": "constant"}}
    ).training.finish
    assert schedule_facts(finish) == (200, 0.1, 128, 0.0, "constant")


@pytest.mark.parametrize(
    ("name", "other"), [("icarl", "ucir"), ("icarl-softmax", "icarl"), ("bic+rdkd", "ccil")]
)
def test_options_of_another_baseline_are_refused(name: str, other: str) -> None:
    with pytest.raises(ValueError, match=f"{other} has no meaning for .*; leave it out") as error:
        resolve({"method": {"name": name, other: {}}})
    assert name in str(error.value)


def test_options_of_a_baseline_mean_nothing_to_the_papers_methods() -> None:
    with pytest.raises(ValueError, match="ucir has no meaning for rdkd; leave it out"):
        resolve({"method": {"name": "rdkd", "ucir": {"margin": 0.3}}})


def test_a_misspelt_option_is_refused_with_the_nearest() -> None:
    sentence = r"method\.ucir\.margni is not a setting; did you mean method\.ucir\.margin\?"
    with pytest.raises(ValueError, match=sentence):
        resolve({"method": {"name": "ucir", "ucir": {"margni": 0.3}}})
    with pytest.raises(ValueError, match=r"did you mean method\.icarl_softmax\?"):
        resolve({"method": {"name": "icarl-softmax", "icarl-softmax": {}}})


def test_adamw_gets_a_rate_of_its_own() -> None:
    base = made("training.base.optimiser=adamw").training.base
    assert (base.optimiser, base.lr) == ("adamw", 1e-3)
    assert made("training.base.optimiser=adamw").training.increment.optimiser == "sgd"
    given = made("training.base.optimiser=adamw", "training.base.lr=0.01").training.base
    assert given.lr == 0.01
