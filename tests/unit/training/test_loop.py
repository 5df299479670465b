"""What training sees, computes and survives, through `Learner.learn`, which runs the loop."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, kl_div, log_softmax
from torch.optim import SGD

from densekd.data.augment import Augment
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario
from densekd.losses.distill import DenseDistillation
from densekd.methods.method import Method, Phase
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.terms import (
    CrossEntropy,
    Distil,
    Over,
    RatioWeight,
    Step,
    Stream,
    TaskContext,
    Term,
)
from densekd.nn.classifier import CosineClassifier
from densekd.nn.network import Features, Network
from densekd.training import loop
from densekd.training.callbacks import Callback, Stopped, TrainingProgress
from densekd.training.checkpoint import Checkpoints, State
from densekd.training.engine import Engine
from densekd.training.learner import Learned, Learner, Settings
from densekd.training.loop import Diverged

from support.datasets import dataset
from support.tiny_learners import same_state

T = TypeVar("T")

# Four classes, then twice two, in 3 batches an epoch; the exemplars come round within it.
SCENARIO = Scenario.of(dataset(8, 6), base=4, steps=2)
ENGINE = Engine("cpu", precision="32")
BASE = Schedule(2, 0.05, batch_size=8)
INCREMENT = Schedule(2, 0.02, batch_size=4, momentum=0.8, weight_decay=0.05)


class Log(list[T]):
    """A list that copies share, since a learner copies its backbone and terms."""

    def __deepcopy__(self, memo: object) -> "Log[T]":
        return self


class Call(NamedTuple):
    images: Tensor
    training: bool
    gradient: bool
    inference: bool

    @property
    def by_teacher(self) -> bool:
        """Neither the student, which trains, nor a look at features, which is inference."""
        return not self.training and not self.inference


def conv(inside: int, outside: int) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, 3, stride=2, padding=1, bias=False)


class Recording(nn.Module):
    """A small backbone that records every batch it gets and in which mode."""

    def __init__(self, calls: Log[Call]) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU())
            self.second = nn.Sequential(conv(8, 12), nn.BatchNorm2d(12))
        self.width = 12
        self.calls = calls

    def forward(self, images: Tensor) -> Features:
        how = self.training, torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self.calls.append(Call(images.detach().clone(), *how))
        return Features(self.second(self.first(images)).mean((2, 3)), ())


class Noting(CrossEntropy):
    """Cross-entropy that records the labels of each batch of a step."""

    @property
    def state_kind(self) -> str:  # states are compared with those of the plain term
        return CrossEntropy.__qualname__

    def __init__(self, labels: Log[dict[Stream, Tensor]], stream: Stream, over: Over) -> None:
        super().__init__([stream], over)
        self.labels = labels

    def __call__(self, step: Step) -> Tensor:
        self.labels.append({stream: view.labels.clone() for stream, view in step.views.items()})
        return super().__call__(step)


class Recorded:
    """A learner with a record of all batches that its networks get."""

    def __init__(self, method: Method, seed: int = 1) -> None:
        self.calls, self.labels = Log[Call](), Log[dict[Stream, Tensor]]()
        if method.streams == "split":
            method = method.with_term("new", Noting(self.labels, "new", "new"))
        self.learner = learner(method, seed, Recording(self.calls))

    def batches(self) -> list[tuple[Stream, Tensor, Tensor]]:
        """The stream, images and labels of each batch that was trained on."""
        streams = [(stream, x) for step in self.labels for stream, x in step.items()]
        images = [call.images for call in self.calls if call.training]
        pairs = zip(streams, images, strict=True)
        return [(stream, batch, labels) for (stream, labels), batch in pairs]

    def taught(self) -> list[Call]:
        # A learner tries a backbone on one black image before the first task.
        return [call for call in self.calls if call.by_teacher and call.images.any()]


def method(name: str, **options: Any) -> Method:
    return make_method(name, DenseOptions(**options), Schedules(BASE, INCREMENT))


def learner(how: Method, seed: int = 1, backbone: Recording | None = None) -> Learner:
    augment = Augment((0.014, 0.01, 0.0), (0.01, 0.01, 1.0), padding=1)
    backbone = backbone or Recording(Log[Call]())
    memory = ExemplarMemory(Quota(per_class=1))
    return Learner(backbone, how, memory, Settings(augment, seed, ENGINE))


def same_batches(first: Recorded, second: Recorded) -> bool:
    pairs = zip(first.batches(), second.batches(), strict=True)
    return all(
        a[0] == b[0] and torch.equal(a[1], b[1]) and torch.equal(a[2], b[2]) for a, b in pairs
    )


def through_all(how: Method, seed: int = 1, moved: int = 0) -> tuple[Recorded, list[State]]:
    """Learn all tasks; returns the state after each. ``moved`` seeds torch's global generator."""
    recorded, states = Recorded(how, seed), []
    torch.manual_seed(moved)
    for task in SCENARIO:
        recorded.learner.learn(task)
        states.append(recorded.learner.state())
    return recorded, states


