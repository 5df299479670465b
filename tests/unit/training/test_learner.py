import dataclasses
import functools
import logging
import threading
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from densekd.data.augment import Augment
from densekd.data.dataset import PixelImages, Split
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario, Task
from densekd.data.selection import Selection
from densekd.files import DamagedFile
from densekd.methods.method import Method, Phase
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.terms import CrossEntropy
from densekd.nn.classifier import CosineClassifier, LinearClassifier
from densekd.nn.network import Features
from densekd.training.callbacks import Callback, Stopped, TrainingProgress
from densekd.training.checkpoint import Checkpoints, State, save_state
from densekd.training.engine import Engine
from densekd.training.evaluate import evaluate
from densekd.training.learner import Learner, Settings
from densekd.training.loop import Diverged

import reference
from support.datasets import dataset
from support.tiny_learners import (
    BASE,
    STEPS_OF_TWO,
    TinyBackbone,
    same_state,
    tiny_learner,
    tiny_settings,
)

SCENARIO = Scenario.of(dataset(8, 6), base=4, steps=2)
ENGINE = Engine("cpu", precision="32")
SCHEDULES = Schedules(Schedule(2, 0.05, batch_size=8), Schedule(2, 0.05, batch_size=4))


def method(name: str, schedules: Schedules = SCHEDULES, **options: Any) -> Method:
    return make_method(name, DenseOptions(**options), schedules)


def learner(how: Method, memory: ExemplarMemory | None = None, seed: int = 1) -> Learner:
    augment = Augment((0.014, 0.01, 0.0), (0.01, 0.01, 1.0), padding=1)
    memory = ExemplarMemory(Quota(per_class=2)) if memory is None else memory
    return Learner(TinyBackbone(), how, memory, Settings(augment, seed, ENGINE))


def learned(how: Method, tasks: int, memory: ExemplarMemory | None = None) -> Learner:
    each = learner(how, memory)
    for task in SCENARIO[:tasks]:
        each.learn(task)
    return each


class Losses(Callback):
    """Records which terms took part in each task."""

    def __init__(self) -> None:
        self.slots: dict[int, set[str]] = {}

    def report(self, report: TrainingProgress) -> None:
        self.slots.setdefault(report.task, set()).update(report.losses)


def test_classes_are_predicted_by_name() -> None:
    """In any class order, an image of colour i is of class i."""
    schedule = Schedule(25, 0.1, batch_size=12)
    each = learner(method("joint", Schedules(schedule, schedule), head="linear"))
    each.settings.augment.padding = 0
    for task in SCENARIO:
        each.learn(task)
    assert each.classes == SCENARIO.classes != SCENARIO.dataset.classes
    assert each.sizes == (4, 2, 2)
    images = SCENARIO.dataset.train.images
    assert isinstance(images, PixelImages)
    names = [f"class {colour}" for colour in images.pixels[:, 0, 0, 0].tolist()]
    right = np.mean([a == b for a, b in zip(each.predict(images), names, strict=True)])
    assert right > 0.9
    assert each.logits(images).shape == (48, 8)
    assert each.predict(images.take(torch.arange(0))) == []


def test_a_task_out_of_order_is_refused() -> None:
    each = learner(method("rdkd"))
    with pytest.raises(ValueError, match="Task 1 begins with class 4, but 0 classes were learned"):
        each.learn(SCENARIO[1])
    each.learn(SCENARIO[0])
    for wrong in (SCENARIO[0], SCENARIO[2]):
        with pytest.raises(ValueError, match="but 4 classes were learned"):
            each.learn(wrong)
    assert each.classes == SCENARIO[0].classes
    each.learn(SCENARIO[1])


class StopAt(Callback):
    def __init__(self, batch: int) -> None:
        self.left = batch

    def stop(self) -> bool:
        self.left -= 1
        return self.left == 0


NAMES = ["finetune", "rdkd", "rdkd-adaptive", "joint"]


