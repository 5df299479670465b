import dataclasses
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax, softmax

from densekd.data.scenario import Scenario
from densekd.losses.distill import DenseDistillation
from densekd.methods.ccil import GENERATION, CcilOptions, SelfDistil, ccil
from densekd.methods.method import Method, Phase
from densekd.methods.paper import DenseOptions, dense
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.terms import CrossEntropy, Distil, RatioWeight, Step, View
from densekd.nn.classifier import CosineClassifier
from densekd.nn.network import Network, Outputs
from densekd.nn.resnet import cifar_resnet
from densekd.training.callbacks import Stopped
from densekd.training.checkpoint import Checkpoints, State

import reference
from support.tiny_learners import (
    STEPS_OF_ONE,
    STEPS_OF_TWO,
    Recorder,
    check_resumes,
    learned,
    same_state,
    tiny_learner,
)

TRAIN = Schedule(2, 0.05, batch_size=8)
AGAIN = Schedule(2, 0.02, batch_size=12)
COURSE = Schedules(TRAIN, TRAIN, AGAIN)
NETWORK = Network(cifar_resnet(8), CosineClassifier(64))
OLD, NEW = (3, 2), 2


def method(**options: Any) -> Method:
    return ccil(CcilOptions(**options), COURSE)


def outputs(images: int, classes: int, seed: int) -> Outputs:
    logits = torch.randn(images, classes, generator=torch.Generator().manual_seed(seed)) * 3
    return Outputs(logits, torch.zeros(images, 1), ())


def step(old: tuple[int, ...] = OLD, new: int = NEW) -> Step:
    """New images and exemplars of all classes; in the base task new images, with a teacher."""
    before, seen = sum(old), sum(old) + new
    teachers = before or seen
    labels = torch.arange(6) % new + before
    views = {"new": View(labels, outputs(6, seen, 0), outputs(6, teachers, 1))}
    if old:
        every = torch.arange(7) * 5 % seen
        views["exemplars"] = View(every, outputs(7, seen, 2), outputs(7, teachers, 3))
    return Step(cast(Any, views), old, new, torch.Generator(), NETWORK)


def array(tensor: Tensor) -> reference.Array:
    return tensor.detach().double().numpy()


def divergence(view: View, classes: int) -> float:
    """CCIL's line: an element-wise mean, so it divides by images and by classes."""
    teacher = cast(Outputs, view.teacher).logits
    p, q = softmax(teacher / 2, 1), log_softmax(view.student.logits[:, :classes] / 2, 1)
    return (kl_div(q, p, reduction="sum") / p.numel()).item() * 2 * 2


def test_without_extras_it_is_gkd_to_the_bit() -> None:
    gkd = dense("gkd", DenseOptions(), COURSE)
    assert method().name == "ccil"
    assert list(method().terms) == list(gkd.terms)
    given, wanted = learned(method(), STEPS_OF_TWO).state(), learned(gkd, STEPS_OF_TWO).state()
    assert same_state(State({}, given.tensors), State({}, wanted.tensors))


def test_the_loss_of_an_increment_is_ccils() -> None:
    given = step()
    new, exemplars = given.views["new"], given.views["exemplars"]
    terms = method(base_smoothing=0.1).terms  # which an increment doesn't have
    wanted = reference.cross_entropy(array(new.student.logits)[:, 5:], (new.labels - 5).tolist())
    assert terms["new"](given).item() == pytest.approx(wanted, rel=1e-5)
    wanted = reference.cross_entropy(array(exemplars.student.logits), exemplars.labels.tolist())
    assert terms["exemplars"](given).item() == pytest.approx(wanted, rel=1e-5)
    both = divergence(new, 5) + divergence(exemplars, 5)
    assert terms["kd"](given).item() == pytest.approx(5 * (7 / 2) ** 0.66 * both, rel=1e-5)


def test_its_constants_can_be_set() -> None:
    given = step()
    both = sum(divergence(view, 5) for view in given.views.values())
    kd = method(lambda_base=100.0, lambda_exponent=0.0).terms["kd"](given)
    assert kd.item() == pytest.approx(100 * both, rel=1e-5)
    hot = method(temperature=4.0, generations=1).terms
    assert cast(Distil, hot["kd"]).loss.temperature == 4.0
    assert cast(SelfDistil, hot["self"]).loss.temperature == 4.0
    with pytest.raises(ValueError, match="generations must be from 0 to 100, not -1"):
        CcilOptions(generations=-1)