@pytest.fixture(scope="module")
def finetuned() -> tuple[Recorded, list[State]]:
    return through_all(method("finetune"))


KINDS = ["gkd", "tkd", "fdkd", "rdkd"]


@pytest.mark.parametrize("name", [*KINDS, *(f"{kind}-adaptive" for kind in KINDS)])
def test_all_methods_see_the_same_batches_and_base(
    name: str, finetuned: tuple[Recorded, list[State]]
) -> None:
    (plain, before), (recorded, after) = finetuned, through_all(method(name), moved=99)
    assert len(recorded.batches()) == 2 * (3 + 3 * 2 + 3 * 2)
    assert same_batches(recorded, plain)
    bases = [
        {k: x for k, x in states[0].tensors.items() if not k.startswith("term.")}
        for states in (before, after)
    ]
    assert same_state(State({}, bases[0]), State({}, bases[1]))
    assert any(k.startswith("network.") for k in bases[0])
    # Not because all methods were one and the same: the weights differ from the second task on.
    for old, new in zip(before[1:], after[1:], strict=True):
        assert torch.equal(old.tensors["memory.pixels"], new.tensors["memory.pixels"])
        weights = [x for x in old.tensors if x.startswith("network.backbone")]
        weights = [x for x in weights if x.endswith(".weight")]
        assert len(weights) == 4
        assert not any(torch.equal(old.tensors[x], new.tensors[x]) for x in weights)


def test_batches_hold_the_augmented_images_of_each_stream(
    finetuned: tuple[Recorded, list[State]],
) -> None:
    recorded, batches = finetuned[0], finetuned[0].batches()
    order = torch.tensor(SCENARIO.order)
    streams = ["new"] * 6 + ["new", "exemplars"] * 12
    assert [stream for stream, _, _ in batches] == streams
    cropped = 0
    for _, images, labels in batches:
        # The first channel is the class, but for the black border of the crop.
        values = ((images[:, 0] * 0.01 + 0.014) * 255).round()
        assert torch.equal(values.flatten(1).amax(1).long(), order[labels])
        cropped += int((values.flatten(1).amin(1) < values.flatten(1).amax(1)).sum())
    assert cropped > sum(len(labels) for _, _, labels in batches) / 2
    # In the end those exemplars are kept that the task was rehearsed with; channel 1 numbers them.
    last = [images for stream, images, _ in batches[-6:] if stream == "exemplars"]
    seen = (torch.cat(last)[:, :2].flatten(2).amax(2) * 0.01 + torch.tensor([0.014, 0.01])) * 255
    kept = finetuned[1][-1].tensors["memory.pixels"][:, :2, 0, 0]
    assert set(map(tuple, seen.round().int().tolist())) == set(map(tuple, kept.int().tolist()))
    # Every epoch has all new images, and of each class as many exemplars as of any other.
    for start in (6, 12):
        rows = batches[start : start + 6]
        new, old = (torch.cat([row[2] for row in rows if row[0] == s]) for s in streams[6:8])
        assert torch.bincount(new)[4:].tolist() == [6, 6]
        assert torch.bincount(old[:6]).tolist() == [1] * 6
    assert not same_batches(recorded, through_all(method("finetune"), seed=2)[0])