@functools.cache
def finished(name: str) -> State:
    """The state after all tasks, learned without interruption."""
    return learned(method(name), 3).state()


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupted_task_leaves_the_learner_unchanged(name: str) -> None:
    each, images = learned(method(name), 2), SCENARIO.dataset.test.images
    before, logits, kept = each.state(), each.logits(images), each.memory.state_dict()
    weights = {k: x.clone() for k, x in before.tensors.items()}
    for batch in (1, 3, 6):
        with pytest.raises(Stopped):
            each.learn(SCENARIO[2], callback=StopAt(batch))
        assert each.classes == SCENARIO.classes[:6]
        assert each.sizes == (4, 2)
        assert torch.equal(each.logits(images), logits)
        for part, x in each.memory.state_dict().items():
            assert torch.equal(x, kept[part])
        after = each.state()
        assert after.facts == before.facts
        assert all(torch.equal(after.tensors[k], x) for k, x in weights.items())
    # It was not saved, so it begins anew, and ends as if nothing had been.
    each.learn(SCENARIO[2])
    assert same_state(each.state(), finished(name))


@pytest.mark.parametrize("name", ["finetune", "rdkd-adaptive"])
def test_a_task_that_diverges_is_not_learned(name: str, tmp_path: Path) -> None:
    mad = Schedules(SCHEDULES.base, Schedule(2, 1e30, batch_size=4))
    each, images = learned(method(name, mad), 1), SCENARIO.dataset.test.images
    logits, kept = each.logits(images), len(each.memory)
    with pytest.raises(Diverged, match=r"task 2 .* What was learned before is kept\."):
        each.learn(SCENARIO[1], checkpoints=Checkpoints(tmp_path))
    assert each.classes == SCENARIO[0].classes
    assert len(each.memory) == kept
    assert torch.equal(each.logits(images), logits)
    each.save(tmp_path / "kept")
    # A saner rate goes on from there, with the same checkpoints.
    parts = TinyBackbone(), method(name), ExemplarMemory(Quota(2)), each.settings
    resumed = Learner.load(tmp_path / "kept", *parts)
    for task in SCENARIO[1:]:
        resumed.learn(task)
    assert same_state(resumed.state(), finished(name))


def test_two_learners_of_one_method_share_nothing() -> None:
    how = method("rdkd-adaptive")
    alone = finished("rdkd-adaptive")
    first, second = learner(how), learner(how, seed=2)
    for task in SCENARIO:
        first.learn(task)
        second.learn(task)
    assert same_state(first.state(), alone)
    vectors = [state.tensors["term.kd.tasks.0"] for state in (second.state(), alone)]
    assert not torch.equal(*vectors)
    assert how.terms["kd"].state_dict() == {}


def test_the_given_backbone_is_copied_before_training() -> None:
    backbone, untouched = TinyBackbone(), TinyBackbone()
    settings = learner(method("gkd")).settings
    each = Learner(backbone, method("gkd"), ExemplarMemory(Quota(2)), settings)
    each.learn(SCENARIO[0])
    for name, parameter in untouched.named_parameters():
        assert torch.equal(backbone.get_parameter(name), parameter)
        assert not torch.equal(each.network.backbone.get_parameter(name), parameter)


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_learner_loads_and_learns_on(name: str, tmp_path: Path) -> None:
    each = learned(method(name), 2)
    each.save(tmp_path)
    parts = TinyBackbone(), method(name), ExemplarMemory(Quota(2)), each.settings
    restored = Learner.load(tmp_path, *parts)
    images = SCENARIO.dataset.test.images
    assert (restored.classes, restored.sizes) == (each.classes, each.sizes)
    assert torch.equal(restored.logits(images), each.logits(images))
    assert restored.predict(images) == each.predict(images)
    restored.learn(SCENARIO[2])
    assert same_state(restored.state(), finished(name))


class Waiting(TinyBackbone):
    """Keeps two images waiting while three others are inferred, and notes its mode then."""

    begun, ended = threading.Event(), threading.Event()
    trained: ClassVar[list[bool]] = []

    def forward(self, images: Tensor) -> Features:
        if len(images) == 2:
            self.begun.set()
            self.ended.wait(10)
            self.trained.append(self.training)
        elif len(images) == 3:
            self.begun.wait(10)
        return super().forward(images)


def test_threads_infer_without_disturbing_each_other(tmp_path: Path) -> None:
    images = SCENARIO.dataset.test.images
    parts = Waiting(), method("gkd"), ExemplarMemory(Quota(2)), learner(method("gkd")).settings
    each = Learner(*parts)
    each.learn(SCENARIO[0])
    each.save(tmp_path)
    for one in (each, Learner.load(tmp_path, *parts)):
        Waiting.begun.clear()
        Waiting.ended.clear()
        three, two = (
            threading.Thread(target=one.logits, args=[images.take(torch.arange(count))])
            for count in (3, 2)
        )
        three.start()
        two.start()
        three.join()
        Waiting.ended.set()
        two.join()
    assert Waiting.trained == [False, False]


