import dataclasses
from typing import Any, cast

import pytest

from densekd.losses.distill import DenseDistillation
from densekd.methods.bic import NewShare, OldShare, Unbiased
from densekd.methods.ccil import SelfDistil
from densekd.methods.icarl import NewOutputs, OldOutputs
from densekd.methods.method import Method, Phase
from densekd.methods.podnet import ChannelDistance, Nca, PodSpatial
from densekd.methods.schedule import Schedule
from densekd.methods.terms import CrossEntropy, Distil, RatioWeight, Stream, Term, Trains
from densekd.methods.ucir import LessForget, MarginRanking
from densekd.nn.classifier import Head


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


def test_a_task_without_a_phase_that_trains_is_refused() -> None:
    for changes in ({"increment": ()}, {"base": ()}, {"base": (BALANCED,)}):
        with pytest.raises(ValueError, match="base task needs a phase with data='streams'"):
            dataclasses.replace(merged(), **cast(dict[str, Any], changes))
    # Where others train, a phase on exemplars is skipped in the base task.
    dataclasses.replace(merged(), base=(TRAIN, BALANCED))
    ranking = dataclasses.replace(TRAIN, slots=("ranking",))  # which is 0 in the base task
    terms = {"ce": CrossEntropy(["merged"], "all"), "ranking": MarginRanking()}
    with pytest.raises(ValueError, match="the phase 'train' of the base task has no loss"):
        Method("some", "cosine", terms, (ranking,), (TRAIN,), "merged")


def test_a_phase_on_held_out_images_needs_some() -> None:
    held = Phase("held", Schedule(), data="held-out")
    with pytest.raises(ValueError, match=r"'held' of a task .* held_out is 0; set it"):
        merged(TRAIN, held)
    method = dataclasses.replace(merged(), increment=(TRAIN, held), held_out=0.1)
    with pytest.raises(ValueError, match="held_out is 0"):
        dataclasses.replace(method, held_out=0.0)


@pytest.mark.parametrize(
    ("term", "head"),
    [
        (Nca(), "proxies"),
        (ChannelDistance(RatioWeight(1.0), Nca()), "proxies"),
        (MarginRanking(), "cosine"),
        (Unbiased(0.1), "bias"),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_a_term_with_a_head_that_it_can_not_be_computed_with_is_refused(
    term: Term, head: Head
) -> None:
    with pytest.raises(ValueError, match=f"'other' needs head='{head}', not 'linear'; change"):
        merged(other=term)
    terms = {"ce": CrossEntropy(["merged"], "all"), "other": term}
    Method("some", head, terms, (TRAIN,), (TRAIN,), "merged")


@pytest.mark.parametrize("head", ["linear", "bias"])
def test_imprinting_a_head_that_has_no_directions_is_refused(head: Head) -> None:
    with pytest.raises(ValueError, match="imprints goes with the heads cosine, proxies, not"):
        dataclasses.replace(merged(), head=head, imprints=True)
    dataclasses.replace(merged(), head="cosine", imprints=True)


def test_a_bias_correction_is_trained_only_if_there_is_one() -> None:
    bias = dataclasses.replace(TRAIN, name="bias", trains="bias")
    with pytest.raises(ValueError, match=r"'bias' of a task trains a bias .* head='bias'"):
        merged(TRAIN, bias)
    dataclasses.replace(merged(), head="bias", increment=(TRAIN, bias))


@pytest.mark.parametrize("trains", ["weights", "bias"])
def test_terms_that_can_not_train_what_a_phase_trains_are_refused(trains: Trains) -> None:
    """They raise or change nothing, but only in the second task."""
    only = dataclasses.replace(TRAIN, name="only", trains=trains, slots=("kd",))
    terms: list[Term] = [LessForget(RatioWeight(1.0)), PodSpatial(RatioWeight(1.0))]
    terms += [distil("merged"), OldShare(2.0), OldOutputs()] if trains == "bias" else []
    for term in terms:
        how = dataclasses.replace(merged(kd=term), head="bias")
        with pytest.raises(ValueError, match=f"trains only the {trains}, which 'kd' can't train"):
            dataclasses.replace(how, increment=(TRAIN, only))
        with_labels = dataclasses.replace(only, slots=("ce", "kd"))
        dataclasses.replace(how, increment=(TRAIN, with_labels))


def test_labels_of_old_classes_are_not_among_the_new_ones() -> None:
    for streams in (["exemplars"], ["new", "exemplars"]):
        term = CrossEntropy(cast(list[Stream], streams), "new")
        with pytest.raises(ValueError, match="old classes, which 'exemplars' can't take; set over"):
            method().with_term("exemplars", term)
    new = CrossEntropy(["merged"], "new")
    with pytest.raises(ValueError, match=r"'balanced' of a task .* old classes, which 'ce'"):
        merged(TRAIN, BALANCED, ce=new)
    # Without exemplars, merged batches have only new classes; a learner knows.
    how = merged(ce=new)
    with pytest.raises(ValueError, match=r"'train' of a task .* old classes, which 'ce'"):
        how.check_replay()
    merged().check_replay()


def test_a_phase_of_wrong_numbers_is_refused() -> None:
    for mixup in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="'train': mixup must be a number of at least 0"):
            dataclasses.replace(TRAIN, mixup=mixup)
    for rates in ({}, {"weight": -1.0}, {"weight": float("nan")}):
        with pytest.raises(ValueError, match="'train': rates must be numbers of at least 0"):
            dataclasses.replace(TRAIN, rates=rates)


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
    terms = {"ce": CrossEntropy(["merged"], "all"), "other": term}
    how = Method("some", term.needs_head or "linear", terms, (TRAIN,), (TRAIN,), "merged")
    with pytest.raises(ValueError, match=r"blends images, which 'other' can't take; set mixup=0"):
        dataclasses.replace(how, increment=(phase,))
    # Where the term doesn't count, images may be blended.
    dataclasses.replace(how, increment=(dataclasses.replace(phase, slots=("ce",)),))


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