class StopAfter(Callback):
    """Stops after so many batches; counts its calls and keeps the losses of each epoch."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.asked = 0
        self.losses: list[tuple[int, dict[str, float]]] = []

    def stop(self) -> bool:
        self.asked += 1
        return self.asked > self.batches

    def report(self, report: TrainingProgress) -> None:
        if report.ends_epoch:
            self.losses.append((report.epoch, dict(report.losses)))


class CrashAfter(StopAfter):
    """Raises as a killed process would end, without saving."""

    def stop(self) -> bool:
        if super().stop():
            raise KeyboardInterrupt
        return False


def two_phases() -> Method:
    """A method with two phases in each increment."""
    more = Phase("more", Schedule(1, 0.1, "constant", batch_size=6))
    plain = method("rdkd")
    return dataclasses.replace(plain, increment=(*plain.increment, more))


INTERRUPTIONS = [
    (StopAfter, method("finetune"), 1),
    (StopAfter, method("rdkd-adaptive"), 0),
    (StopAfter, method("rdkd-adaptive"), 2),
    (StopAfter, method("rdkd-adaptive", streams="merged", vectors="recomputed"), 2),
    (StopAfter, two_phases(), 1),
    (CrashAfter, method("rdkd-adaptive"), 2),
    (CrashAfter, two_phases(), 1),
]


def before_task(how: Method, number: int, folder: Path) -> None:
    """Save a learner that has learned the tasks before ``number``."""
    each = learner(how)
    for task in SCENARIO[:number]:
        each.learn(task)
    each.save(folder)


def loaded(how: Method, folder: Path) -> Learner:
    plain = learner(how)
    parts = plain.network.backbone, how, plain.memory, plain.settings
    return Learner.load(folder, *parts)


@pytest.mark.parametrize(("interruption", "how", "number"), INTERRUPTIONS)
def test_a_resume_after_any_batch_gives_the_same_weights(
    interruption: type[StopAfter], how: Method, number: int, tmp_path: Path
) -> None:
    before_task(how, number, tmp_path)
    task, whole, callback = SCENARIO[number], loaded(how, tmp_path), StopAfter(1000)
    took = whole.learn(task, callback=callback)
    phases = how.increment if number else how.base
    batches_an_epoch = {4: 3, 6: 2, 8: 3}  # by their size
    if how.streams == "merged":
        batches_an_epoch[4] = 5  # 12 new images and 6 exemplars
    assert callback.asked == sum(  # once after each batch
        phase.schedule.epochs * batches_an_epoch[phase.schedule.batch_size] for phase in phases
    )
    for batches in range(callback.asked):
        checkpoints = Checkpoints(tmp_path / f"{batches}")
        early = interruption(batches)
        with pytest.raises((Stopped, KeyboardInterrupt)):
            loaded(how, tmp_path).learn(task, callback=early, checkpoints=checkpoints)
        late, resumed = StopAfter(1000), loaded(how, tmp_path)
        again = resumed.learn(task, callback=late, checkpoints=checkpoints)
        assert same_state(resumed.state(), whole.state())
        assert (again.images, again.notes) == (took.images, took.notes)
        if interruption is StopAfter:
            assert early.asked + late.asked == callback.asked
        # Also what is reported of an epoch is that of the whole epoch.
        assert late.losses == callback.losses[len(callback.losses) - len(late.losses) :]
        assert len(late.losses) + len(early.losses) >= len(callback.losses)


@pytest.mark.parametrize("name", ["rdkd-adaptive", "finetune"])
def test_resuming_after_every_single_batch_gives_the_same_weights(
    name: str, tmp_path: Path
) -> None:
    how = method(name)
    sessions = 0
    learner(how).save(tmp_path)
    for task in SCENARIO:
        checkpoints = Checkpoints(tmp_path / f"{task.number}")
        done: Learned | None = None
        while done is None:
            each = loaded(how, tmp_path)
            try:
                done = each.learn(task, callback=StopAfter(0), checkpoints=checkpoints)
            except Stopped:
                sessions += 1
        each.save(tmp_path)
    assert sessions == 2 * (3 + 3 + 3)
    assert same_state(loaded(how, tmp_path).state(), through_all(how)[0].learner.state())


def test_a_long_epoch_is_saved_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how, whole, resumed = method("rdkd"), learner(method("rdkd")), Recorded(method("rdkd"))
    whole.learn(SCENARIO[0])
    monkeypatch.setattr(loop, "_SECONDS_PER_SAVE", -1.0)
    with pytest.raises(KeyboardInterrupt):
        learner(how).learn(SCENARIO[0], callback=CrashAfter(2), checkpoints=Checkpoints(tmp_path))
    state = Checkpoints(tmp_path).newest()
    assert state is not None
    assert (state.facts["epoch"], state.facts["batch"]) == (0, 2)
    resumed.learner.learn(SCENARIO[0], checkpoints=Checkpoints(tmp_path))
    assert len(resumed.batches()) == 4
    assert same_state(resumed.learner.state(), whole.state())


def test_a_finished_task_is_loaded_from_its_checkpoint(tmp_path: Path) -> None:
    first, second = Recorded(method("gkd")), Recorded(method("rdkd"))
    took = first.learner.learn(SCENARIO[0], checkpoints=Checkpoints(tmp_path))
    again = second.learner.learn(SCENARIO[0], checkpoints=Checkpoints(tmp_path))
    assert (again.images, again.seconds) == (took.images, took.seconds)
    assert took.images == 48
    assert not any(call.training for call in second.calls)
    weights = first.learner.network.state_dict(), second.learner.network.state_dict()
    assert same_state(State({}, weights[0]), State({}, weights[1]))


FORGED: dict[str, tuple[dict[str, Any], dict[str, Tensor]]] = {
    "no position": ({"epoch": "text"}, {}),
    "no task": ({"done": None}, {}),
    "other sums": ({}, {"sums.new": torch.zeros(3)}),
    "other weights": ({}, {"network.classifier.blocks.0": torch.zeros(2, 2)}),
    "other groups": ({}, {"groups": torch.zeros(2)}),
}


@pytest.mark.parametrize("way", FORGED)
def test_a_checkpoint_with_the_right_checksum_and_wrong_content(tmp_path: Path, way: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    learner(two_phases()).learn(SCENARIO[0], checkpoints=checkpoints)
    number = checkpoints.numbers()[-2]  # within the last phase
    (facts, tensors), state = FORGED[way], checkpoints.load(number)
    checkpoints.save(number, State({**state.facts, **facts}, {**state.tensors, **tensors}))
    with pytest.raises(ValueError, match=str(tmp_path)):
        learner(two_phases()).learn(SCENARIO[0], checkpoints=checkpoints)


def test_the_teacher_runs_once_per_batch_without_gradients() -> None:
    """Even if several terms need it."""
    how = method("rdkd")
    how = how.with_term("kd2", Distil(["exemplars"], DenseDistillation("each"), RatioWeight(1.0)))
    recorded, _ = through_all(how)
    increments = recorded.batches()[6:]
    taught = recorded.taught()
    assert len(taught) == len(increments) == 24
    assert not any(call.gradient for call in taught)
    # One after the other they are the student's, for each step those of both streams.
    for call, (_, images, _) in zip(taught, increments, strict=True):
        assert torch.equal(call.images, images)


def test_the_teacher_does_not_run_on_streams_that_need_none(
    finetuned: tuple[Recorded, list[State]],
) -> None:
    assert finetuned[0].taught() == []
    recorded, _ = through_all(method("gkd", distil_on="new"))
    new = [images for stream, images, _ in recorded.batches()[6:] if stream == "new"]
    taught = recorded.taught()
    assert len(taught) == len(new) == 12
    assert all(torch.equal(call.images, x) for call, x in zip(taught, new, strict=True))


def test_the_teacher_is_the_network_before_the_task() -> None:
    """A term compares each step's teacher with the network before the task."""
    known = Log[tuple[Tensor, Tensor]]()

    class Comparing(Distil):
        def __call__(self, step: Step) -> Tensor:
            for view in self.views(step):
                assert view.teacher is not None
                assert not view.teacher.logits.requires_grad
                known.append((view.teacher.logits, view.student.logits.detach()))
            return super().__call__(step)

    term = Comparing(["new", "exemplars"], DenseDistillation("whole"), RatioWeight(5.0))
    recorded = Recorded(method("gkd").with_term("kd", term))
    recorded.learner.learn(SCENARIO[0])
    before = recorded.learner.network.eval()
    recorded.learner.learn(SCENARIO[1])
    batches = [images for _, images, _ in recorded.batches()[6:]]
    assert len(known) == 12
    for (teacher, student), images in zip(known, batches, strict=True):
        with torch.no_grad():
            assert torch.equal(before(images).logits, teacher)
        assert teacher.shape[1] == 4
        assert student.shape[1] == 6