@pytest.mark.parametrize(
    "forged",
    [
        {"parts": "x"},
        {"parts": {"memory": {"quota": 3}}},
        {"parts": {"settings": {"augment": {"colour": 3}}}},
        {"parts": {"backbone": "resnet8", "method": "gkd", "used": {"colour": 3}}},
    ],
    ids=str,
)
def test_a_saved_learner_that_someone_changed_is_refused(
    forged: dict[str, Any], tmp_path: Path
) -> None:
    each = learner(method("gkd"))
    state = each.state()
    save_state(tmp_path / "learner", State({**state.facts, **forged}, state.tensors))
    given: dict[str, Any] = {} if "memory" in forged["parts"] else {"memory": 2}
    with pytest.raises(DamagedFile, match="isn't what was saved"):
        Learner.load(tmp_path, TinyBackbone(), method("gkd"), settings=each.settings, **given)


def test_a_state_loads_only_into_a_new_learner_of_the_same_method() -> None:
    state = learned(method("gkd"), 1).state()
    with pytest.raises(ValueError, match="This was learned by gkd, not by rdkd"):
        learner(method("rdkd")).load_state(state)
    each = learned(method("gkd"), 1)
    with pytest.raises(ValueError, match="has learned something; load into a new one"):
        each.load_state(state)


@pytest.mark.parametrize("name", ["finetune", "rdkd-adaptive"])
@pytest.mark.parametrize("streams", ["split", "merged"])
def test_without_a_memory_only_new_images_are_trained_on(name: str, streams: str) -> None:
    each, callback = learner(method(name, streams=streams), ExemplarMemory(Quota(0))), Losses()
    for task in SCENARIO:
        took = each.learn(task, callback=callback)
        assert took.images == 2 * len(task.train)
    kd = set() if name == "finetune" else {"kd"}
    plain = {"new" if streams == "split" else "merged"}
    assert callback.slots == {0: plain, 1: plain | kd, 2: plain | kd}
    assert len(each.memory) == 0
    assert each.logits(SCENARIO.dataset.test.images).shape == (24, 8)
    assert evaluate(each, SCENARIO[0].test).nearest_mean is None


def test_recomputed_vectors_need_exemplars() -> None:
    how = method("gkd-adaptive", vectors="recomputed")
    each = learned(how, 1, ExemplarMemory(Quota(0)))
    with pytest.raises(ValueError, match="computed from exemplars, but there are none"):
        each.learn(SCENARIO[1])
    assert each.classes == SCENARIO[0].classes


def test_joint_keeps_all_images_in_a_memory_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory = ExemplarMemory(Quota(2))
    each = learner(method("joint"), memory)
    images = 0
    for task in SCENARIO:
        images += len(task.train)
        assert each.learn(task).images == 2 * images
        assert len(each.memory) == images
    assert memory.classes == 0
    assert caplog.text == ""  # as it should be, so there is nothing to warn of
    kept = each.memory.exemplars()
    assert torch.bincount(kept.labels).tolist() == [6] * 8
    pixels = cast(PixelImages, kept.images).pixels
    assert len({(int(p[0, 0, 0]), int(p[1, 0, 0])) for p in pixels}) == 48


def test_images_are_counted_over_both_streams() -> None:
    each = learner(method("gkd"))
    images = [each.learn(task).images for task in SCENARIO]
    # Three batches of four new images, and each with one of four exemplars.
    assert images == [2 * 24, 2 * (12 + 12), 2 * (12 + 12)]


def test_merged_streams_mix_new_images_with_old_exemplars() -> None:
    each, callback = learner(method("gkd", streams="merged")), Losses()
    images = [each.learn(task, callback=callback).images for task in SCENARIO]
    assert images == [2 * 24, 2 * (12 + 8), 2 * (12 + 12)]
    assert callback.slots == {0: {"merged"}, 1: {"merged", "kd"}, 2: {"merged", "kd"}}


def test_rare_classes_are_oversampled_but_kept_once() -> None:
    task, each = SCENARIO[0], learner(method("gkd"))
    each.settings = dataclasses.replace(each.settings, oversample_rare=True)
    rare = torch.nonzero(task.train.labels == 2).flatten()[1:]
    few = task.train.take(torch.tensor([i for i in range(24) if i not in rare.tolist()]))
    assert each.learn(Task(0, task.classes, 0, few, task.test)).images == 2 * (18 + 2)
    assert torch.bincount(each.memory.exemplars().labels).tolist() == [2, 2, 1, 2]


