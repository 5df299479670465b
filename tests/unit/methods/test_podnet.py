import copy
import dataclasses
import math
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from densekd.data.scenario import Scenario
from densekd.data.selection import Selection
from densekd.losses.classify import NcaMode
from densekd.losses.distill import DenseDistillation
from densekd.methods.method import Method
from densekd.methods.podnet import Nca, PodnetOptions, PodSpatial, podnet
from densekd.methods.schedule import Schedules
from densekd.methods.terms import Distil, RatioWeight, Step, Stream, View
from densekd.methods.ucir import LessForget
from densekd.nn.classifier import Classifier, CosineClassifier, ProxyClassifier
from densekd.nn.network import Network, Outputs
from densekd.training.callbacks import Callback, Stopped, TrainingProgress
from densekd.training.checkpoint import Checkpoints

import reference_baselines as reference
from support.tiny_learners import (
    BASE,
    FINISH,
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

OLD, NEW = (3, 2), 2
LABELS = [0, 6, 4, 5, 3, 2]


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def outputs(features: Tensor, logits: Tensor, seed: int) -> Outputs:
    maps = drawn(6, 3, 4, 4, seed=seed), drawn(6, 5, 2, 3, seed=seed + 1)
    return Outputs(logits, features, maps)


def step(head: Classifier) -> Step:
    """Random features and maps under a real classifier of two old tasks and a new one."""
    for size in (*OLD, NEW):
        head.grow(size)
    features = drawn(6, head.width, seed=1).requires_grad_()
    student = outputs(features, head(features), 10)
    teacher = outputs(drawn(6, head.width, seed=2), torch.zeros(6, sum(OLD)), 20)
    views: dict[Stream, View] = {"merged": View(torch.tensor(LABELS), student, teacher)}
    network = Network(TinyBackbone(), head)
    return Step(views, OLD, NEW, torch.Generator(), network)


def proxies(eta: float = 4.0) -> ProxyClassifier:
    head = ProxyClassifier(10)
    torch.nn.init.constant_(head.eta, eta)
    return head


def arrays(tensors: tuple[Tensor, ...]) -> list[reference.Array]:
    return [tensor.detach().double().numpy() for tensor in tensors]


def test_the_released_nca_loss_has_no_margin() -> None:
    given = step(proxies())
    (logits,) = arrays((given.views["merged"].student.logits,))
    values = [Nca("released", margin)(given).item() for margin in (0.0, 0.6, 5.0)]
    assert len(set(values)) == 1
    assert values[0] == pytest.approx(reference.nca_released(logits, LABELS, 0.6), rel=1e-5)


def test_the_papers_margin_is_on_scores_before_they_are_scaled() -> None:
    given = step(proxies())
    view, head = given.views["merged"], cast(ProxyClassifier, given.network.classifier)
    (scores,) = arrays((head.scores(view.student.features),))

    def loss(eta: float) -> float:
        """``max(0, -log(e^{eta (s_y - margin)} / sum e^{eta s_j}))``."""
        return reference.nca_paper(eta * scores, LABELS, eta * 0.6)

    value = Nca("paper", 0.6)(given)
    assert value.item() == pytest.approx(loss(4.0), rel=1e-5)
    value.backward()
    assert head.eta.grad is not None
    slope = (loss(4 + 1e-5) - loss(4 - 1e-5)) / 2e-5
    assert head.eta.grad.item() == pytest.approx(slope, rel=1e-4)


def test_the_nca_loss_needs_proxies() -> None:
    with pytest.raises(ValueError, match="CosineClassifier doesn't have: take head='proxies'"):
        Nca()(step(CosineClassifier(10)))
    with pytest.raises(ValueError, match="nca"):
        Nca(cast(NcaMode, "margin"))


def test_pod_is_weighed_by_the_root_of_seen_to_new() -> None:
    given = step(proxies())
    student, teacher = given.views["merged"].student, given.views["merged"].teacher
    assert teacher is not None
    how = podnet(PodnetOptions(spatial=8.0, flat=10.0), SCHEDULES)
    wanted = {
        "pod_spatial": 8.0 * reference.pod_spatial(arrays(student.maps), arrays(teacher.maps)),
        "pod_flat": 10.0 * reference.less_forget(*arrays((student.features, teacher.features))),
    }
    for slot, value in wanted.items():
        given_value = how.terms[slot](given).item()
        assert given_value == pytest.approx(math.sqrt(7 / 2) * value, rel=1e-5)


def test_options_reach_the_terms() -> None:
    terms = podnet(PodnetOptions(nca="paper", margin=0.3), SCHEDULES).terms
    nca = cast(Nca, terms["nca"])
    assert (nca.mode, nca.margin) == ("paper", 0.3)
    assert cast(PodSpatial, terms["pod_spatial"]).weight == RatioWeight(
        3.0, 0.5
    )  # as released for CIFAR
    assert cast(LessForget, terms["pod_flat"]).weight == RatioWeight(1.0, 0.5)
    assert PodnetOptions() == PodnetOptions(3.0, 1.0, "released", 0.6, 5.0)


def test_every_schedule_is_clamped_unless_it_says_how() -> None:
    own = dataclasses.replace(INCREMENT, clamp=0.5)
    how = podnet(PodnetOptions(), Schedules(BASE, own, FINISH))
    assert [phase.schedule.clamp for phase in how.base] == [5.0]
    assert [phase.schedule.clamp for phase in how.increment] == [0.5, 5.0]


def test_the_fine_tuning_is_part_of_the_method() -> None:
    with pytest.raises(ValueError, match="podnet ends each later task by fine-tuning"):
        podnet(PodnetOptions(), Schedules(BASE, INCREMENT))


def method(schedules: Schedules = SCHEDULES, nca: NcaMode = "released") -> Method:
    return podnet(PodnetOptions(nca=nca), schedules)


@pytest.mark.parametrize("nca", ["released", "paper"])
@pytest.mark.parametrize("scenario", [STEPS_OF_TWO, STEPS_OF_ONE])
def test_all_terms_of_all_phases_are_finite(scenario: Scenario, nca: NcaMode) -> None:
    callback = Recorder()
    kd = Distil(["merged"], DenseDistillation("random"), RatioWeight(1.0))
    each = tiny_learner(method(nca=nca).with_term("kd", kd))
    notes = [each.learn(task, callback=callback).notes for task in scenario]
    new = len(scenario[1].classes)
    assert [note.get("pod_spatial.lambda") for note in notes] == [
        None,
        3 * ((4 + new) / new) ** 0.5,
        3 * ((4 + 2 * new) / new) ** 0.5,
    ]
    slots: dict[tuple[bool, str], set[str]] = {}
    for report in callback.reports:
        assert all(map(math.isfinite, report.losses.values()))
        slots.setdefault((report.task > 0, report.phase), set()).update(report.losses)
    own = {"nca", "pod_spatial", "pod_flat"}
    # What is added to a method is for its main phase only.
    assert slots == {
        (False, "train"): {"nca"},
        (True, "train"): own | {"kd"},
        (True, "finetune"): own,
    }


def main_phase_only(how: Method) -> Method:
    return dataclasses.replace(how, increment=how.increment[:1])


def test_old_proxies_stay_in_the_main_phase_and_all_else_moves() -> None:
    how = main_phase_only(method())
    before, after = (learned(how, STEPS_OF_TWO[:n]).network for n in (2, 3))
    assert isinstance(before.classifier, ProxyClassifier)
    for name, parameter in before.named_parameters():
        moved = not torch.equal(after.get_parameter(name), parameter)
        assert moved != name.startswith("classifier.blocks")


def test_the_fine_tuning_trains_all_proxies_alone_while_statistics_drift() -> None:
    each = learned(method(), STEPS_OF_TWO[:1])
    took = each.learn(STEPS_OF_TWO[1])
    # Two epochs of 12 new images and 8 exemplars, then two of 2 images of 6 classes.
    assert took.images == 2 * (12 + 8) + 2 * 2 * 6
    plain = learned(main_phase_only(method()), STEPS_OF_TWO[:2]).network.state_dict()
    for name, tensor in each.network.state_dict().items():
        moved = not torch.equal(tensor, plain[name])
        statistics = "running" in name or "num_batches" in name
        assert moved == (name.startswith("classifier.blocks") or statistics)


def test_new_proxies_are_imprinted() -> None:
    """At a rate of nearly nothing they stay what they began as."""
    still = dataclasses.replace(INCREMENT, lr=1e-30, lr_end=0.0)
    schedules = Schedules(BASE, still, dataclasses.replace(still, decay="constant"))
    each = learned(method(schedules), STEPS_OF_TWO[:1])
    task = STEPS_OF_TWO[1]
    features = each.infer(task.train.images).features.double().numpy()
    units = features / np.sqrt((features**2).sum(1))[:, None]
    old = each.network.classifier.blocks[0].detach().double().numpy()
    each.learn(task)
    rows = each.network.classifier.blocks[1].detach().double().numpy()
    rows /= np.mean([reference.length(w) for w in old])
    own = task.train.labels.numpy() - task.first
    # A class has six images for ten proxies: each proxy is near an image of its class.
    for proxy, row in enumerate(rows):
        nearest = min(reference.length(row - unit) for unit in units[own == proxy // 10])
        assert nearest < 0.05


def test_gradients_are_clamped(monkeypatch: pytest.MonkeyPatch) -> None:
    largest: list[float] = []
    original = SGD.step

    def noted(self: SGD) -> None:
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        largest.append(max(float(g.abs().max()) for g in gradients if g is not None))
        original(self)

    monkeypatch.setattr(SGD, "step", noted)
    options = PodnetOptions(spatial=1e4, clamp=0.01)
    each = tiny_learner(podnet(options, SCHEDULES))
    for task in STEPS_OF_TWO[:2]:
        each.learn(task)
    assert max(largest) == pytest.approx(0.01)


class Impatient(Callback):
    """Stops after the first batch of the fine-tuning."""

    def __init__(self) -> None:
        self.phase = ""

    def report(self, report: TrainingProgress) -> None:
        self.phase = report.phase

    def stop(self) -> bool:
        return self.phase == "finetune"


@pytest.mark.parametrize("selection", ["herding", "random"])
def test_new_exemplars_are_chosen_by_the_network_as_the_fine_tuning_finds_it(
    selection: Selection, tmp_path: Path
) -> None:
    base, task = STEPS_OF_TWO[:2]
    how, checkpoints = method(), Checkpoints(tmp_path)
    each = tiny_learner(how, selection=selection)
    each.learn(base)
    memory = copy.deepcopy(each.memory)
    with pytest.raises(Stopped):
        each.learn(task, callback=Impatient(), checkpoints=checkpoints)
    state = checkpoints.newest()
    assert state is not None
    assert state.facts["phase"] == 1
    if selection == "random":
        assert "chosen" not in state.tensors
        return
    main = tiny_learner(dataclasses.replace(how, increment=how.increment[:1]), selection=selection)
    main.learn(base)
    main.learn(task)
    features = main.infer(task.train.images).features
    wanted = memory.choose(task.train, 2, torch.Generator(), features)
    assert torch.equal(state.tensors["chosen"], torch.cat(wanted))
    # The network before would have chosen others.
    before = memory.choose(task.train, 2, torch.Generator(), each.infer(task.train.images).features)
    assert not torch.equal(torch.cat(before), torch.cat(wanted))


def test_interrupted_in_every_phase_it_ends_the_same(tmp_path: Path) -> None:
    stops = check_resumes(method(), tmp_path, selection="herding")
    assert stops == {(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)}
