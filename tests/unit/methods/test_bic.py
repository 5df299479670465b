import dataclasses
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from densekd.data.dataset import PixelImages, Split
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario
from densekd.data.selection import Selection
from densekd.data.stratify import held_count
from densekd.losses.distill import DenseDistillation
from densekd.methods.bic import BIAS_STAGE, BicOptions, NewShare, OldShare, Unbiased, bic
from densekd.methods.method import Method
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.terms import Distil, RatioWeight, Step
from densekd.nn.classifier import BiasClassifier, LinearClassifier
from densekd.nn.network import Network, Outputs
from densekd.nn.resnet import cifar_resnet
from densekd.seeds import Seeds
from densekd.training.learner import Learner
from densekd.training.phases import select_images

import reference
import reference_baselines
from support.datasets import dataset
from support.tiny_learners import (
    STEPS_OF_ONE,
    STEPS_OF_TWO,
    Recorder,
    TinyBackbone,
    check_resumes,
    learned,
    random_step,
    tiny_learner,
)

TRAIN = Schedule(2, 0.05, batch_size=8)
BIAS = Schedule(3, 0.1, "constant", batch_size=6, weight_decay=0.0)
COURSE = Schedules(TRAIN, TRAIN, BIAS)
OLD, NEW = (3, 2), 3


def method(**options: float) -> Method:
    return bic(BicOptions(**options), COURSE)


def network() -> Network:
    made = Network(cifar_resnet(8), BiasClassifier(64))
    for size in (*OLD, NEW):
        made.grow(size)
    return made


def array(tensor: Tensor) -> reference.Array:
    return tensor.detach().double().numpy()


def parts(given: Step) -> tuple[reference.Array, list[int], reference.Array]:
    """The student's logits, the labels, and the teacher's logits."""
    view = given.views["merged"]
    teacher = cast(Outputs, view.teacher)
    return array(view.student.logits), view.labels.tolist(), array(teacher.logits)


def test_the_first_stage_weighs_by_the_share_of_old_classes_and_without_tau_squared() -> None:
    given = random_step(network(), OLD, NEW)
    logits, labels, teacher = parts(given)
    share = 5 / 8  # old classes among those seen, not the number of groups
    new = (1 - share) * reference.cross_entropy(logits, labels)
    old = share * reference_baselines.soft_cross_entropy(logits[:, :5], teacher, 2.0)
    assert NewShare()(given).item() == pytest.approx(new, rel=1e-5)
    assert OldShare(2.0)(given).item() == pytest.approx(old, rel=1e-5)
    hotter = share * reference_baselines.soft_cross_entropy(logits[:, :5], teacher, 4.0)
    assert OldShare(4.0)(given).item() == pytest.approx(hotter, rel=1e-5)


def test_the_base_task_is_plain_cross_entropy() -> None:
    given = random_step(network(), (), 4)
    view = given.views["merged"]
    wanted = reference.cross_entropy(array(view.student.logits), view.labels.tolist())
    assert NewShare()(given).item() == pytest.approx(wanted, rel=1e-6)


def test_the_second_stage_is_one_softmax_and_a_decay_of_gamma_alone() -> None:
    made = network()
    given = random_step(made, OLD, NEW)
    logits, labels, _ = parts(given)
    ce = reference.cross_entropy(logits, labels)
    assert Unbiased(0.1)(given).item() == pytest.approx(ce, rel=1e-6)
    classifier = cast(BiasClassifier, made.classifier)
    with torch.no_grad():
        classifier.gamma.fill_(-3.0)
        classifier.beta.fill_(0.5)
    loss = Unbiased(0.1)(given)
    assert loss.item() == pytest.approx(ce + 0.1 * 3**2 / 2, rel=1e-6)
    loss.backward()
    assert cast(Tensor, classifier.gamma.grad).item() == pytest.approx(0.1 * -3, rel=1e-6)
    assert classifier.beta.grad is None


def test_the_second_stage_needs_something_to_correct() -> None:
    plain = Network(cifar_resnet(8), LinearClassifier(64))
    with pytest.raises(ValueError, match="corrects a BiasClassifier: take head='bias'"):
        Unbiased(0.1)(random_step(plain, OLD, NEW))


def test_a_temperature_that_can_not_be_is_refused_before_the_base_task() -> None:
    with pytest.raises(ValueError, match="temperature must be a positive number, not -1"):
        bic(BicOptions(temperature=-1.0), Schedules())


def test_the_released_second_stage_is_taken_unless_another_is_given() -> None:
    assert method().increment[1].schedule == BIAS
    released = bic(BicOptions(), Schedules()).increment[1].schedule
    assert released == BIAS_STAGE
    rates = [released.lr_at(epoch) for epoch in (0, 59, 60, 120, 160, 180, 199)]
    np.testing.assert_allclose(rates, [0.1, 0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-5])
    # Beta is not drawn to 0, and gamma only by its term.
    assert released.weight_decay == 0


