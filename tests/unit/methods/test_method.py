import dataclasses
from typing import Any, cast

import pytest

from densekd.losses.distill import DenseDistillation
from densekd.methods.bic import NewShare, OldShare, Unbiased
from densekd.methods.ccil import SelfDistil
from densekd.methods.icarl import NewOutputs
from densekd.methods.method import Method, Phase
from densekd.methods.podnet import Nca
from densekd.methods.schedule import Schedule
from densekd.methods.terms import CrossEntropy, Distil, RatioWeight, Stream, Term
from densekd.methods.ucir import MarginRanking


def method() -> Method:
    terms = {"new": CrossEntropy(["new"], "new"), "exemplars": CrossEntropy(["exemplars"], "all")}
    phases = (Phase("train", Schedule()),)
    return Method("some", "cosine", terms, phases, phases)


def test_a_method_can_not_be_changed() -> None:
    given = {"new": CrossEntropy(["new"], "new")}
    value = dataclasses.replace(method(), terms=given)
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.name = "another"  # type: ignore[misc]
    with pytest.raises(TypeError, match="does not support item assignment"):
        cast(dict[str, object], value.terms)["kd"] = given["new"]
    given["kd"] = given["new"]
    assert list(value.terms) == ["new"]


@pytest.mark.parametrize("slot", ["kd", "exemplars"])
def test_with_term_adds_or_replaces_one_slot_and_changes_nothing_else(slot: str) -> None:
    before, term = method(), CrossEntropy(["new"], "all")
    known = dict(before.terms)
    after = before.with_term(slot, term)
    assert after.terms[slot] is term
    assert {**after.terms, slot: None} == {**known, slot: None}  # the very same objects
    assert list(after.terms) == list(dict.fromkeys([*known, slot]))
    assert dict(before.terms) == known
    for field in dataclasses.fields(Method):
        if field.name != "terms":
            assert getattr(after, field.name) is getattr(before, field.name)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("head", "head='round' is not one of 'cosine', 'linear'"),
        ("streams", "streams='round' is not one of 'split', 'merged'"),
        ("keeps", "keeps='round' is not one of 'exemplars', 'everything'"),
    ],
)
def test_what_a_method_can_not_be_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        dataclasses.replace(method(), **cast(dict[str, Any], {name: "round"}))


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_held_out_that_leaves_nothing_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="held_out must be a share from 0 to below 1, not"):
        dataclasses.replace(method(), held_out=share)


TRAIN = Phase("train", Schedule())
BALANCED = Phase("balanced", Schedule(), data="balanced")


def distil(*streams: Stream) -> Distil:
    return Distil(streams, DenseDistillation("whole"), RatioWeight(1.0))


def merged(*phases: Phase, **terms: Term) -> Method:
    """A method on merged batches: ``phases`` in later tasks, a cross-entropy and ``terms``."""
    terms = {"ce": CrossEntropy(["merged"], "all"), **terms}
    return Method("some", "linear", terms, (TRAIN,), phases or (TRAIN,), "merged")


def test_slots_that_no_term_has_are_refused() -> None:
    with pytest.raises(ValueError, match=r"some: the phase 'train' .*'kd', 'bias'.* ce;"):
        merged(dataclasses.replace(TRAIN, slots=("ce", "kd", "bias")))
    with pytest.raises(ValueError, match=r"the phase 'train' of the base task .*'kd'"):
        dataclasses.replace(merged(), base=(dataclasses.replace(TRAIN, slots=("ce", "kd")),))
    merged(dataclasses.replace(TRAIN, slots=("ce", "kd")), kd=distil("merged"))


def test_a_phase_without_a_term_is_refused() -> None:
    with pytest.raises(ValueError, match="the phase 'train' of a task has no loss"):
        merged(dataclasses.replace(TRAIN, slots=()))
    # There is no teacher in the base task, and no exemplar.
    with pytest.raises(ValueError, match="the phase 'train' of the base task has no loss"):
        Method("some", "linear", {"kd": distil("merged")}, (TRAIN,), (TRAIN,), "merged")
    exemplars = {"exemplars": CrossEntropy(["exemplars"], "all")}
    with pytest.raises(ValueError, match="the phase 'train' of the base task has no loss"):
        Method("some", "linear", exemplars, (TRAIN,), (TRAIN,))


def test_a_term_on_batches_that_there_are_not_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'kd' is taken on new, exemplars .* only merged;"):
        merged(kd=distil("new", "exemplars"))
    with pytest.raises(ValueError, match=r"'kd' is taken on merged .* only exemplars, new;"):
        method().with_term("kd", distil("new", "merged"))
    with pytest.raises(ValueError, match="'kd' is taken on no batches"):
        merged(kd=distil())


def test_a_phase_with_other_batches_than_its_terms_is_refused() -> None:
    with pytest.raises(ValueError, match="'balanced' of a task counts 'new', 'exemplars', but"):
        dataclasses.replace(method(), increment=(TRAIN, BALANCED))
    merged(TRAIN, BALANCED)


def test_a_term_that_no_phase_counts_is_refused() -> None:
    only = dataclasses.replace(TRAIN, slots=("ce",))
    with pytest.raises(ValueError, match="no phase counts the term 'kd'; add it to"):
        dataclasses.replace(merged(kd=distil("merged")), base=(only,), increment=(only,))


@pytest.mark.parametrize(
    "term",
    [NewOutputs(), Nca(), MarginRanking(), Unbiased(0.1)],
    ids=lambda term: type(term).__name__,
)
def test_mixup_is_refused_with_terms_that_look_at_one_label(term: Term) -> None:
    phase = dataclasses.replace(TRAIN, mixup=0.1)
    with pytest.raises(ValueError, match=r"blends images, which 'other' can't take; set mixup=0"):
        merged(phase, other=term)
    # Where the term doesn't count, images may be blended.
    merged(dataclasses.replace(phase, slots=("ce",)), other=term)


def test_mixup_goes_with_cross_entropies_and_with_terms_that_ignore_labels() -> None:
    phase = dataclasses.replace(TRAIN, mixup=0.1)
    merged(phase, share=NewShare(), kd=distil("merged"), old=OldShare(2.0))
    assert SelfDistil.takes_mixup


def test_a_network_that_teaches_itself_knows_no_old_tasks() -> None:
    own = dataclasses.replace(TRAIN, name="own", teacher="self", slots=("ce", "kd"))
    for term in (distil("merged"), OldShare(2.0)):
        with pytest.raises(ValueError, match=r"itself for a teacher, but 'kd' .* old tasks"):
            merged(TRAIN, own, kd=term)
        with pytest.raises(ValueError, match=r"'own' of the base task .* 'kd' .* old tasks"):
            dataclasses.replace(merged(kd=term), base=(TRAIN, own))


def test_phases_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two phases of a task have the same name"):
        merged(TRAIN, TRAIN)