HEADS = [("cosine", CosineClassifier), ("linear", LinearClassifier)]


@pytest.mark.parametrize(("head", "kind"), HEADS)
def test_logits_are_those_of_the_methods_head(head: str, kind: type[nn.Module]) -> None:
    each = learner(method("rdkd", head=head))
    for task in SCENARIO:
        each.learn(task)
    assert type(each.network.classifier) is kind
    images = SCENARIO.dataset.test.images
    seen = each.infer(images)
    blocks = list(each.network.classifier.blocks)
    rows = seen.features.double().numpy()
    weights = np.concatenate([block.detach().double().numpy() for block in blocks])
    if isinstance(each.network.classifier, LinearClassifier):
        biases = [bias.detach().double().numpy() for bias in each.network.classifier.biases]
        wanted = rows @ weights.T + np.concatenate(biases)
    else:
        lengths = np.sqrt((rows**2).sum(1))[:, None] * np.sqrt((weights**2).sum(1))
        scale = cast(CosineClassifier, each.network.classifier).scale.item()
        wanted = scale * (rows @ weights.T) / lengths
    np.testing.assert_allclose(seen.logits.numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("selection", ["herding", "greedy"])
def test_herding_uses_the_features_of_the_trained_network(selection: Selection) -> None:
    each = learner(method("rdkd"), ExemplarMemory(Quota(3), selection))
    choose = reference.herding if selection == "herding" else reference.greedy
    differs = False
    for task in SCENARIO:
        untrained = each.infer(task.train.images).features if each.classes else None
        each.learn(task)
        features = each.infer(task.train.images).features
        kept = each.memory.exemplars()
        for label in range(task.first, task.first + len(task.classes)):
            own = torch.nonzero(task.train.labels == label).flatten()
            chosen = choose(features[own].double().numpy(), 3)
            wanted = task.train.take(own[chosen]).images.state()["pixels"]
            given = kept.take(torch.nonzero(kept.labels == label).flatten()).images
            assert torch.equal(given.state()["pixels"], wanted)
            if untrained is not None:
                differs |= choose(untrained[own].double().numpy(), 3) != chosen
    assert differs


def class_vectors(each: Learner, images: Split, first: int, classes: int) -> reference.Array:
    features = each.infer(images.images).features.double().numpy()
    labels = images.labels.numpy() - first
    return np.stack([features[labels == label].mean(axis=0) for label in range(classes)])


@pytest.mark.parametrize("vectors", ["stored", "recomputed"])
def test_new_vectors_use_the_old_network_and_stored_ones_the_new(vectors: str) -> None:
    each = learner(method("rdkd-adaptive", vectors=vectors))
    old: list[reference.Array] = []
    for task in SCENARIO:
        new = class_vectors(each, task.train, task.first, len(task.classes)) if old else None
        if old and vectors == "recomputed":
            every = class_vectors(each, each.memory.exemplars(), 0, task.first)
            old = np.split(every, np.cumsum([len(v) for v in old])[:-1].tolist())
        took = each.learn(task)
        if new is not None:
            s = np.sqrt(((np.concatenate(old).mean(axis=0) - new.mean(axis=0)) ** 2).sum())
            assert took.notes == {"kd.s": pytest.approx(s, rel=1e-5)}
        old.append(class_vectors(each, task.train, task.first, len(task.classes)))
        held = each.terms["kd"].state_dict()
        for number, wanted in enumerate(old):
            np.testing.assert_allclose(held[f"tasks.{number}"].numpy(), wanted, rtol=1e-5)


def test_lambda_is_recorded() -> None:
    each = learner(method("tkd"))
    notes = [each.learn(task).notes for task in SCENARIO]
    assert notes == [{}, {"kd.lambda": 5 * 3**0.66}, {"kd.lambda": 5 * 4**0.66}]


def test_torchs_global_generator_is_neither_used_nor_changed() -> None:
    states = []
    for seed in (5, 6):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        states.append(learned(method("rdkd"), 2).state())
        assert torch.equal(torch.get_rng_state(), before)
    assert same_state(*states)


def test_a_fixed_total_leaves_fewer_exemplars_per_class(caplog: pytest.LogCaptureFixture) -> None:
    memory = ExemplarMemory(Quota(per_class=None, total=16))
    each = learner(method("gkd"), memory)
    with caplog.at_level(logging.WARNING, "densekd"):
        counts = []
        for task in SCENARIO:
            each.learn(task)
            counts.append(torch.bincount(memory.exemplars().labels).tolist())
    assert counts == [[4] * 4, [2] * 6, [2] * 8]
    assert caplog.text == ""


def test_a_task_can_be_made_without_a_scenario() -> None:
    first = SCENARIO[0]
    task = Task(0, ("red", "green", "blue", "black"), 0, first.train, first.test)
    each = learner(method("rdkd"))
    each.learn(task)
    assert set(each.predict(first.train.images)) <= {"red", "green", "blue", "black"}


def test_a_class_without_images_is_refused() -> None:
    task, each = SCENARIO[0], learner(method("finetune"))
    without = task.train.take(torch.nonzero(task.train.labels != 2).flatten())
    with pytest.raises(ValueError, match="has no image to learn from"):
        each.learn(Task(0, task.classes, 0, without, task.test))
    assert each.classes == ()
    assert len(each.memory) == 0


def test_checkpoints_of_another_task_are_refused(tmp_path: Path) -> None:
    each, checkpoints = learner(method("finetune")), Checkpoints(tmp_path)
    each.learn(SCENARIO[0], checkpoints=checkpoints)
    with pytest.raises(ValueError, match="of task 1, not of task 2"):
        each.learn(SCENARIO[1], checkpoints=checkpoints)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 6)),  # takes 8 x 8 pixels only
        nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten()),  # has more features for larger images
    ],
)
def test_the_width_of_a_module_is_found_at_the_size_of_the_images(
    module: nn.Module, tmp_path: Path
) -> None:
    method = make_method("rdkd", DenseOptions(), SCHEDULES)
    learner = Learner(module, method, 2, tiny_settings())
    for task in STEPS_OF_TWO[:2]:
        learner.learn(task)
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, module, method, settings=tiny_settings())
    images = STEPS_OF_TWO[0].test.images
    assert torch.equal(loaded.logits(images), learner.logits(images))
    loaded.learn(STEPS_OF_TWO[2])


