import dataclasses
from pathlib import Path

import pytest
import torch

from densekd.data.memory import ExemplarMemory, Quota
from densekd.methods.method import Method
from densekd.methods.paper import DenseOptions
from densekd.methods.podnet import ChannelDistance
from densekd.methods.registry import make_method
from densekd.methods.terms import Distil
from densekd.training.checkpoint import State
from densekd.training.learner import Learner

from support.tiny_learners import (
    SCHEDULES,
    STEPS_OF_TWO,
    TinyBackbone,
    learned,
    tiny_learner,
    tiny_settings,
)


def method(name: str, **options: str) -> Method:
    return make_method(name, DenseOptions(**options), SCHEDULES)  # type: ignore[arg-type]


def changed(before: Method, after: Method) -> Learner:
    """A learner of two tasks by one method, which another takes over."""
    state = learned(before, STEPS_OF_TWO[:2]).state()
    learner = tiny_learner(after)
    learner.load_state(state, change_method=True)
    return learner


def test_a_method_changes_only_if_asked() -> None:
    state = learned(method("gkd"), STEPS_OF_TWO[:1]).state()
    with pytest.raises(ValueError, match="learned by gkd, not by rdkd"):
        tiny_learner(method("rdkd")).load_state(state)


def test_a_loaded_learner_goes_on_by_another_method(tmp_path: Path) -> None:
    learned(method("gkd"), STEPS_OF_TWO[:2]).save(tmp_path)
    memory = ExemplarMemory(Quota(1))
    learner = Learner.load(tmp_path, TinyBackbone(), method("rdkd"), memory, tiny_settings())
    assert learner.method.name == "rdkd"
    assert len(learner.memory) == 6  # one of each class, of the two that were kept
    learner.learn(STEPS_OF_TWO[2])
    assert learner.sizes == (4, 2, 2)


def test_class_vectors_are_taken_over_or_computed_from_exemplars() -> None:
    kept = changed(method("rdkd-adaptive"), method("fdkd-adaptive"))
    before = learned(method("rdkd-adaptive"), STEPS_OF_TWO[:2])
    for name, vectors in before.terms["kd"].state_dict().items():
        assert torch.equal(kept.terms["kd"].state_dict()[name], vectors)
    for other in (method("gkd"), method("rdkd-adaptive", similarity="normalized")):
        fresh = changed(other, method("rdkd-adaptive"))
        term = fresh.terms["kd"]
        assert isinstance(term, Distil)
        assert not term.state_dict()
        assert fresh.learn(STEPS_OF_TWO[2]).notes["kd.s"] > 0
        sizes = [len(fresh.terms["kd"].state_dict()[f"tasks.{task}"]) for task in range(3)]
        assert sizes == [4, 2, 2]


def test_class_vectors_need_exemplars() -> None:
    state = learned(method("gkd"), STEPS_OF_TWO[:2], per_class=0).state()
    learner = tiny_learner(method("rdkd-adaptive"), per_class=0)
    learner.load_state(state, change_method=True)
    with pytest.raises(ValueError, match="computed from exemplars, but there are none"):
        learner.learn(STEPS_OF_TWO[2])


def test_afc_counts_all_channels_alike_at_first() -> None:
    fresh = changed(method("podnet"), method("afc"))
    term = fresh.terms["channels"]
    assert isinstance(term, ChannelDistance)
    assert term.importance == ()
    fresh.learn(STEPS_OF_TWO[2])
    assert fresh.terms["channels"].state_dict()


def test_what_can_not_go_on() -> None:
    with pytest.raises(ValueError, match=r"rdkd has the head 'linear'.*gkd.*'cosine'"):
        changed(method("gkd"), method("rdkd", head="linear"))
    with pytest.raises(ValueError, match="joint replays all images, but gkd kept only exemplars"):
        changed(method("gkd"), method("joint"))
    assert len(changed(method("joint"), method("gkd")).memory) == 2 * 6


def test_states_of_earlier_versions_are_known_by_the_method_alone() -> None:
    before = learned(method("rdkd-adaptive"), STEPS_OF_TWO[:2]).state()
    old = State({k: before.facts[k] for k in ("method", "classes", "sizes")}, before.tensors)
    same, other = tiny_learner(method("rdkd-adaptive")), tiny_learner(method("fdkd-adaptive"))
    same.load_state(old)
    other.load_state(old, change_method=True)
    assert same.terms["kd"].state_dict().keys() == {"tasks.0", "tasks.1"}
    assert not other.terms["kd"].state_dict()
    joint = tiny_learner(dataclasses.replace(method("joint"), head="cosine"))
    with pytest.raises(ValueError, match="joint replays all images"):
        joint.load_state(old, change_method=True)