def smoothed(logits: reference.Array, labels: list[int], share: float) -> float:
    losses = []
    for z, y in zip(logits, labels, strict=True):
        logs = z - np.log(np.exp(z).sum())
        losses.append(-(1 - share) * logs[y] - share * logs.mean())
    return float(np.mean(losses))


def test_labels_are_smoothed_in_the_base_task_only() -> None:
    base, later = step((), 4), step()
    term, plain = method(base_smoothing=0.1).terms["new"], method().terms["new"]
    view = base.views["new"]
    wanted = smoothed(array(view.student.logits), view.labels.tolist(), 0.1)
    assert term(base).item() == pytest.approx(wanted, rel=1e-5)
    assert plain(base).item() != pytest.approx(wanted, rel=1e-3)
    assert torch.equal(term(later), plain(later))


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_smoothing_is_a_share(share: float) -> None:
    with pytest.raises(ValueError, match="base_smoothing must be a share from 0 to 1"):
        CrossEntropy(["new"], "new", share)


def base_with(**options: Any) -> CosineClassifier:
    """The classifier after the base task."""
    each = tiny_learner(method(**options))
    each.learn(STEPS_OF_TWO[0])
    return cast(CosineClassifier, each.network.classifier)


class Log(list[tuple[Tensor, Tensor]]):
    """A list that stays the same one where what holds it is copied, as a learner's terms are."""

    def __deepcopy__(self, memo: object) -> "Log":
        return self


def test_mixup_and_heavy_augmentation_are_for_the_base_task_alone() -> None:
    how = method(mixup=0.1, heavy_augmentation=True, generations=1)
    assert [(p.augment, p.mixup) for p in how.base] == [("heavy", 0.1)] * 2
    assert [(p.augment, p.mixup) for p in how.increment] == [("usual", 0.0)]
    assert [(p.augment, p.mixup) for p in method().base] == [("usual", 0.0)]
    assert [p.mixup for p in method(mixup=0.2).base] == [0.2]
    with pytest.raises(ValueError, match="mixup must be a number of at least 0, not -1"):
        CcilOptions(mixup=-1.0)
    with pytest.raises(ValueError, match="augment"):
        Phase("train", TRAIN, augment=cast(Any, "light"))


class Labels(CrossEntropy):
    """Cross-entropy that notes whose images it is given, and what was mixed into them."""

    def __init__(self, log: Log) -> None:
        super().__init__(["new"], "new")
        self.log = log

    def __call__(self, step: Step) -> Tensor:
        view = step.views["new"]
        other = view.labels if view.blend is None else view.blend.labels
        self.log.append((view.labels, other))
        return super().__call__(step)


def test_mixup_blends_the_base_task_and_moves_no_other_draw() -> None:
    logs = {alpha: Log() for alpha in (0.0, 0.3)}
    learners = [
        tiny_learner(method(mixup=a).with_term("new", Labels(log))) for a, log in logs.items()
    ]
    for task in STEPS_OF_TWO[:2]:
        for each in learners:
            each.learn(task)
    plain, mixed = logs.values()
    assert len(plain) == len(mixed)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(plain, mixed, strict=True))
    base = TRAIN.epochs * 3  # 24 images in batches of 8
    assert not any(torch.equal(*pair) for pair in mixed[:base])
    assert all(torch.equal(*pair) for pair in mixed[base:])
    blocks = [each.network.classifier.blocks[0] for each in learners]
    assert not torch.equal(*blocks)


def test_heavy_augmentation_changes_what_is_learned_of_the_base() -> None:
    first, second = (base_with(heavy_augmentation=heavy) for heavy in (False, True))
    assert not torch.equal(first.blocks[0], second.blocks[0])


def test_self_distillation_is_over_all_classes_of_the_base() -> None:
    base = step((), 4)
    wanted = 10 * divergence(base.views["new"], 4)
    assert method(generations=1).terms["self"](base).item() == pytest.approx(wanted, rel=1e-5)
    assert SelfDistil(3.0, 2.0)(base).item() == pytest.approx(0.3 * wanted, rel=1e-5)


def test_a_generation_is_as_released_unless_another_schedule_is_given() -> None:
    how = ccil(CcilOptions(generations=2), Schedules())
    assert [phase.name for phase in how.base] == ["train", "generation 1", "generation 2"]
    assert {phase.schedule for phase in how.base[1:]} == {GENERATION}
    assert (GENERATION.epochs, GENERATION.lr, GENERATION.lr_end) == (70, 0.1, 1e-3)
    assert method(generations=1).base[1].schedule == AGAIN


