"""The images, batches, terms and state of each phase of a task."""

import dataclasses
from typing import cast

import pytest
import torch
from torch import Tensor

from densekd.data.dataset import PixelImages, Split
from densekd.data.scenario import Scenario
from densekd.data.selection import Selection
from densekd.methods.method import Method, Phase, Streams
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.methods.terms import CrossEntropy
from densekd.training.learner import Learner
from densekd.training.phases import PhaseTraining, TaskTraining

from support.datasets import dataset
from support.tiny_learners import (
    BASE,
    FINISH,
    SCHEDULES,
    STEPS_OF_TWO,
    Recorder,
    learned,
    tiny_learner,
)

BALANCED = Phase("finetune", FINISH, data="balanced")
HELD_OUT = Phase("bias", FINISH, data="held-out", slots=("merged",))
GENERATION = Phase("generation", FINISH, slots=("merged", "kd"), teacher="self")


def method(streams: str = "merged", **changes: object) -> Method:
    options = DenseOptions(streams=streams)  # type: ignore[arg-type]
    return dataclasses.replace(make_method("gkd", options, SCHEDULES), **changes)  # type: ignore[arg-type]


def second_task(learner: Learner) -> TaskTraining:
    parts = learner.method, learner.memory, learner.settings, learner.network
    training = TaskTraining(STEPS_OF_TWO[1], *parts)
    training.begin(learner.terms)
    return training


def after_base(
    how: Method | None = None, *, per_class: int = 2, selection: Selection = "random"
) -> Learner:
    return learned(how or method(), STEPS_OF_TWO[:1], per_class=per_class, selection=selection)


def start(
    training: TaskTraining, phase: Phase, learner: Learner, saved: dict[str, Tensor] | None = None
) -> PhaseTraining:
    assert not training.lacks_images(phase)
    return PhaseTraining(training, phase, learner.network, saved or {})


def labels(phase: PhaseTraining, stream: str) -> list[int]:
    """How often each class occurs in an epoch of a stream."""
    found = [batches[stream].labels for batches in phase.epoch(0, 0)]  # type: ignore[index]
    assert len(found) == len(phase)
    return torch.bincount(torch.cat(found), minlength=6).tolist()


def test_the_base_task_has_its_own_phases_and_no_teacher() -> None:
    learner = tiny_learner(method())
    parts = learner.method, learner.memory, learner.settings, learner.network
    training = TaskTraining(STEPS_OF_TWO[0], *parts)
    training.begin(learner.terms)
    assert training.phases == learner.method.base
    assert (training.teacher, training.teacher_sizes) == (None, ())
    assert set(training.active_terms) == {"merged"}
    assert second_task(after_base()).phases == learner.method.increment


def test_merged_streams_are_one_batch_and_split_streams_are_two() -> None:
    learner = after_base()
    merged = start(second_task(learner), learner.method.increment[0], learner)
    assert labels(merged, "merged") == [2, 2, 2, 2, 6, 6]
    learner = after_base(method("split"))
    split = start(second_task(learner), learner.method.increment[0], learner)
    assert labels(split, "new") == [0, 0, 0, 0, 6, 6]
    assert labels(split, "exemplars") == [2] * 6


def test_a_phase_on_exemplars_is_skipped_without_them() -> None:
    learner = after_base(per_class=0)
    training = second_task(learner)
    assert training.lacks_images(BALANCED)
    assert training.lacks_images(HELD_OUT)
    assert set(training.active_terms) == {"merged", "kd"}


def test_balanced_images_are_equally_many_of_each_class() -> None:
    learner = after_base()
    balanced = start(second_task(learner), BALANCED, learner)
    assert labels(balanced, "merged") == [2] * 6
    assert balanced.state() == {}


def test_held_out_images_are_in_no_other_phase() -> None:
    how = method(held_out=0.5)
    learner = after_base(how)
    training = second_task(learner)
    assert labels(start(training, HELD_OUT, learner), "merged") == [1] * 6
    assert labels(start(training, how.increment[0], learner), "merged") == [1, 1, 1, 1, 5, 5]


def test_herded_images_are_saved_and_not_chosen_again() -> None:
    learner = after_base(selection="herding")
    training = second_task(learner)
    first = start(training, BALANCED, learner)
    chosen = first.state()["chosen"]
    assert len(chosen) == 4
    other = torch.tensor([i for i in range(12) if i not in chosen.tolist()][:4])
    resumed = start(training, BALANCED, learner, {"chosen": other})
    assert torch.equal(resumed.state()["chosen"], other)
    images = [
        torch.cat([batches["merged"].images for batches in phase.epoch(0, 0)])
        for phase in (first, resumed)
    ]
    assert not torch.equal(*images)