@pytest.mark.parametrize("scenario", [STEPS_OF_TWO, STEPS_OF_ONE])
def test_it_learns_from_the_base_to_the_last_task(scenario: Scenario) -> None:
    callback = Recorder()
    each = learned(method(), scenario, callback=callback)
    assert each.sizes == tuple(len(task.classes) for task in scenario)
    assert callback.slots(0, "train") == {"merged"}
    assert callback.slots(0, "bias") == set()
    for task in (1, 2):
        assert callback.slots(task, "train") == {"merged", "kd"}
        assert callback.slots(task, "bias") == {"bias"}
    classifier = cast(BiasClassifier, each.network.classifier)
    assert (classifier.beta.item(), classifier.gamma.item()) != (1.0, 0.0)


def test_a_distillation_set_later_is_of_the_first_stage_only() -> None:
    other = Distil(["merged"], DenseDistillation("random"), RatioWeight(5.0, 0.0))
    callback = Recorder()
    learned(method().with_term("kd", other), STEPS_OF_TWO, callback=callback)
    assert callback.slots(2, "train") == {"merged", "kd"}
    assert callback.slots(2, "bias") == {"bias"}


def keys(images: Split) -> set[tuple[int, int]]:
    """Colour and number, which tell made images apart."""
    pixels = cast(PixelImages, images.images).pixels
    return {(int(p[0, 0, 0]), int(p[1, 0, 0])) for p in pixels}


def test_what_is_held_out_is_a_tenth_of_exemplars_and_as_many_of_each_new_class() -> None:
    scenario = Scenario.of(dataset(8, 30), base=4, steps=2)
    each = tiny_learner(method(), per_class=20)
    each.learn(scenario[0])
    material = select_images(scenario[1], each.method, each.memory, Seeds(1))
    assert material.held_out is not None
    assert material.replayed is not None
    assert torch.bincount(material.held_out.labels).tolist() == [2] * 6
    assert torch.bincount(material.replayed.labels).tolist() == [18] * 4
    assert torch.bincount(material.new.labels).tolist() == [0] * 4 + [28] * 2
    assert not keys(material.held_out) & (keys(material.replayed) | keys(material.new))


@pytest.mark.parametrize(
    ("quota", "selection"),
    [(Quota(20), "greedy"), (Quota(5), "random"), (Quota(None, total=100), "random")],
)
def test_what_is_held_out_was_never_trained_on(quota: Quota, selection: Selection) -> None:
    memory, quick = ExemplarMemory(quota, selection), Schedule(1, 0.05, batch_size=64)
    settings = tiny_learner(method()).settings
    each = Learner(
        TinyBackbone(), bic(BicOptions(), Schedules(quick, quick, quick)), memory, settings
    )
    trained: set[tuple[int, int]] = set()
    for task in Scenario.of(dataset(8, 30), base=4, steps=4):
        seeds = Seeds(settings.seed).at("task", task.number)
        material = select_images(task, each.method, memory, seeds)
        trained |= keys(material.new)
        if material.replayed is not None:
            trained |= keys(material.replayed)
        assert (material.held_out is None) == (task.number == 0)
        if material.held_out is not None:
            seen = 4 + task.number
            count = held_count(quota.of(seen), 0.1)
            assert torch.bincount(material.held_out.labels).tolist() == [count] * seen
            assert not keys(material.held_out) & trained
        each.learn(task)
        # What was held out is among the exemplars, for the tasks to come.
        assert material.reserved is not None
        assert keys(material.reserved) <= keys(memory.exemplars())


def test_without_a_held_out_image_of_either_kind_there_is_no_second_stage() -> None:
    scenario = Scenario.of(dataset(8, 30), base=4, steps=2)
    each = tiny_learner(method(), per_class=20)
    each.learn(scenario[0])
    labels = scenario[1].train.labels
    single = torch.stack([torch.nonzero(labels == rank)[0, 0] for rank in (4, 5)])
    few = dataclasses.replace(scenario[1], train=scenario[1].train.take(single))
    material = select_images(few, each.method, each.memory, Seeds(1))
    assert material.held_out is None
    assert len(material.new) == 2


def test_the_second_stage_moves_two_numbers_and_nothing_else() -> None:
    terms = {slot: term for slot, term in method().terms.items() if slot != "bias"}
    first_stage = dataclasses.replace(method(), terms=terms, increment=method().increment[:1])
    one, both = tiny_learner(first_stage), tiny_learner(method())
    for task in STEPS_OF_TWO[:2]:
        one.learn(task)
        both.learn(task)
    before, after = one.state().tensors, both.state().tensors
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"network.classifier.beta", "network.classifier.gamma"}


