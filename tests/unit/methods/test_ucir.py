import dataclasses
import math
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from densekd.data.scenario import Scenario
from densekd.losses.distill import DenseDistillation
from densekd.methods.method import Method
from densekd.methods.schedule import Schedules
from densekd.methods.terms import Distil, RatioWeight, Step, View
from densekd.methods.ucir import LessForget, MarginRanking, OldRatioWeight, UcirOptions, ucir
from densekd.nn.classifier import Classifier, CosineClassifier, LinearClassifier
from densekd.nn.network import Network, Outputs

import reference_baselines as reference
from support.tiny_learners import (
    BASE,
    INCREMENT,
    SCHEDULES,
    STEPS_OF_ONE,
    STEPS_OF_TWO,
    Recorder,
    TinyBackbone,
    check_resumes,
    learned,
    tiny_learner,
)

OLD = (3, 2)
LABELS = [0, 6, 4, 5, 3, 2]
WITHOUT_FINISH = dataclasses.replace(SCHEDULES, finish=None)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def step(head: Classifier, old: tuple[int, ...] = OLD, new: int = 2) -> Step:
    """Random features under a real classifier of some old tasks and a new one."""
    for size in (*old, new):
        head.grow(size)
    features = drawn(6, head.width, seed=1).requires_grad_()
    labels = torch.tensor(LABELS) % (sum(old) + new)
    teacher = Outputs(torch.zeros(6, sum(old)), drawn(6, head.width, seed=2), ())
    view = View(labels, Outputs(head(features), features, ()), teacher if old else None)
    return Step({"merged": view}, old, new, torch.Generator(), Network(TinyBackbone(), head))


def cosine_head() -> CosineClassifier:
    head = CosineClassifier(10)
    torch.nn.init.constant_(head.scale, 4.0)
    return head


def test_less_forget_is_weighed_by_the_root_of_old_to_new() -> None:
    given = step(cosine_head())
    view = given.views["merged"]
    features = [x.features.detach().double().numpy() for x in (view.student, view.teacher) if x]
    value = LessForget(OldRatioWeight(5.0))(given)
    wanted = 5 * math.sqrt(5 / 2) * reference.less_forget(*features)
    assert value.item() == pytest.approx(wanted, rel=1e-5)
    # UCIR's code has old / new; PODNet's factors have seen / new.
    assert [OldRatioWeight(5.0).of(old, 10) for old in (50, 90)] == [5 * math.sqrt(5), 15]


@pytest.mark.parametrize("new", [1, 2, 3])
def test_the_ranking_compares_cosines_with_at_most_k_new_classes(new: int) -> None:
    given = step(cosine_head(), new=new)
    view = given.views["merged"]
    head = cast(CosineClassifier, given.network.classifier)
    cosines = head.cosines(view.student.features).detach().double().numpy()
    value = MarginRanking(margin=0.5, k=2, weight=3.0)(given)
    wanted = 3 * reference.margin_ranking(cosines, view.labels.tolist(), 5, 0.5, min(2, new))
    assert value.item() == pytest.approx(wanted, rel=1e-5)
    assert wanted > 0.1


def test_the_ranking_leaves_the_scale_alone() -> None:
    given = step(cosine_head())
    head = cast(CosineClassifier, given.network.classifier)
    MarginRanking()(given).backward()
    assert head.scale.grad is not None
    assert abs(head.scale.grad.item()) < 1e-6
    features = given.views["merged"].student.features.grad
    assert features is not None
    assert features.abs().max() > 1e-3


def test_in_the_base_task_there_is_nothing_to_rank() -> None:
    given = step(cosine_head(), old=(), new=5)
    value = MarginRanking()(given)
    assert value.item() == 0
    value.backward()
    features = given.views["merged"].student.features.grad
    assert features is not None
    assert not features.any()


def test_the_ranking_needs_cosines() -> None:
    with pytest.raises(ValueError, match="LinearClassifier doesn't have: take head='cosine'"):
        MarginRanking()(step(LinearClassifier(10)))