def test_a_module_that_cannot_take_the_images_is_refused_at_the_first_task() -> None:
    learner = Learner(nn.Linear(5, 2), make_method("rdkd", DenseOptions(), SCHEDULES))
    with pytest.raises(ValueError, match="can't take images of 8 x 8 pixels"):
        learner.learn(STEPS_OF_TWO[0])


def test_a_network_without_maps_is_refused_before_a_term_needs_them() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for name in ("podnet", "afc"):
        learner = Learner(module, name, 2, tiny_settings(), epochs=1)
        with pytest.raises(ValueError, match=f"{name}: the term .* maps, but the network has none"):
            learner.learn(STEPS_OF_TWO[0])


def test_a_loss_over_new_classes_alone_is_refused_with_exemplars_in_its_batches() -> None:
    phases = (Phase("train", BASE),)
    terms = {"new": CrossEntropy(["merged"], "new")}
    how = Method("lwf", "linear", terms, phases, phases, "merged")
    with pytest.raises(ValueError, match=r"lwf: .* old classes, which 'new' can't take"):
        tiny_learner(how)
    without = tiny_learner(how, per_class=0)
    for task in STEPS_OF_TWO[:2]:
        without.learn(task)


def test_labels_of_other_classes_are_refused() -> None:
    task = SCENARIO[0]
    for label in (-1, 4):
        labels = task.train.labels.clone()
        labels[3] = label
        wrong = dataclasses.replace(task, train=Split(task.train.images, labels))
        with pytest.raises(ValueError, match=rf"has the label {label}, but its 4 .* 0 to 3; corr"):
            learner(method("gkd")).learn(wrong)


def test_a_memory_of_another_learner_is_refused() -> None:
    first = learner(method("gkd"))
    first.learn(SCENARIO[0])
    second = Learner(first.network.backbone, method("gkd"), first.memory, first.settings)
    with pytest.raises(ValueError, match=r"of 4 classes, but the learner learned 0; give each"):
        second.learn(SCENARIO[0])


def test_a_folder_in_the_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    each = learner(method("gkd"))
    each.save("~/kept")
    assert (tmp_path / "kept" / "learner.json").is_file()
    parts = each.network.backbone, method("gkd"), each.memory, each.settings
    assert Learner.load("~/kept", *parts).sizes == ()