def drawing(seed: int) -> list[tuple[int, ...]]:
    """The state of the group generator before each step of two tasks."""
    states = Log[tuple[int, ...]]()

    class Drawing(Distil):
        def __call__(self, step: Step) -> Tensor:
            states.append(tuple(step.generator.get_state().tolist()))
            return super().__call__(step)

    term = Drawing(["new", "exemplars"], DenseDistillation("random"), RatioWeight(5.0))
    through_all(method("rdkd").with_term("kd", term), seed)
    return list(states)


def test_groups_depend_on_seed_task_and_epoch() -> None:
    first = drawing(1)
    assert len(set(first)) == len(first) == 12
    assert drawing(1) == first
    assert not set(drawing(2)) & set(first)


def replayed(state: State, teacher: Network, recorded: Recorded) -> dict[str, Tensor]:
    """Train GKD's second task again from its second batch, in a few plain lines."""
    student = Network(Recording(Log[Call]()), CosineClassifier(12))
    for classes in (4, 2):
        student.grow(classes)
    tensors = {k: x.clone() for k, x in state.tensors.items()}
    student.load_state_dict({k[8:]: x for k, x in tensors.items() if k.startswith("network.")})
    sgd = SGD(student.parameters(), 0.02, momentum=0.8, weight_decay=0.05)
    for name, parameter in student.named_parameters():
        sgd.state[parameter]["momentum_buffer"] = tensors[f"momentum.{name}"]
    batches = [(images, labels) for _, images, labels in recorded.batches()]
    steps = list(zip(batches[::2], batches[1::2], strict=True))
    assert len(steps) == 6
    for number, ((new, new_labels), (old, old_labels)) in list(enumerate(steps))[1:]:
        sgd.param_groups[0]["lr"] = 0.02 if number < 3 else (0.02 + 1e-4) / 2
        z_new, z_old = student(new).logits, student(old).logits
        loss = cross_entropy(z_new[:, 4:], new_labels - 4) + cross_entropy(z_old, old_labels)
        for z, images in ((z_new, new), (z_old, old)):
            with torch.no_grad():
                target = log_softmax(teacher(images).logits / 2, 1)
            kl = kl_div(log_softmax(z[:, :4] / 2, 1), target, reduction="sum", log_target=True)
            loss = loss + 5 * (6 / 2) ** 0.66 * 2**2 * kl / len(images) / 4
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return student.state_dict()


