import copy
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from densekd.data.batches import Batch, RankShare
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario
from densekd.losses.classify import NcaMode
from densekd.losses.distill import DenseDistillation
from densekd.methods.method import Method
from densekd.methods.podnet import AfcOptions, ChannelDistance, Nca, afc
from densekd.methods.schedule import Schedules
from densekd.methods.terms import Distil, RatioWeight, Step, TaskContext, View
from densekd.nn.classifier import ProxyClassifier
from densekd.nn.network import Network, Outputs
from densekd.training.engine import Engine
from densekd.training.learner import Learner

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
    tiny_settings,
)

OLD, NEW = (3, 2), 2
LABELS = torch.tensor([0, 6, 4, 5, 3, 2])


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def network() -> Network:
    head = ProxyClassifier(10)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        for size in (*OLD, NEW):
            head.grow(size)
    torch.nn.init.constant_(head.eta, 4.0)
    return Network(TinyBackbone(), head)


def batch(seed: int) -> Batch:
    return Batch(drawn(6, 3, 8, 8, seed=seed), LABELS.roll(seed))


def context(trained: Network, batches: Sequence[Batch]) -> TaskContext:
    task = STEPS_OF_TWO[0]
    return TaskContext(task, (), None, lambda x: torch.empty(0), trained, lambda: iter(batches))


def term(mode: NcaMode = "released") -> ChannelDistance:
    return ChannelDistance(RatioWeight(4.0, 0.5), Nca(mode))


def wanted(trained: Network, batches: Sequence[Batch], mode: str) -> list[reference.Array]:
    """The importance by an ordinary backward pass, with the loss written out."""
    trained = copy.deepcopy(trained).train()
    sums = [np.zeros(6), np.zeros(10)]
    for batch in batches:
        seen = trained(batch.images)
        for each in seen.maps:
            each.retain_grad()
        z, eta = seen.logits, cast(ProxyClassifier, trained.classifier).eta
        losses = []
        for row, label in zip(z, batch.labels.tolist(), strict=True):
            others = torch.cat([row[:label], row[label + 1 :]]).exp().sum()
            if mode == "released":
                losses.append((row.max().exp() + others).log() - row[label])
            else:
                losses.append((others.log() - row[label] + eta * 0.6).clamp(min=0))
        torch.stack(losses).mean().backward()
        gradients = [cast(Tensor, each.grad).double().numpy() for each in seen.maps]
        found = reference.channel_importance(gradients)
        sums = [total + part for total, part in zip(sums, found, strict=True)]
    return [total / total.mean() for total in sums]


@pytest.mark.parametrize("mode", ["released", "paper"])
def test_importance_is_the_squared_gradient_of_the_nca_loss_alone(mode: NcaMode) -> None:
    trained, batches, given = network(), [batch(1), batch(2), batch(3)], term(mode)
    given.end(context(trained, batches))
    for layer, expected in zip(given.importance, wanted(trained, batches, mode), strict=True):
        np.testing.assert_allclose(layer.numpy(), expected, rtol=1e-4)
        assert layer.mean().item() == pytest.approx(1)
        assert layer.std() > 0.1


def test_importance_is_found_in_training_mode_and_leaves_the_network_as_it_was() -> None:
    trained, given = network().eval(), term()
    before = {name: x.clone() for name, x in trained.state_dict().items()}
    given.end(context(trained, [batch(1)]))
    assert not trained.training
    assert all(parameter.grad is None for parameter in trained.parameters())
    assert all(torch.equal(x, before[name]) for name, x in trained.state_dict().items())
    # By the running statistics, as in evaluation, these would be others than by the batch's.
    trained.get_buffer("backbone.first.1.running_var").fill_(9.0)
    moved = term()
    moved.end(context(trained, [batch(1)]))
    assert all(map(torch.equal, moved.importance, given.importance))


def test_importance_is_not_accumulated_over_tasks() -> None:
    given, fresh, trained = term(), term(), network()
    given.end(context(trained, [batch(1), batch(2)]))
    first = given.importance
    given.end(context(trained, [batch(3)]))
    fresh.end(context(trained, [batch(3)]))
    assert all(map(torch.equal, given.importance, fresh.importance))
    assert not any(map(torch.equal, given.importance, first))


def test_the_distance_is_weighed_by_importance_and_the_root_of_seen_to_new() -> None:
    given, trained = term(), network()
    given.end(context(trained, [batch(1)]))
    maps = [(drawn(6, 6, 4, 4, seed=s), drawn(6, 10, 2, 3, seed=s + 1)) for s in (10, 20)]
    logits = torch.zeros(6, 7)
    student, teacher = (Outputs(logits, logits, each) for each in maps)
    step = Step({"merged": View(LABELS, student, teacher)}, OLD, NEW, torch.Generator(), trained)
    ours, theirs = ([x.double().numpy() for x in each] for each in maps)
    importance = [x.numpy() for x in given.importance]
    distance = reference.channel_distance(ours, theirs, importance)
    assert given(step).item() == pytest.approx(4 * math.sqrt(7 / 2) * distance, rel=1e-5)
    even = reference.channel_distance(ours, theirs, [np.ones(6), np.ones(10)])
    assert abs(distance / even - 1) > 1e-3


