import pytest

from densekd.config.schema import resolve
from densekd.methods.defaults import (
    data_kind,
    default_augment,
    default_crop,
    default_lambda,
    method_defaults,
)
from densekd.methods.method import DataKind
from densekd.methods.registry import BASELINES, METHODS
from densekd.methods.terms import Distil, RatioWeight
from densekd.training.settings import LearnerSpec, Settings


@pytest.mark.parametrize(
    ("source", "size", "kind"),
    [
        ("digits", None, "digits"),
        ("cifar10", None, "small"),
        ("cifar100", None, "small"),
        ("npz:a.npz", None, "small"),
        ("imagenet:x", None, "imagenet"),
        ("imagenet:x", 64, "imagenet"),
        ("imagenet100:x", None, "imagenet100"),
        # A folder's images are brought to 224 pixels unless told otherwise.
        ("folder:x", None, "imagenet100"),
        ("folder:x", 224, "imagenet100"),
        ("folder:x", 65, "imagenet100"),
        ("folder:x", 64, "small"),
        ("folder:x", 32, "small"),
        ("hub:x/y", None, "small"),
        ("hub:x/y", 64, "small"),
        ("hub:x/y", 96, "imagenet100"),
        ("nonsense", 224, "small"),
    ],
)
def test_the_kind_of_data_follows_from_source_and_size(
    source: str, size: int | None, kind: DataKind
) -> None:
    assert data_kind(source, size) == kind
    if source != "nonsense":
        config = resolve({"data": {"source": source, "image_size": size}})
        assert config.schedules() == method_defaults("rdkd", kind).schedules


@pytest.mark.parametrize(
    ("size", "network"), [(None, "podnet18"), (96, "podnet18"), (64, "podnet32")]
)
def test_podnet_on_large_photos_is_that_of_imagenet_100(size: int | None, network: str) -> None:
    tree = {"method": {"name": "podnet"}, "data": {"source": "folder:x", "image_size": size}}
    like = "imagenet100:x" if network == "podnet18" else "cifar100"
    config, other = resolve(tree), resolve({"method": {"name": "podnet"}, "data": {"source": like}})
    assert config.network == other.network == network
    assert (config.training, config.method) == (other.training, other.method)


@pytest.mark.parametrize("name", [*METHODS, "icarl+rdkd", "podnet+fdkd-adaptive"])
def test_a_learner_and_a_run_have_the_same_defaults(name: str) -> None:
    config = resolve({"method": {"name": name}, "data": {"source": "cifar100"}})
    run, spec = config.method.make(config.schedules()), LearnerSpec("resnet8", name, 20, Settings())
    learner = spec.make_method()
    assert {slot: term.formula for slot, term in learner.terms.items()} == {
        slot: term.formula for slot, term in run.terms.items()
    }
    assert (learner.base, learner.increment) == (run.base, run.increment)
    assert spec.make_memory().selection == config.memory.selection


def test_a_distillation_in_icarl_is_as_much_smaller_as_its_rate_is_higher() -> None:
    assert default_lambda("icarl", "small") == default_lambda("rdkd", "small") == 5.0
    assert default_lambda("icarl+rdkd", "small") == 0.25
    assert default_lambda("icarl+rdkd-adaptive", "small") == 1.0
    assert default_lambda("icarl+rdkd", "digits") == 0.05
    assert default_lambda("icarl-softmax+rdkd", "small") == 5.0
    term = LearnerSpec("resnet8", "icarl+rdkd", 20, Settings()).make_method().terms["kd"]
    assert isinstance(term, Distil)
    assert term.weight == RatioWeight(0.25)


def test_an_unknown_method_has_the_defaults_of_the_papers() -> None:
    kinds: tuple[DataKind, ...] = ("digits", "small", "imagenet100", "imagenet")
    for kind in kinds:
        assert method_defaults("nonsense", kind) == method_defaults("rdkd", kind)
        assert all(method_defaults(name, kind).network for name in BASELINES)
    digits = {"padding": 1, "flip": False, "crop": "padded"}
    assert default_augment("digits", "digits") == digits
    assert default_augment("cifar100", "small") == {"padding": 4, "flip": True, "crop": "padded"}
    for source in ("imagenet:x", "imagenet100-ccil:x", "packed:x"):
        assert default_augment(source, "imagenet100")["crop"] == default_crop(source) == "resized"
    for source in ("folder:x", "hub:x", "imagenet.py:x"):
        assert default_crop(source) == "padded"