def test_training_is_plain_sgd_on_the_sum_of_the_terms(tmp_path: Path) -> None:
    recorded, checkpoints = Recorded(method("gkd")), Checkpoints(tmp_path)
    recorded.learner.learn(SCENARIO[0])
    teacher = recorded.learner.network.eval()
    recorded.calls.clear()
    recorded.labels.clear()
    with pytest.raises(Stopped):
        recorded.learner.learn(SCENARIO[1], callback=StopAfter(0), checkpoints=checkpoints)
    state = checkpoints.newest()
    assert state is not None
    recorded.learner.learn(SCENARIO[1], checkpoints=checkpoints)
    given, wanted = recorded.learner.network.state_dict(), replayed(state, teacher, recorded)
    assert list(given) == list(wanted)
    for name, tensor in wanted.items():
        torch.testing.assert_close(given[name].contiguous(), tensor, rtol=1e-5, atol=1e-6)
        start = state.tensors[f"network.{name}"]
        assert (tensor - start).abs().max() > 1e-3


class From(Term):
    """Makes the loss or its gradient non-finite from step n on, counted over all copies."""

    def __init__(self, step: int, value: float) -> None:
        super().__init__(["new"])
        self.step, self.value, self.steps = step, value, Log[int]()

    def __call__(self, step: Step) -> Tensor:
        self.steps.append(1)
        logits = step.views["new"].student.logits
        if len(self.steps) <= self.step:
            return logits.sum() * 0
        # Either the loss, or only its gradient: that of a root at 0, times 0.
        return logits.sum() * self.value if self.value else (logits.sum() * 0).sqrt()


@pytest.mark.parametrize("head", ["cosine", "linear"])
def test_a_learning_rate_that_is_too_high_raises_diverged(head: str, tmp_path: Path) -> None:
    how = make_method("gkd", DenseOptions(head=head), Schedules(Schedule(2, 1e20, batch_size=4)))  # type: ignore[arg-type]
    with pytest.raises(Diverged, match=r"task 1 \(.*\) stopped being finite in epoch 1; try a s"):
        learner(how).learn(SCENARIO[0], checkpoints=Checkpoints(tmp_path / "x"))
    assert not list(tmp_path.glob("x/*"))