def test_without_importance_all_channels_count_alike() -> None:
    maps = [(drawn(6, 6, 4, 4, seed=s), drawn(6, 10, 2, 3, seed=s + 1)) for s in (10, 20)]
    logits = torch.zeros(6, 7)
    student, teacher = (Outputs(logits, logits, each) for each in maps)
    step = Step({"merged": View(LABELS, student, teacher)}, OLD, NEW, torch.Generator(), network())
    ours, theirs = ([x.double().numpy() for x in each] for each in maps)
    even = reference.channel_distance(ours, theirs, [np.ones(6), np.ones(10)])
    assert term()(step).item() == pytest.approx(4 * math.sqrt(7 / 2) * even, rel=1e-5)


def test_importance_is_kept_as_state() -> None:
    given, other = term(), term()
    assert given.state_dict() == {}
    given.end(context(network(), [batch(1)]))
    other.load_state_dict(given.state_dict())
    assert list(given.state_dict()) == ["importance.0", "importance.1"]
    assert all(map(torch.equal, given.importance, other.importance))
    other.load_state_dict({})
    assert other.importance == ()


def method(schedules: Schedules = SCHEDULES, nca: NcaMode = "released") -> Method:
    return afc(AfcOptions(nca=nca), schedules)


def test_options_reach_the_terms() -> None:
    how = afc(AfcOptions(10.0, "paper", 0.3, 2.0), SCHEDULES)
    distance, nca = cast(ChannelDistance, how.terms["channels"]), cast(Nca, how.terms["nca"])
    assert distance.weight == RatioWeight(10.0, 0.5)
    assert distance.nca is nca
    assert (nca.mode, nca.margin) == ("paper", 0.3)
    assert {phase.schedule.clamp for phase in (*how.base, *how.increment)} == {2.0}
    assert set(how.terms) == {"nca", "channels"}  # neither of PODNet's two distances
    assert AfcOptions() == AfcOptions(4.0, "released", 0.6, 5.0)  # as released for CIFAR


def test_the_fine_tuning_is_part_of_the_method() -> None:
    with pytest.raises(ValueError, match="afc ends each later task by fine-tuning"):
        method(Schedules(BASE, INCREMENT))


@pytest.mark.parametrize("scenario", [STEPS_OF_TWO, STEPS_OF_ONE])
def test_all_terms_of_all_phases_are_finite(scenario: Scenario) -> None:
    callback = Recorder()
    kd = Distil(["merged"], DenseDistillation("random"), RatioWeight(1.0))
    each = tiny_learner(method().with_term("kd", kd))
    notes = [each.learn(task, callback=callback).notes for task in scenario]
    new = len(scenario[1].classes)
    assert [note.get("channels.lambda") for note in notes] == [
        None,
        4 * ((4 + new) / new) ** 0.5,
        4 * ((4 + 2 * new) / new) ** 0.5,
    ]
    slots: dict[tuple[bool, str], set[str]] = {}
    for report in callback.reports:
        assert all(map(math.isfinite, report.losses.values()))
        slots.setdefault((report.task > 0, report.phase), set()).update(report.losses)
    # What is added to a method is for its main phase only.
    assert slots == {
        (False, "train"): {"nca"},
        (True, "train"): {"nca", "channels", "kd"},
        (True, "finetune"): {"nca", "channels"},
    }


class Noting(ChannelDistance):
    """Keeps the context on which importance was found last."""

    context: TaskContext

    def end(self, context: TaskContext) -> None:
        super().end(context)
        self.context = context


def noting() -> Method:
    how = method()
    distance = cast(ChannelDistance, how.terms["channels"])
    return how.with_term("channels", Noting(distance.weight, distance.nca))


def test_importance_is_that_of_the_fine_tuned_network_on_all_the_tasks_images() -> None:
    each, tuned = learned(noting(), STEPS_OF_TWO[:2]), learned(method(), STEPS_OF_TWO[:2])
    noted = cast(Noting, each.terms["channels"])
    assert noted.context.network is each.network
    labels = torch.cat([images.labels for images in noted.context.batches()])
    # Two exemplars of each old class, six images of each new one.
    assert torch.bincount(labels).tolist() == [2, 2, 2, 2, 6, 6]
    again = term()
    again.end(noted.context)
    importance = cast(ChannelDistance, tuned.terms["channels"]).importance
    assert all(map(torch.equal, again.importance, importance))


class Half(Engine):
    """The first of two ranks, as far as batches are concerned."""

    @property
    def share(self) -> RankShare:
        return RankShare(0, 2)


def test_all_ranks_find_the_same_importance() -> None:
    settings = dataclasses.replace(tiny_settings(), engine=Half("cpu", precision="32"))
    each = Learner(TinyBackbone(), noting(), ExemplarMemory(Quota(2)), settings)
    each.learn(STEPS_OF_TWO[0])
    noted = cast(Noting, each.terms["channels"]).context
    assert sum(len(images.labels) for images in noted.batches()) == len(STEPS_OF_TWO[0].train)


def test_interrupted_in_every_phase_it_ends_the_same(tmp_path: Path) -> None:
    stops = check_resumes(method(), tmp_path)
    assert stops == {(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)}
    assert "term.channels.importance.1" in learned(method()).state().tensors
