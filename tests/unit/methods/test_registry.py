"""The catalog, and the methods of `densekd.methods.paper` that it makes."""

import dataclasses
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from densekd.losses.distill import DenseDistillation
from densekd.methods.adaptive_weights import AdaptiveWeights
from densekd.methods.method import Method, Phase
from densekd.methods.paper import DenseOptions, dense
from densekd.methods.registry import METHODS, check_method, make_method
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.terms import CrossEntropy, Distil, RatioWeight, Term

COURSE = Schedules(Schedule(7, 0.2), Schedule(3, 0.02))
KINDS = ["gkd", "tkd", "fdkd", "rdkd"]
DISTILLING = [*KINDS, *(f"{kind}-adaptive" for kind in KINDS)]


def make(name: str, **options: Any) -> Method:
    return make_method(name, DenseOptions(**options), COURSE)


def distil(name: str, **options: Any) -> Distil:
    term = make(name, **options).terms["kd"]
    assert isinstance(term, Distil)
    return term


def described(term: Term) -> dict[str, object]:
    """All that a term is made of, comparable."""
    parts = dict(vars(term))
    if isinstance(term, Distil):
        parts["loss"] = term.loss.extra_repr()
        weight = term.weight
        parts["weight"] = (
            weight if isinstance(weight, RatioWeight) else tuple(vars(weight).values())
        )
    return {"type": type(term), **parts}


@pytest.mark.parametrize("name", DISTILLING)
def test_each_method_distils_on_its_groups_with_its_weight(name: str) -> None:
    groups = {"gkd": "whole", "tkd": "each", "fdkd": "every", "rdkd": "random"}
    kind, _, adaptive = name.partition("-")
    method, term = make(name), distil(name)
    assert (method.name, method.head, method.streams) == (name, "cosine", "split")
    assert method.keeps == "exemplars"
    assert term.loss.groups == groups[kind]
    assert isinstance(term.weight, AdaptiveWeights if adaptive else RatioWeight)
    assert term.streams == ("new", "exemplars")
    assert term.loss.total == (kind == "tkd")


def test_a_plain_weight_is_that_of_ccil() -> None:
    assert distil("rdkd").weight == RatioWeight(5.0, 0.66)
    assert distil("gkd", lambda_base=20.0, lambda_exponent=0.0).weight == RatioWeight(20.0, 0.0)


def test_finetune_replays_and_does_not_distil() -> None:
    method = make("finetune")
    assert {slot: described(term) for slot, term in method.terms.items()} == {
        "new": described(CrossEntropy(["new"], "new")),
        "exemplars": described(CrossEntropy(["exemplars"], "all")),
    }
    assert method.base == (Phase("train", COURSE.base),)
    assert method.increment == (Phase("train", COURSE.increment),)


def test_joint_trains_on_everything_as_long_as_the_base() -> None:
    method = make("joint")
    assert {slot: described(term) for slot, term in method.terms.items()} == {
        "merged": described(CrossEntropy(["merged"], "all"))
    }
    assert (method.streams, method.keeps) == ("merged", "everything")
    assert method.base == method.increment == (Phase("train", COURSE.base),)


@pytest.mark.parametrize("streams", ["split", "merged"])
@pytest.mark.parametrize("name", DISTILLING)
def test_methods_differ_in_the_slot_kd_only(name: str, streams: str) -> None:
    plain, gkd = make("finetune", streams=streams), make("gkd", streams=streams)
    method = make(name, streams=streams)
    for field in dataclasses.fields(Method):
        if field.name not in ("name", "terms"):
            assert getattr(method, field.name) == getattr(plain, field.name)
    other = {slot: described(term) for slot, term in method.terms.items() if slot != "kd"}
    assert other == {slot: described(term) for slot, term in plain.terms.items()}
    assert other == {slot: described(gkd.terms[slot]) for slot in other}
    assert set(method.terms) == {*plain.terms, "kd"}
    assert (described(method.terms["kd"]) == described(gkd.terms["kd"])) == (name == "gkd")


def test_rdkd_differs_from_gkd_in_how_groups_are_chosen_and_in_nothing_else() -> None:
    gkd, rdkd = described(distil("gkd")), described(distil("rdkd"))
    assert [name for name in gkd if gkd[name] != rdkd[name]] == ["loss", "formula"]
    gkd_loss, rdkd_loss = gkd["loss"], rdkd["loss"]
    assert isinstance(gkd_loss, str)
    assert rdkd_loss == gkd_loss.replace("'whole'", "'random'")


# Where the choice of each option is found, in a method that it has a part in.
PLACES: dict[str, tuple[str, str]] = {
    "reduction": ("rdkd", "terms[kd].loss.reduction"),
    "direction": ("fdkd", "terms[kd].loss.direction"),
    "single": ("rdkd", "terms[kd].loss.single"),
    "similarity": ("rdkd-adaptive", "terms[kd].weight.similarity"),
    "size_ratio": ("rdkd-adaptive", "terms[kd].weight.ratio"),
    "vectors": ("rdkd-adaptive", "terms[kd].vectors"),
    "head": ("rdkd", "head"),
    "streams": ("rdkd", "streams"),
}