@pytest.mark.parametrize("value", [torch.inf, torch.nan, 0.0])
@pytest.mark.parametrize("step", [3, 5])
def test_a_diverged_task_resumes_from_the_last_finite_epoch(
    value: float, step: int, tmp_path: Path
) -> None:
    plain, checkpoints = method("rdkd"), Checkpoints(tmp_path)
    spoiled = plain.with_term("spoil", From(step, value))
    with pytest.raises(Diverged, match="in epoch 2"):
        learner(spoiled).learn(SCENARIO[0], checkpoints=checkpoints)
    state = checkpoints.newest()
    assert state is not None
    assert (state.facts["epoch"], state.facts["done"]) == (1, 3)
    assert all(x.isfinite().all() for x in state.tensors.values())
    resumed, whole = learner(plain), learner(plain)
    resumed.learn(SCENARIO[0], checkpoints=checkpoints)
    whole.learn(SCENARIO[0])
    assert same_state(resumed.state(), whole.state())


def test_a_stop_does_not_save_diverged_weights(tmp_path: Path) -> None:
    spoiled = method("rdkd").with_term("spoil", From(1, 0.0))
    with pytest.raises(Diverged):
        learner(spoiled).learn(
            SCENARIO[0], callback=StopAfter(1), checkpoints=Checkpoints(tmp_path / "x")
        )
    assert not list(tmp_path.glob("x/*"))


class Listening(Callback):
    def __init__(self) -> None:
        self.reports: list[TrainingProgress] = []

    def report(self, report: TrainingProgress) -> None:
        self.reports.append(report)


def test_each_epoch_ends_with_a_report() -> None:
    callback, each = Listening(), learner(method("rdkd"))
    for task in SCENARIO:
        each.learn(task, callback=callback)
    ends = [report for report in callback.reports if report.ends_epoch]
    assert [(r.task, r.epoch, r.batch) for r in ends] == [
        (task, epoch, 3) for task in range(3) for epoch in range(2)
    ]
    assert all((r.phase, r.epochs, r.batches) == ("train", 2, r.batch) for r in ends)
    for report in ends:
        assert report.lr == (INCREMENT if report.task else BASE).lr_at(report.epoch)
        assert set(report.losses) == ({"new", "exemplars", "kd"} if report.task else {"new"})
        assert report.images_per_second > 0


def test_a_report_has_the_mean_of_the_epoch_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(Term):
        """Costs the number of its step."""

        steps = 0

        def __call__(self, step: Step) -> Tensor:
            self.steps += 1
            return step.views["new"].student.logits.sum() * 0 + self.steps

    monkeypatch.setattr(loop, "_SECONDS_PER_REPORT", 0.0)
    callback = Listening()
    learner(method("gkd").with_term("count", Counting(["new"]))).learn(
        SCENARIO[0], callback=callback
    )
    assert [(r.epoch, r.batch) for r in callback.reports] == [
        (epoch, batch) for epoch in range(2) for batch in range(1, 4)
    ]
    means = [1, 1.5, 2, 4, 4.5, 5]
    assert [report.losses["count"] for report in callback.reports] == means


def test_a_loss_that_is_not_finite_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_SECONDS_PER_REPORT", 0.0)
    callback = Listening()
    spoiled = method("gkd").with_term("spoil", From(4, torch.inf))
    with pytest.raises(Diverged, match="in epoch 2"):
        learner(spoiled).learn(SCENARIO[0], callback=callback)
    assert [(report.epoch, report.batch) for report in callback.reports][-1] == (1, 1)