def test_options_reach_the_terms() -> None:
    how = ucir(UcirOptions(10.0, 0.2, 3, 0.5), SCHEDULES)
    assert cast(LessForget, how.terms["less_forget"]).weight == OldRatioWeight(10.0)
    ranking = cast(MarginRanking, how.terms["ranking"])
    assert (ranking.margin, ranking.k, ranking.weight) == (0.2, 3, 0.5)
    assert UcirOptions() == UcirOptions(5.0, 0.5, 2, 1.0)  # as released for CIFAR


def method(schedules: Schedules = SCHEDULES) -> Method:
    return ucir(UcirOptions(), schedules)


@pytest.mark.parametrize("scenario", [STEPS_OF_TWO, STEPS_OF_ONE])
def test_all_terms_of_all_phases_are_finite(scenario: Scenario) -> None:
    callback = Recorder()
    kd = Distil(["merged"], DenseDistillation("random"), RatioWeight(1.0))
    each = tiny_learner(method().with_term("kd", kd))
    notes = [each.learn(task, callback=callback).notes for task in scenario]
    new = len(scenario[1].classes)
    assert [note.get("less_forget.lambda") for note in notes] == [
        None,
        5 * math.sqrt(4 / new),
        5 * math.sqrt((4 + new) / new),
    ]
    slots: dict[tuple[bool, str], set[str]] = {}
    for report in callback.reports:
        assert all(map(math.isfinite, report.losses.values()))
        slots.setdefault((report.task > 0, report.phase), set()).update(report.losses)
    own = {"ce", "less_forget", "ranking"}
    # What is added to a method is for its main phase only.
    assert slots == {
        (False, "train"): {"ce", "ranking"},
        (True, "train"): own | {"kd"},
        (True, "finetune"): own,
    }
    ranked = [r.losses["ranking"] for r in callback.reports if r.task and r.phase == "train"]
    assert max(ranked) > 0


def test_old_weights_stay_and_all_else_moves() -> None:
    before, after = (learned(method(WITHOUT_FINISH), STEPS_OF_TWO[:n]).network for n in (2, 3))
    assert isinstance(before.classifier, CosineClassifier)
    for name, parameter in before.named_parameters():
        moved = not torch.equal(after.get_parameter(name), parameter)
        assert moved != name.startswith("classifier.blocks")


def test_new_weights_are_imprinted() -> None:
    """At a rate of nearly nothing they stay what they began as."""
    still = dataclasses.replace(INCREMENT, lr=1e-30, lr_end=0.0)
    each = learned(method(Schedules(BASE, still)), STEPS_OF_TWO[:1])
    task = STEPS_OF_TWO[1]
    features = each.infer(task.train.images).features.double().numpy()
    units = features / np.sqrt((features**2).sum(1))[:, None]
    old = each.network.classifier.blocks[0].detach().double().numpy()
    each.learn(task)
    for label, row in enumerate(each.network.classifier.blocks[1].detach().numpy()):
        mean = units[task.train.labels.numpy() - task.first == label].mean(0)
        wanted = mean / reference.length(mean) * np.mean([reference.length(w) for w in old])
        np.testing.assert_allclose(row, wanted, rtol=1e-4, atol=1e-6)


def test_the_fine_tuning_is_balanced_and_trains_the_weights_of_all_classes_alone() -> None:
    each, callback = learned(method(), STEPS_OF_TWO[:1]), Recorder()
    took = each.learn(STEPS_OF_TWO[1], callback=callback)
    # Two epochs of 12 new images and 8 exemplars, then two of 2 images of 6 classes.
    assert took.images == 2 * (12 + 8) + 2 * 2 * 6
    plain = learned(method(WITHOUT_FINISH), STEPS_OF_TWO[:2]).network.state_dict()
    for name, tensor in each.network.state_dict().items():
        # Neither the scale nor the running statistics.
        moved = not torch.equal(tensor, plain[name])
        assert moved == name.startswith("classifier.blocks")


def test_without_exemplars_there_is_nothing_to_fine_tune_on() -> None:
    each, callback = tiny_learner(method(), per_class=0), Recorder()
    for task in STEPS_OF_TWO:
        each.learn(task, callback=callback)
    assert {report.phase for report in callback.reports} == {"train"}
    assert {report.losses["ranking"] for report in callback.reports} == {0.0}


def test_interrupted_in_every_phase_it_ends_the_same(tmp_path: Path) -> None:
    stops = check_resumes(method(), tmp_path)
    assert stops == {(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)}