def choices() -> dict[str, tuple[str, ...]]:
    """The options that are one of several words."""
    hints = get_type_hints(DenseOptions)
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def at(method: Method, path: str) -> object:
    place: object = method
    for part in path.split("."):
        name, _, slot = part.partition("[")
        place = getattr(place, name)
        if slot:
            assert isinstance(place, type(method.terms))
            place = place[slot.removesuffix("]")]
    return place


@pytest.mark.parametrize(
    ("option", "choice"),
    [(name, choice) for name, words in choices().items() for choice in words if name in PLACES],
)
def test_each_choice_arrives_where_it_is_made_use_of(option: str, choice: str) -> None:
    name, path = PLACES[option]
    assert at(make(name, **{option: choice}), path) == choice


def test_no_choice_is_left_out() -> None:
    assert set(choices()) == {*PLACES, "distil_on"}


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("gkd", "temperature", 3.0),
        ("gkd", "tau_squared", False),
        ("tkd", "total", False),
        ("fdkd", "total", True),
        ("tkd", "skip_base", True),
        ("rdkd", "draws", 4),
        ("rdkd", "per_image", True),
    ],
)
def test_each_number_and_switch_arrives_in_the_loss(name: str, option: str, value: object) -> None:
    assert getattr(distil(name, **{option: value}).loss, option) == value
    assert getattr(distil(name).loss, option) != value


def test_lambda_base_is_also_that_of_the_adaptive_weight() -> None:
    weight = distil("gkd-adaptive", lambda_base=20.0).weight
    assert isinstance(weight, AdaptiveWeights)
    assert weight.lambda_base == 20.0


def test_streams_and_distil_on_say_which_batches_each_term_takes() -> None:
    def taken(**options: Any) -> dict[str, tuple[str, ...]]:
        return {slot: term.streams for slot, term in make("rdkd", **options).terms.items()}

    split = {"new": ("new",), "exemplars": ("exemplars",)}
    assert taken() == {**split, "kd": ("new", "exemplars")}
    assert taken(distil_on="new") == {**split, "kd": ("new",)}
    assert taken(streams="merged") == {"merged": ("merged",), "kd": ("merged",)}
    merged = make("rdkd", streams="merged").terms["merged"]
    assert isinstance(merged, CrossEntropy)
    assert merged.over == "all"


def test_an_option_that_says_nothing_of_the_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="skip_base goes with groups='each', not 'random'"):
        make("rdkd", skip_base=True)
    with pytest.raises(ValueError, match="draws goes with groups='random' or 'every'"):
        make("gkd", draws=2)


def test_two_methods_of_one_name_have_terms_of_their_own() -> None:
    first, second = make("rdkd-adaptive"), make("rdkd-adaptive")
    assert not {id(term) for term in first.terms.values()} & set(map(id, second.terms.values()))
    assert isinstance(distil("rdkd").loss, DenseDistillation)


def test_the_course_is_the_papers_unless_told_otherwise() -> None:
    schedules = Schedules()
    assert (schedules.base.epochs, schedules.base.lr) == (70, 0.1)
    assert (schedules.increment.epochs, schedules.increment.lr) == (40, 0.01)
    for schedule in (schedules.base, schedules.increment):
        assert (schedule.decay, schedule.lr_end, schedule.batch_size) == ("cosine", 1e-4, 128)
        assert (schedule.momentum, schedule.weight_decay) == (0.9, 1e-4)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("rkd", r"There is no method 'rkd'; did you mean [rgt]d?kd\?"),
        ("RDKD", r"did you mean rdkd\? There are finetune, joint, gkd"),
        ("rdkd_adaptive", r"did you mean rdkd-adaptive\?"),
        ("xyz", "There is no method 'xyz'; choose one of finetune, joint, gkd"),
        ("", "There is no method ''; choose one of"),
    ],
)
def test_a_name_that_is_none_is_refused_with_the_nearest(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_method(name)
    with pytest.raises(ValueError, match=sentence):
        make(name)


@pytest.mark.parametrize("name", ["finetune", "joint", *DISTILLING])
def test_each_name_in_the_list_can_be_made(name: str) -> None:
    assert name in METHODS
    check_method(name)
    assert make(name).name == name


@pytest.mark.parametrize("name", ["finetune", "gkd-", "gkd-adaptive-adaptive", "dkd", "-adaptive"])
def test_only_distillations_are_made_dense(name: str) -> None:
    with pytest.raises(ValueError, match=f"There is no distillation '{name}'; there are gkd, tkd"):
        dense(name, DenseOptions(), COURSE)