def test_rates_say_which_parameters_learn_and_how_fast() -> None:
    def step(rates: dict[str, float] | None) -> dict[str, Tensor]:
        """How far each parameter goes in one step."""
        schedule = Schedule(1, 0.05, batch_size=100, momentum=0.0, weight_decay=0.0)
        phases = (Phase("train", schedule, rates=rates),)
        terms: dict[str, Term] = {"merged": CrossEntropy(["merged"], "all")}
        how = Method("own", "cosine", terms, phases, phases, "merged")
        mine = learner(how)
        before = dict(mine.network.backbone.named_parameters())
        mine.learn(SCENARIO[0])
        after = dict(mine.network.backbone.named_parameters())
        return {name: (after[name] - before[name]).detach() for name in before}

    usual = step(None)
    chosen = step({"backbone.first.0.weight": 0.5, "backbone.second.1.bias": 2.0})
    assert all(moved.any() for moved in usual.values())
    assert {name for name, moved in chosen.items() if moved.any()} == {
        "first.0.weight",
        "second.1.bias",
    }
    for name, factor in {"first.0.weight": 0.5, "second.1.bias": 2.0}.items():
        assert torch.allclose(chosen[name], factor * usual[name], rtol=1e-3, atol=1e-7)
    with pytest.raises(ValueError, match=r"'train' has a rate for 'first'.*'backbone\.first"):
        step({"first": 1.0})


class Heard(StopAfter):
    """Notes where training was resumed."""

    heard: tuple[int, int] | None = None

    def resumed_within(self, task: int, epoch: int) -> None:
        self.heard = task, epoch


def test_a_resumed_task_says_so(tmp_path: Path) -> None:
    how, first, second, third = method("gkd"), Heard(4), Heard(10**6), Heard(10**6)
    with pytest.raises(Stopped):
        learner(how).learn(SCENARIO[0], callback=first, checkpoints=Checkpoints(tmp_path))
    learner(how).learn(SCENARIO[0], callback=second, checkpoints=Checkpoints(tmp_path))
    learner(how).learn(SCENARIO[0], callback=third, checkpoints=Checkpoints(tmp_path))
    assert (first.heard, second.heard, third.heard) == (None, (0, 1), None)


class Dropping(Recording):
    """A backbone that drops features while it is trained."""

    def forward(self, images: Tensor) -> Features:
        return Features(dropout(super().forward(images).pooled, 0.5, self.training), ())


@pytest.mark.parametrize("batches", [1, 2, 3])  # the last is at the end of an epoch
def test_dropout_resumes_bit_for_bit_and_depends_on_the_seed_alone(
    batches: int, tmp_path: Path
) -> None:
    def trained(drawn: int, callback: Callback, seed: int = 1) -> State:
        torch.manual_seed(drawn)
        each = learner(method("finetune"), seed, Dropping(Log[Call]()))
        before = torch.get_rng_state()
        checkpoints = Checkpoints(tmp_path / f"{seed}")
        try:
            each.learn(SCENARIO[0], callback=callback, checkpoints=checkpoints)
        finally:
            assert torch.equal(torch.get_rng_state(), before)
        return each.state()

    whole = learner(method("finetune"), 1, Dropping(Log[Call]()))
    whole.learn(SCENARIO[0])
    with pytest.raises(Stopped):
        trained(7, StopAfter(batches - 1))
    resumed = trained(8, Callback())
    assert same_state(resumed, whole.state())
    other = trained(8, Callback(), seed=2)
    name = "network.backbone.first.0.weight"
    assert not torch.equal(other.tensors[name], resumed.tensors[name])


def test_each_step_drops_other_features() -> None:
    kept = Log[Tensor]()

    class Noted(Dropping):
        def forward(self, images: Tensor) -> Features:
            features = super().forward(images)
            if self.training:
                kept.append(features.pooled.detach() == 0)
            return features

    learner(method("finetune"), 1, Noted(Log[Call]())).learn(SCENARIO[0])
    assert len(kept) == 6
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(kept, 2))


def test_what_terms_draw_between_tasks_depends_on_the_seed_alone() -> None:
    drawn = Log[float]()

    class Drawing(CrossEntropy):
        def begin(self, context: TaskContext) -> dict[str, float]:
            drawn.append(torch.rand(()).item())
            return super().begin(context)

        def end(self, context: TaskContext) -> None:
            drawn.append(torch.rand(()).item())

    how = method("gkd").with_term("new", Drawing(["new"], "new"))
    for moved in (0, 99):
        torch.manual_seed(moved)
        each = learner(how)
        for task in SCENARIO:
            each.learn(task)
    assert drawn[:6] == drawn[6:]
    assert len(set(drawn)) == 6


def test_a_trained_network_keeps_no_gradients() -> None:
    each = learner(two_phases())
    for task in SCENARIO[:2]:
        each.learn(task)
        assert all(x.grad is None and x.requires_grad for x in each.network.parameters())
