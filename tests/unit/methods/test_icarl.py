import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from densekd.data.scenario import Scenario
from densekd.losses.distill import DenseDistillation
from densekd.methods.icarl import (
    IcarlOptions,
    IcarlSoftmaxOptions,
    NewOutputs,
    OldOutputs,
    icarl,
    icarl_softmax,
)
from densekd.methods.method import Method
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.terms import Distil, RatioWeight, Step
from densekd.nn.classifier import LinearClassifier
from densekd.nn.network import Network, Outputs
from densekd.nn.resnet import cifar_resnet
from densekd.training.inference import cosines
from densekd.training.learner import Learner

import reference
import reference_baselines
from support.tiny_learners import (
    STEPS_OF_ONE,
    STEPS_OF_TWO,
    Recorder,
    check_resumes,
    learned,
    random_step,
)

COURSE = Schedules(Schedule(2, 0.5, batch_size=8), Schedule(2, 0.5, batch_size=8))
NETWORK = Network(cifar_resnet(8), LinearClassifier(64))
OLD, NEW = (3, 2), 2


def sigmoid() -> Method:
    return icarl(IcarlOptions(), COURSE)


def softmax() -> Method:
    return icarl_softmax(IcarlSoftmaxOptions(), COURSE)


BOTH = [sigmoid, softmax]


def array(tensor: Tensor) -> reference.Array:
    return tensor.detach().double().numpy()


def parts(given: Step) -> tuple[reference.Array, list[int], reference.Array]:
    """The student's logits, the labels, and the teacher's logits."""
    view = given.views["merged"]
    teacher = cast(Outputs, view.teacher)
    return array(view.student.logits), view.labels.tolist(), array(teacher.logits)


def test_both_terms_make_up_the_mean_over_images_and_outputs() -> None:
    given = random_step(NETWORK, OLD, NEW)
    logits, labels, teacher = parts(given)
    losses = reference_baselines.icarl(
        logits, reference_baselines.icarl_targets(labels, logits.shape[1], teacher)
    )
    old, new = OldOutputs()(given).item(), NewOutputs()(given).item()
    assert old == pytest.approx(losses[:, : sum(OLD)].sum() / losses.size, rel=1e-5)
    assert new == pytest.approx(losses[:, sum(OLD) :].sum() / losses.size, rel=1e-5)
    assert old + new == pytest.approx(losses.mean(), rel=1e-5)


def test_the_labels_of_exemplars_count_for_new_outputs_only() -> None:
    """An old class is what the teacher says, whichever old class an image is of."""
    given = random_step(NETWORK, OLD, NEW)
    view = given.views["merged"]
    exemplars = view.labels < sum(OLD)
    assert exemplars.sum() > 2
    others = torch.where(exemplars, (view.labels + 1) % sum(OLD), view.labels)
    other = dataclasses.replace(given, views={"merged": view._replace(labels=others)})
    for term in (OldOutputs(), NewOutputs()):
        assert torch.equal(term(given), term(other))
    plain = softmax().terms["merged"]
    assert not torch.equal(plain(given), plain(other))


def test_the_distillation_is_by_sigmoids_so_it_sees_what_a_softmax_does_not() -> None:
    given = random_step(NETWORK, OLD, NEW)
    view = given.views["merged"]
    moved = view.student._replace(logits=view.student.logits + 1)
    other = dataclasses.replace(given, views={"merged": view._replace(student=moved)})
    kd = softmax().terms["kd"]
    assert kd(other).item() == pytest.approx(kd(given).item(), rel=1e-4)
    assert OldOutputs()(other).item() != pytest.approx(OldOutputs()(given).item(), rel=1e-2)


def test_in_the_base_task_all_outputs_are_new() -> None:
    given = random_step(NETWORK, (), 4)
    view = given.views["merged"]
    targets = np.eye(4)[view.labels.numpy()]
    wanted = reference_baselines.icarl(array(view.student.logits), targets).mean()
    assert NewOutputs()(given).item() == pytest.approx(wanted, rel=1e-5)