def corrected(classifier: BiasClassifier, features: reference.Array) -> reference.Array:
    """Logits of four old classes as they are, and of the newest with the two numbers."""
    weights = np.concatenate([array(block) for block in classifier.blocks])
    biases = np.concatenate([array(bias) for bias in classifier.biases])
    logits = features @ weights.T + biases
    beta, gamma = classifier.beta.item(), classifier.gamma.item()
    assert abs(beta - 1) + abs(gamma) > 1e-2
    logits[:, 4:] = beta * logits[:, 4:] + gamma
    return np.asarray(logits)


def test_predictions_are_by_corrected_logits() -> None:
    each = tiny_learner(method())
    for task in STEPS_OF_TWO[:2]:
        each.learn(task)
    images = STEPS_OF_TWO.dataset.test.images
    classifier = cast(BiasClassifier, each.network.classifier)
    wanted = corrected(classifier, array(each.infer(images).features))
    np.testing.assert_allclose(array(each.logits(images)), wanted, rtol=1e-4, atol=1e-5)
    assert each.predict(images) == [each.classes[rank] for rank in wanted.argmax(1)]
    # So far that uncorrected logits would give other names.
    with torch.no_grad():
        classifier.gamma.fill_(100.0)
    assert set(each.predict(images)) <= set(each.classes[4:])


def test_each_stage_is_trained_on_its_own_images() -> None:
    """Of 24 images of the base, or 12 new ones and 8 exemplars, one of each class is held out."""
    each = tiny_learner(method())
    images = [each.learn(task).images for task in STEPS_OF_TWO[:2]]
    assert images == [2 * (24 - 4), 2 * (20 - 6) + 3 * 6]


class Seen(NamedTuple):
    beta: float
    gamma: float
    teacher: Outputs


class Log(list[Seen]):
    """A list that stays the same one where what holds it is copied, as a learner's terms are."""

    def __deepcopy__(self, memo: object) -> "Log":
        return self


class Noting(OldShare):
    """The distillation, which notes the student's correction and what the teacher says."""

    def __init__(self, log: Log) -> None:
        super().__init__(2.0)
        self.log = log

    def __call__(self, step: Step) -> Tensor:
        classifier = cast(BiasClassifier, step.network.classifier)
        teacher = cast(Outputs, step.views["merged"].teacher)
        self.log.append(Seen(classifier.beta.item(), classifier.gamma.item(), teacher))
        return super().__call__(step)


def test_the_teacher_is_corrected_and_the_student_of_the_first_stage_is_not() -> None:
    log = Log()
    each = tiny_learner(method().with_term("kd", Noting(log)))
    for task in STEPS_OF_TWO[:2]:
        each.learn(task)
    before = cast(BiasClassifier, each.network.classifier)
    log.clear()
    each.learn(STEPS_OF_TWO[2])
    assert len(log) == 2 * 2  # 10 new images and 6 exemplars in batches of 8
    for seen in log:
        assert (seen.beta, seen.gamma) == (1.0, 0.0)
        wanted = corrected(before, array(seen.teacher.features))
        np.testing.assert_allclose(array(seen.teacher.logits), wanted, rtol=1e-4, atol=1e-5)


def test_without_exemplars_there_is_no_second_stage() -> None:
    callback = Recorder()
    each = learned(method(), STEPS_OF_TWO, callback=callback, per_class=0)
    assert {report.phase for report in callback.epoch_ends} == {"train"}
    classifier = cast(BiasClassifier, each.network.classifier)
    assert (classifier.beta.item(), classifier.gamma.item()) == (1.0, 0.0)


def test_one_exemplar_a_class_is_trained_on_rather_than_held_out() -> None:
    """Held-out images of new classes alone would teach that everything is new."""
    each = tiny_learner(method(), per_class=1)
    each.learn(STEPS_OF_TWO[0])
    material = select_images(STEPS_OF_TWO[1], each.method, each.memory, Seeds(1))
    assert material.held_out is None
    assert len(material.new) == len(STEPS_OF_TWO[1].train)


def test_the_constants_can_be_set() -> None:
    how = method(temperature=3.0, gamma_decay=0.5, held_out=0.25)
    assert how.held_out == 0.25
    assert cast(OldShare, how.terms["kd"]).temperature == 3.0
    assert cast(Unbiased, how.terms["bias"]).gamma_decay == 0.5


def test_stopped_in_either_stage_it_ends_the_same(tmp_path: Path) -> None:
    stops = check_resumes(method(), tmp_path)
    assert stops == {(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)}


def test_without_a_share_held_out_there_is_only_the_first_stage() -> None:
    callback = Recorder()
    how = method(held_out=0.0)
    assert list(how.terms) == ["merged", "kd"]
    learned(how, STEPS_OF_TWO[:2], callback=callback)
    assert {report.phase for report in callback.epoch_ends} == {"train"}
