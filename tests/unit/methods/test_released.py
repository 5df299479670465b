"""The settings that baselines were released with, and their way into a configuration."""

from typing import Any

import pytest
import torch

from densekd.config.schema import Config, base_settings, resolve
from densekd.methods.registry import HOSTS
from densekd.methods.released import released
from densekd.methods.schedule import Schedule
from densekd.methods.ucir import UcirOptions
from densekd.nn.registry import make_backbone

SOURCES = {
    "digits": "digits",
    "small": "cifar100",
    "imagenet100": "imagenet100:x",
    "imagenet": "imagenet:x",
}


def made(name: str, source: str = "digits", **other: Any) -> Config:
    return resolve({"method": {"name": name}, "data": {"source": source}, **other})


def facts(schedule: Schedule | None) -> tuple[object, ...] | None:
    """Epochs, rate, batch size, weight decay, and how the rate falls."""
    if schedule is None:
        return None
    falls: object = schedule.decay
    if schedule.decay == "milestones":
        falls = (schedule.milestones, schedule.factor)
    if schedule.decay == "cosine":
        falls = schedule.lr_end
    return schedule.epochs, schedule.lr, schedule.batch_size, schedule.weight_decay, falls


ICARL = (70, 2.0, 128, 2e-5, ((49, 63), 0.2))
ICARL_LARGE = (60, 2.0, 128, 2e-5, ((20, 30, 40, 50), 0.2))
UCIR = (160, 0.1, 128, 5e-4, ((80, 120), 0.1))
UCIR_LARGE = (90, 0.1, 128, 1e-4, ((30, 60), 0.1))
BIAS = (200, 0.1, 128, 0.0, ((60, 120, 160, 180), 0.1))
BIC = (250, 0.1, 128, 2e-4, ((100, 150, 200), 0.1))
BIC_LARGE = (100, 0.1, 256, 1e-4, ((30, 60, 80, 90), 0.1))
BIAS_LARGE = (200, 0.1, 256, 0.0, ((60, 120, 160, 180), 0.1))
POD = (160, 0.1, 128, 5e-4, 0.0)
POD_FINISH = (20, 0.05, 128, 5e-4, "constant")
AFC_LARGE = (90, 0.1, 128, 1e-4, 0.0)
AFC_FINISH = (20, 0.02, 128, 1e-4, "constant")

# Host, kind of data: the schedules of the base, of increments, and of what comes after.
COURSES: dict[tuple[str, str], tuple[object, object, object]] = {
    ("icarl", "small"): (ICARL, ICARL, None),
    ("icarl", "imagenet100"): (ICARL_LARGE, ICARL_LARGE, None),
    ("icarl", "imagenet"): (ICARL_LARGE, ICARL_LARGE, None),
    ("icarl-softmax", "small"): (UCIR, UCIR, None),
    ("icarl-softmax", "imagenet100"): (UCIR_LARGE, UCIR_LARGE, None),
    ("icarl-softmax", "imagenet"): (UCIR_LARGE, UCIR_LARGE, None),
    ("bic", "small"): (BIC, BIC, BIAS),
    ("bic", "imagenet100"): (BIC_LARGE, BIC_LARGE, BIAS_LARGE),
    ("bic", "imagenet"): (BIC_LARGE, BIC_LARGE, BIAS_LARGE),
    ("ucir", "small"): (UCIR, UCIR, None),
    ("ucir", "imagenet100"): (UCIR_LARGE, UCIR_LARGE, None),
    ("ucir", "imagenet"): (UCIR_LARGE, UCIR_LARGE, (20, 0.01, 128, 1e-4, ((10,), 0.1))),
    ("podnet", "small"): (POD, POD, POD_FINISH),
    ("podnet", "imagenet100"): (
        (90, 0.05, 64, 5e-4, 0.0),
        (90, 0.05, 64, 5e-4, 0.0),
        (20, 0.01, 64, 5e-4, "constant"),
    ),
    ("podnet", "imagenet"): (
        (90, 0.05, 64, 1e-4, 0.0),
        (90, 0.05, 64, 1e-4, 0.0),
        (20, 0.01, 64, 1e-4, "constant"),
    ),
    ("ccil", "small"): ((120, 0.1, 100, 5e-4, 1e-4), (120, 0.01, 100, 5e-4, 1e-4), None),
    ("ccil", "imagenet100"): (
        (70, 0.1, 128, 5e-4, ((30, 60), 0.1)),
        (70, 0.01, 128, 5e-4, ((20, 35), 0.1)),
        None,
    ),
    ("ccil", "imagenet"): (
        (70, 0.1, 128, 1e-4, ((30, 60), 0.1)),
        (70, 0.01, 128, 1e-4, ((20, 35), 0.1)),
        None,
    ),
    ("afc", "small"): (POD, POD, POD_FINISH),
    ("afc", "imagenet100"): (AFC_LARGE, AFC_LARGE, AFC_FINISH),
    ("afc", "imagenet"): (AFC_LARGE, AFC_LARGE, AFC_FINISH),
}


@pytest.mark.parametrize(("host", "kind"), COURSES)
def test_schedules_are_those_released(host: str, kind: str) -> None:
    schedules = released(host, kind).schedules
    expected = COURSES[host, kind]
    assert (facts(schedules.base), facts(schedules.increment), facts(schedules.finish)) == expected
    assert schedules.base.momentum == schedules.increment.momentum == 0.9


def test_no_baseline_is_left_out() -> None:
    assert {host for host, _ in COURSES} == set(HOSTS)