def test_ucirs_distillation_is_a_quarter_of_tau_squared_times_the_sum_over_classes() -> None:
    given = random_step(NETWORK, OLD, NEW)
    logits, labels, teacher = parts(given)
    p = np.exp(teacher / 2) / np.exp(teacher / 2).sum(1, keepdims=True)
    q = np.exp(logits[:, : sum(OLD)] / 2)
    q /= q.sum(1, keepdims=True)
    wanted = 0.25 * 2**2 * (p * np.log(p / q)).sum() / len(labels)
    terms = softmax().terms
    assert terms["kd"](given).item() == pytest.approx(wanted, rel=1e-5)
    ce = reference.cross_entropy(logits, labels)
    assert terms["merged"](given).item() == pytest.approx(ce, rel=1e-6)


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_the_constants_of_ucir_can_be_set(tau: float) -> None:
    given = random_step(NETWORK, OLD, NEW)
    kd = icarl_softmax(IcarlSoftmaxOptions(2.0, tau), COURSE).terms["kd"](given)
    logits, _, teacher = (torch.as_tensor(x) for x in parts(given))
    loss = DenseDistillation("whole", tau, "batch")(logits, teacher, OLD)
    assert kd.item() == pytest.approx(2 * loss.item(), rel=1e-5)


@pytest.mark.parametrize("how", BOTH)
@pytest.mark.parametrize("scenario", [STEPS_OF_TWO, STEPS_OF_ONE])
def test_it_learns_from_the_base_to_the_last_task(
    how: Callable[[], Method], scenario: Scenario
) -> None:
    callback = Recorder()
    each = learned(how(), scenario, callback=callback)
    assert each.sizes == tuple(len(task.classes) for task in scenario)
    assert isinstance(each.network.classifier, LinearClassifier)
    assert [callback.slots(task, "train") for task in range(3)] == [
        {"merged"},
        {"merged", "kd"},
        {"merged", "kd"},
    ]
    # New images and old exemplars in one shuffle: 12 and 8 in batches of 8.
    if scenario is STEPS_OF_TWO:
        assert {report.batches for report in callback.epoch_ends if report.task == 1} == {3}


@pytest.fixture(scope="module")
def trained() -> Learner:
    return learned(sigmoid(), STEPS_OF_TWO)


def test_it_predicts_by_the_nearest_mean(trained: Learner) -> None:
    images = STEPS_OF_TWO.dataset.test.images
    seen, means = trained.infer(images), trained.class_means()
    assert means is not None
    nearest = cosines(seen.features, means).argmax(1)
    names = [trained.classes[rank] for rank in nearest.tolist()]
    by_head = [trained.classes[rank] for rank in seen.logits.argmax(1).tolist()]
    assert trained.predict(images) == names != by_head


@pytest.mark.parametrize("name", ["icarl", "icarl-softmax"])
def test_it_can_predict_by_its_classifier_instead(name: str) -> None:
    how = {
        "icarl": icarl(IcarlOptions(predicts="head"), COURSE),
        "icarl-softmax": icarl_softmax(IcarlSoftmaxOptions(predicts="head"), COURSE),
    }[name]
    assert (how.name, how.predicts) == (name, "head")
    each, images = learned(how, STEPS_OF_TWO), STEPS_OF_TWO.dataset.test.images
    ranks = each.logits(images).argmax(1).tolist()
    assert each.predict(images) == [each.classes[rank] for rank in ranks]


def test_another_distillation_takes_the_place_of_the_old_outputs_only() -> None:
    """The new outputs are still divided by the number of all of them."""
    other = Distil(["merged"], DenseDistillation("random"), RatioWeight(5.0, 0.0))
    how = sigmoid().with_term("kd", other)
    assert list(how.terms) == ["merged", "kd"]
    given = random_step(NETWORK, OLD, NEW)
    logits, labels, teacher = parts(given)
    targets = reference_baselines.icarl_targets(labels, logits.shape[1], teacher)
    new = reference_baselines.icarl(logits, targets)[:, sum(OLD) :].sum() / logits.size
    assert how.terms["merged"](given).item() == pytest.approx(new, rel=1e-5)
    callback = Recorder()
    learned(how, STEPS_OF_TWO, callback=callback)
    assert callback.slots(2, "train") == {"merged", "kd"}


@pytest.mark.parametrize("how", BOTH)
def test_stopped_on_the_way_it_ends_the_same(how: Callable[[], Method], tmp_path: Path) -> None:
    assert check_resumes(how(), tmp_path) == {(0, 0), (1, 0), (2, 0)}
