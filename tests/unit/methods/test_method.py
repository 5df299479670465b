import dataclasses
from typing import Any, cast

import pytest

from densekd.methods.method import Method, Phase
from densekd.methods.schedule import Schedule
from densekd.methods.terms import CrossEntropy


def method() -> Method:
    terms = {"new": CrossEntropy(["new"], "new"), "exemplars": CrossEntropy(["exemplars"], "all")}
    phases = (Phase("train", Schedule()),)
    return Method("some", "cosine", terms, phases, phases)


def test_a_method_can_not_be_changed() -> None:
    given = {"new": CrossEntropy(["new"], "new")}
    value = Method("some", "cosine", given, (), ())
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