def test_a_phase_that_teaches_itself_saves_its_teacher() -> None:
    learner = after_base()
    training = second_task(learner)
    phase = start(training, GENERATION, learner)
    assert phase.teacher is not None
    assert phase.teacher is not training.teacher
    weights = learner.network.state_dict()
    state = phase.state()
    assert state.keys() == {f"teacher.{name}" for name in weights}
    saved = {name: torch.zeros_like(x) for name, x in state.items()}
    resumed = start(training, GENERATION, learner, saved)
    assert all(not x.any() for x in resumed.state().values())
    assert all(torch.equal(state[f"teacher.{name}"], x) for name, x in weights.items())


def test_a_phase_uses_only_its_own_terms() -> None:
    learner = after_base()
    training = second_task(learner)
    assert set(start(training, learner.method.increment[0], learner).terms) == {"merged", "kd"}
    assert set(start(training, Phase("x", BASE, slots=("kd",)), learner).terms) == {"kd"}


@pytest.mark.parametrize("streams", ["merged", "split"])
def test_an_epoch_continues_after_the_batches_that_are_skipped(streams: str) -> None:
    learner = after_base(method(streams))
    phase = start(second_task(learner), learner.method.increment[0], learner)
    whole, rest = list(phase.epoch(1, 0)), list(phase.epoch(1, 2))
    assert len(whole) == len(phase)
    assert len(rest) == len(phase) - 2
    for wanted, given in zip(whole[2:], rest, strict=True):
        assert wanted.keys() == given.keys()
        assert all(torch.equal(wanted[s].images, given[s].images) for s in wanted)


def split_method(*increment: Phase) -> Method:
    """Two streams, and a term on the batches of a balanced phase."""
    terms = {
        "new": CrossEntropy(["new"], "new"),
        "exemplars": CrossEntropy(["exemplars"], "all"),
        "balance": CrossEntropy(["merged"], "all"),
    }
    base = (Phase("train", BASE, slots=("new",)),)
    share = 0.5 if any(phase.data == "held-out" for phase in increment) else 0.0
    return Method("split", "linear", terms, base, increment, held_out=share)


TRAIN = Phase("train", BASE, slots=("new", "exemplars"))
BALANCE = Phase("balance", FINISH, "balanced", slots=("balance",))


def keys(images: Split | None) -> set[tuple[int, int]]:
    """Class and number of each image."""
    assert images is not None
    return {(int(p[0, 0, 0]), int(p[1, 0, 0])) for p in cast(PixelImages, images.images).pixels}


@pytest.mark.parametrize("selection", ["random", "herding"])
@pytest.mark.parametrize("streams", ["split", "merged"])
def test_only_held_out_images_are_missing_from_streams_and_balanced_phases(
    streams: Streams, selection: Selection
) -> None:
    held = Phase("held", FINISH, "held-out", slots=("balance",))
    how = split_method(TRAIN, BALANCE, held)
    if streams == "merged":
        train = Phase("train", BASE, slots=("balance",))
        terms, base = {"balance": how.terms["balance"]}, (train,)
        phases = (train, BALANCE, held)
        how = Method("merged", "linear", terms, base, phases, "merged", held_out=0.5)
    learner, trained = tiny_learner(how, per_class=4, selection=selection), set[tuple[int, int]]()
    for task in Scenario.of(dataset(8, 12), base=4, steps=2):
        parts = how, learner.memory, learner.settings, learner.network
        training = TaskTraining(task, *parts)
        training.begin(learner.terms)
        images, old, seen = training.images, task.first, task.first + len(task.classes)
        trained |= keys(images.new)
        assert not keys(images.reserved) & trained
        assert keys(images.new) | keys(images.reserved) == keys(task.train)
        if old:
            phase = start(training, BALANCE, learner)
            balanced = phase._images(learner.network, phase.state())["merged"]
            # Of four exemplars of a class two are held out. Split streams replay new classes, too.
            classes = seen if streams == "split" else old
            assert images.replayed is not None
            assert torch.bincount(images.replayed.labels).tolist() == [2] * classes
            assert torch.bincount(balanced.labels).tolist() == [2] * seen
            trained |= keys(images.replayed) | keys(balanced)
            assert len(keys(images.held_out)) == 2 * seen
            assert not keys(images.held_out) & trained
        learner.learn(task)


@pytest.mark.parametrize(("per_class", "counted"), [(2, {"balance"}), (0, set())])
def test_a_method_with_two_streams_may_end_by_a_balanced_phase(
    per_class: int, counted: set[str]
) -> None:
    callback = Recorder()
    learned(split_method(TRAIN, BALANCE), STEPS_OF_TWO, callback=callback, per_class=per_class)
    assert callback.slots(1, "balance") == counted
    assert "balance" not in callback.slots(1, "train")


def test_a_phase_that_has_no_loss_without_exemplars_says_so() -> None:
    how = split_method(TRAIN, Phase("replay", BASE, slots=("exemplars",)), BALANCE)
    learned(how, STEPS_OF_TWO[:2])
    with pytest.raises(ValueError, match="the phase 'replay' has no loss without exemplars; keep"):
        learned(how, STEPS_OF_TWO[:2], per_class=0)
