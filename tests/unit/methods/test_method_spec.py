"""The published settings of the baselines."""

from typing import get_args

import pytest

from densekd.methods.icarl import ICARL, IcarlOptions
from densekd.methods.method import DataKind, MethodSpec
from densekd.methods.registry import BASELINES, METHODS
from densekd.methods.schedule import Schedules
from densekd.methods.ucir import UcirOptions

from support.schedules import schedule_facts

KINDS: tuple[DataKind, ...] = get_args(DataKind)


ICARL_FACTS = (70, 2.0, 128, 2e-5, ((49, 63), 0.2))
ICARL_LARGE_FACTS = (60, 2.0, 128, 2e-5, ((20, 30, 40, 50), 0.2))
UCIR_FACTS = (160, 0.1, 128, 5e-4, ((80, 120), 0.1))
UCIR_LARGE_FACTS = (90, 0.1, 128, 1e-4, ((30, 60), 0.1))
BIAS = (200, 0.1, 128, 0.0, ((60, 120, 160, 180), 0.1))
BIC_FACTS = (250, 0.1, 128, 2e-4, ((100, 150, 200), 0.1))
BIC_LARGE_FACTS = (100, 0.1, 256, 1e-4, ((30, 60, 80, 90), 0.1))
BIAS_LARGE = (200, 0.1, 256, 0.0, ((60, 120, 160, 180), 0.1))
POD_FACTS = (160, 0.1, 128, 5e-4, 0.0)
POD_FINISH = (20, 0.05, 128, 5e-4, "constant")
AFC_LARGE_FACTS = (90, 0.1, 128, 1e-4, 0.0)
AFC_FINISH = (20, 0.02, 128, 1e-4, "constant")

# Host, kind of data: the schedules of the base, of increments, and of what comes after.
PUBLISHED_SCHEDULES: dict[tuple[str, DataKind], tuple[object, object, object]] = {
    ("icarl", "small"): (ICARL_FACTS, ICARL_FACTS, None),
    ("icarl", "imagenet100"): (ICARL_LARGE_FACTS, ICARL_LARGE_FACTS, None),
    ("icarl", "imagenet"): (ICARL_LARGE_FACTS, ICARL_LARGE_FACTS, None),
    ("icarl-softmax", "small"): (UCIR_FACTS, UCIR_FACTS, None),
    ("icarl-softmax", "imagenet100"): (UCIR_LARGE_FACTS, UCIR_LARGE_FACTS, None),
    ("icarl-softmax", "imagenet"): (UCIR_LARGE_FACTS, UCIR_LARGE_FACTS, None),
    ("bic", "small"): (BIC_FACTS, BIC_FACTS, BIAS),
    ("bic", "imagenet100"): (BIC_LARGE_FACTS, BIC_LARGE_FACTS, BIAS_LARGE),
    ("bic", "imagenet"): (BIC_LARGE_FACTS, BIC_LARGE_FACTS, BIAS_LARGE),
    ("ucir", "small"): (UCIR_FACTS, UCIR_FACTS, None),
    ("ucir", "imagenet100"): (UCIR_LARGE_FACTS, UCIR_LARGE_FACTS, None),
    ("ucir", "imagenet"): (UCIR_LARGE_FACTS, UCIR_LARGE_FACTS, (20, 0.01, 128, 1e-4, ((10,), 0.1))),
    ("podnet", "small"): (POD_FACTS, POD_FACTS, POD_FINISH),
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
    ("afc", "small"): (POD_FACTS, POD_FACTS, POD_FINISH),
    ("afc", "imagenet100"): (AFC_LARGE_FACTS, AFC_LARGE_FACTS, AFC_FINISH),
    ("afc", "imagenet"): (AFC_LARGE_FACTS, AFC_LARGE_FACTS, AFC_FINISH),
}


@pytest.mark.parametrize(("host", "kind"), PUBLISHED_SCHEDULES)
def test_schedules_are_the_published_ones(host: str, kind: DataKind) -> None:
    schedules = BASELINES[host].published_for(kind).schedules
    expected = PUBLISHED_SCHEDULES[host, kind]
    assert (
        schedule_facts(schedules.base),
        schedule_facts(schedules.increment),
        schedule_facts(schedules.finish),
    ) == expected
    assert schedules.base.momentum == schedules.increment.momentum == 0.9


def test_all_kinds_of_images_are_checked() -> None:
    hosts = {host for host, _ in PUBLISHED_SCHEDULES}
    assert hosts <= set(BASELINES)
    assert set(PUBLISHED_SCHEDULES) == {
        (host, kind) for host in hosts for kind in KINDS if kind != "digits"
    }


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
def test_constants_are_those_published(
    host: str, option: str, small: object, imagenet100: object, imagenet: object
) -> None:
    found = [getattr(BASELINES[host].published_for(kind).options, option) for kind in KINDS[1:]]
    assert found == [small, imagenet100, imagenet]


@pytest.mark.parametrize("spec", BASELINES.values(), ids=list(BASELINES))
def test_what_is_missing_is_as_for_the_most_similar_data(spec: MethodSpec[object]) -> None:
    if "digits" in spec.published:
        assert spec.published_for("digits") != spec.published_for("small")
    if "imagenet" in spec.published and "imagenet100" not in spec.published:
        assert spec.published_for("imagenet100") is spec.published["imagenet"]
    small = MethodSpec("one", "", spec.options, spec.build, {"small": spec.published["small"]})
    assert all(small.published_for(kind) is spec.published["small"] for kind in KINDS)


def test_options_of_another_method_are_refused() -> None:
    with pytest.raises(ValueError, match="UcirOptions are not the options of icarl"):
        ICARL.make(UcirOptions(), Schedules())
    assert ICARL.make(None, Schedules()).predicts == IcarlOptions().predicts


def test_only_baselines_have_published_settings() -> None:
    assert [name for name in METHODS if name not in BASELINES] == [
        *("finetune", "joint", "gkd", "tkd", "fdkd", "rdkd"),
        *("gkd-adaptive", "tkd-adaptive", "fdkd-adaptive", "rdkd-adaptive"),
    ]
    assert [spec.key for spec in BASELINES.values()][:7] == [
        *("icarl", "icarl_softmax", "bic", "ucir", "podnet", "ccil", "afc")
    ]