@pytest.mark.parametrize(
    ("host", "option", "small", "imagenet100", "imagenet"),
    [
        ("icarl", "predicts", "nearest-mean", "nearest-mean", "nearest-mean"),
        ("icarl-softmax", "lambda_base", 0.25, 0.25, 0.25),
        ("icarl-softmax", "temperature", 2.0, 2.0, 2.0),
        ("bic", "temperature", 2.0, 2.0, 2.0),
        ("bic", "gamma_decay", 0.1, 0.1, 0.1),
        ("bic", "held_out", 0.1, 0.1, 0.1),
        ("ucir", "lambda_base", 5.0, 10.0, 10.0),
        ("ucir", "margin", 0.5, 0.5, 0.5),
        ("ucir", "k", 2, 2, 2),
        ("podnet", "spatial", 3.0, 8.0, 8.0),
        ("podnet", "flat", 1.0, 10.0, 10.0),
        ("podnet", "clamp", 5.0, 5.0, 5.0),
        ("podnet", "nca", "released", "released", "released"),
        ("ccil", "lambda_base", 5.0, 100.0, 600.0),
        ("ccil", "lambda_exponent", 0.66, 0.66, 0.66),
        ("afc", "lambda_base", 4.0, 10.0, 10.0),
    ],
)
def test_constants_are_those_released(
    host: str, option: str, small: object, imagenet100: object, imagenet: object
) -> None:
    found = [getattr(released(host, kind).options, option) for kind in list(SOURCES)[1:]]
    assert found == [small, imagenet100, imagenet]


@pytest.mark.parametrize("host", HOSTS)
def test_what_nobody_released_is_as_for_small_images(host: str) -> None:
    assert released(host, "folder") == released(host, "cifar10") == released(host, "small")
    assert released(host, "digits") != released(host, "small")


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("host", HOSTS)
def test_all_of_it_arrives_in_the_configuration(host: str, kind: str) -> None:
    known = released(host, kind)
    for name in (host, f"{host}+rdkd-adaptive"):
        config = made(name, SOURCES[kind])
        assert getattr(config.method, host.replace("-", "_")) == known.options
        assert config.schedules() == known.schedules
        assert known.network in (None, config.network)
        assert config.memory.selection == known.selection
        assert config.augment.brightness == known.brightness


def test_podnet_as_a_whole() -> None:
    config = made("podnet", "cifar100")
    assert (config.network, config.memory.selection) == ("podnet32", "herding")
    assert (config.augment.padding, config.augment.flip) == (4, True)
    assert config.augment.brightness == 63 / 255
    assert facts(config.training.base) == facts(config.training.increment) == POD
    assert facts(config.training.finish) == POD_FINISH
    assert made("podnet", "imagenet:x").network == made("afc", "imagenet100:x").network


def test_ucirs_features_are_not_rectified_on_imagenet_either() -> None:
    for source in ("imagenet:x", "imagenet100:x"):
        network = make_backbone(made("ucir", source).network)
        assert (network(torch.randn(2, 3, 64, 64)).pooled < 0).any()


@pytest.mark.parametrize(
    ("host", "selection"),
    [("icarl", "herding"), ("bic", "greedy"), ("ucir", "herding"), ("ccil", "random")],
)
def test_exemplars_are_chosen_as_released(host: str, selection: str) -> None:
    assert made(host).memory.selection == made(host, "cifar100").memory.selection == selection


def test_what_a_user_gives_comes_before_what_was_released() -> None:
    config = made(
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
    assert facts(schedules.finish) == (5, 0.2, 128, 5e-4, "constant")
    ucir = resolve({"method": {"name": "ucir", "ucir": {"margin": 0.3}}})
    assert ucir.method.ucir == UcirOptions(lambda_base=5.0, margin=0.3)


@pytest.mark.parametrize("part", ["base", "increment"])
def test_another_decay_leaves_the_released_milestones_out(part: str) -> None:
    config = made("ucir", "cifar100", training={part: {"decay": "cosine"}})
    schedule: Schedule = getattr(config.training, part)
    assert (schedule.decay, schedule.milestones, schedule.epochs) == ("cosine", (), 160)


def test_a_decay_can_be_given_to_a_finish_of_ones_own() -> None:
    finish = made("ucir", training={"finish": {"decay": "constant"}}).training.finish
    assert finish == Schedule(decay="constant")
    # Also one that has milestones as released.
    finish = made("bic", "cifar100", training={"finish": {"decay": "constant"}}).training.finish
    assert facts(finish) == (200, 0.1, 128, 0.0, "constant")


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


def test_a_base_is_shared_with_combinations_and_not_with_other_baselines() -> None:
    bases = {host: base_settings(made(host), 5) for host in HOSTS}
    for host, base in bases.items():
        assert base_settings(made(f"{host}+rdkd"), 5) == base
        assert base_settings(made(f"{host}+fdkd-adaptive"), 5) == base
        assert base_settings(made("rdkd"), 5) != base
        assert [other for other in HOSTS if bases[other] == base] == [host]


def test_a_base_that_goes_on_in_generations_depends_on_their_schedule() -> None:
    def base(generations: int, lr: float) -> dict[str, Any]:
        method = {"name": "ccil", "ccil": {"generations": generations}}
        config = resolve({"method": method, "training": {"finish": {"lr": lr}}})
        return base_settings(config, 5)

    assert base(1, 0.1) != base(1, 0.2)
    assert base(1, 0.1) != base(2, 0.1)
    assert base(0, 0.1) == base(0, 0.2)