@pytest.mark.parametrize("scenario", [STEPS_OF_TWO, STEPS_OF_ONE])
@pytest.mark.parametrize("generations", [0, 2])
def test_it_learns_from_the_base_to_the_last_task(scenario: Scenario, generations: int) -> None:
    callback = Recorder()
    each = learned(method(generations=generations, base_smoothing=0.1), scenario, callback=callback)
    assert each.sizes == tuple(len(task.classes) for task in scenario)
    assert callback.slots(0, "train") == {"new"}
    for number in (1, 2):
        again = {"new", "self"} if number <= generations else set()
        assert callback.slots(0, f"generation {number}") == again
        assert callback.slots(number, "train") == {"new", "exemplars", "kd"}
    assert {report.phase for report in callback.epoch_ends if report.task} == {"train"}


def test_another_distillation_takes_the_place_of_gkd_and_leaves_the_base() -> None:
    other = Distil(["new", "exemplars"], DenseDistillation("random"), RatioWeight(5.0))
    callback = Recorder()
    learned(method(generations=1).with_term("kd", other), STEPS_OF_TWO, callback=callback)
    assert callback.slots(0, "train") == {"new"}
    assert callback.slots(0, "generation 1") == {"new", "self"}
    assert callback.slots(2, "train") == {"new", "exemplars", "kd"}


class Noting(SelfDistil):
    """Self-distillation that notes the features and logits that the teacher gives."""

    def __init__(self, log: Log) -> None:
        super().__init__(10.0, 2.0)
        self.log = log

    def __call__(self, step: Step) -> Tensor:
        teacher = cast(Outputs, step.views["new"].teacher)
        assert not teacher.logits.requires_grad
        self.log.append((teacher.features, teacher.logits))
        return super().__call__(step)


def test_each_generation_learns_from_the_one_before_as_it_was_at_the_end() -> None:
    log = Log()
    each = tiny_learner(method(generations=2).with_term("self", Noting(log)))
    each.learn(STEPS_OF_TWO[0])
    steps = AGAIN.epochs * 2  # 24 images in batches of 12
    assert len(log) == 2 * steps
    bases = [base_with(generations=generations) for generations in range(3)]
    with torch.no_grad():
        for number in (0, 1):
            for features, logits in log[number * steps : (number + 1) * steps]:
                assert torch.equal(bases[number](features), logits)
        # Each is another teacher, or this would show nothing.
        features, logits = log[-1]
        assert not torch.equal(bases[0](features), logits)
        assert not torch.equal(bases[2](features), logits)


def test_a_checkpoint_holds_the_teacher_that_could_not_be_had_again(tmp_path: Path) -> None:
    how = method(generations=1)
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(Stopped):
        # Three batches an epoch, then two of the generation's four.
        tiny_learner(how).learn(
            STEPS_OF_TWO[0], callback=Recorder(2 * 3 + 2), checkpoints=checkpoints
        )
    state = checkpoints.newest()
    assert state is not None
    assert state.facts["phase"] == 1
    block = "classifier.blocks.0"
    assert torch.equal(state.tensors[f"teacher.{block}"], base_with(generations=0).blocks[0])
    assert not torch.equal(state.tensors[f"network.{block}"], base_with(generations=0).blocks[0])


def test_other_phases_save_no_teacher(tmp_path: Path) -> None:
    each, checkpoints = tiny_learner(method(generations=1)), Checkpoints(tmp_path)
    each.learn(STEPS_OF_TWO[0])
    with pytest.raises(Stopped):
        each.learn(STEPS_OF_TWO[1], callback=Recorder(1), checkpoints=checkpoints)
    state = checkpoints.newest()
    assert state is not None
    assert not [name for name in state.tensors if name.startswith("teacher.")]


def test_a_phase_that_teaches_itself_says_which_terms_learn_from_it() -> None:
    with pytest.raises(ValueError, match="'more' has itself for a teacher: give the slots"):
        Phase("more", TRAIN, teacher="self")
    with pytest.raises(ValueError, match="teacher"):
        dataclasses.replace(Phase("more", TRAIN), teacher=cast(Any, "other"))


def test_stopped_in_any_generation_it_ends_the_same(tmp_path: Path) -> None:
    stops = check_resumes(method(generations=2, base_smoothing=0.1), tmp_path)
    assert stops == {(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)}


def test_stopped_in_a_base_task_of_varied_images_it_ends_the_same(tmp_path: Path) -> None:
    how = method(generations=1, mixup=0.3, heavy_augmentation=True)
    assert check_resumes(how, tmp_path, STEPS_OF_TWO[:1]) == {(0, 0), (0, 1)}
