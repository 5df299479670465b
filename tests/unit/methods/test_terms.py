import itertools
from collections.abc import Sequence
from typing import Literal, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from densekd.data.batches import Blend
from densekd.data.dataset import PixelImages, Split
from densekd.data.scenario import Scenario, Task
from densekd.losses.distill import DenseDistillation, Groups
from densekd.methods.adaptive_weights import AdaptiveWeights
from densekd.methods.terms import (
    CrossEntropy,
    Distil,
    Over,
    RatioWeight,
    Step,
    Stream,
    TaskContext,
    Vectors,
    View,
)
from densekd.methods.ucir import OldRatioWeight
from densekd.nn.classifier import CosineClassifier
from densekd.nn.network import Network, Outputs
from densekd.nn.resnet import cifar_resnet
from densekd.pool import TaskPool

import reference
from support.datasets import dataset

OLD = (3, 2, 2)
NEW = 4
# These terms look at what a network gave, not at the network.
NETWORK = Network(cifar_resnet(8), CosineClassifier(64))


def outputs(images: int, classes: int, seed: int) -> Outputs:
    logits = torch.randn(images, classes, generator=torch.Generator().manual_seed(seed)) * 3
    return Outputs(logits, torch.zeros(images, 1), ())


def step(streams: Sequence[Stream], generator: torch.Generator, new: int = NEW) -> Step:
    """Random logits of a student and a teacher; exemplars are of all classes."""
    old, views = sum(OLD), dict[Stream, View]()
    for seed, stream in enumerate(streams):
        images = 6 + seed
        labels = torch.arange(images) % new + old
        if stream != "new":
            labels = torch.arange(images) * 5 % (old + new)
        student, teacher = outputs(images, old + new, seed), outputs(images, old, seed + 10)
        views[stream] = View(labels, student, teacher)
    return Step(views, OLD, new, generator, NETWORK)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def array(tensor: Tensor) -> reference.Array:
    return tensor.double().numpy()


@pytest.mark.parametrize("over", ["new", "all"])
def test_cross_entropy_is_that_of_the_reference(over: Over) -> None:
    given = step(["new"], seeded())
    view, first = given.views["new"], sum(OLD) if over == "new" else 0
    labels = (view.labels - first).tolist()
    wanted = reference.cross_entropy(array(view.student.logits)[:, first:], labels)
    assert CrossEntropy(["new"], over)(given).item() == pytest.approx(wanted, rel=1e-6)


def test_cross_entropy_is_averaged_over_a_batch_and_summed_over_streams() -> None:
    given = step(["new", "exemplars"], seeded())
    wanted = sum(
        reference.cross_entropy(array(view.student.logits), view.labels.tolist())
        for view in given.views.values()
    )
    both = CrossEntropy(["new", "exemplars"], "all")
    assert both(given).item() == pytest.approx(wanted, rel=1e-6)
    alone = CrossEntropy(["exemplars"], "all")(given)
    assert alone.item() == pytest.approx(
        reference.cross_entropy(
            array(given.views["exemplars"].student.logits),
            given.views["exemplars"].labels.tolist(),
        ),
        rel=1e-6,
    )


def test_cross_entropy_over_one_new_class_is_exactly_nothing() -> None:
    given = step(["new"], seeded(), new=1)
    assert CrossEntropy(["new"], "new")(given).item() == 0.0
    assert CrossEntropy(["new"], "all")(given).item() > 0.1


def test_in_the_base_task_new_and_all_are_the_same() -> None:
    view = View(torch.tensor([2, 0, 1]), outputs(3, 3, 0), None)
    base = Step({"new": view}, (), 3, seeded(), NETWORK)
    assert torch.equal(CrossEntropy(["new"], "new")(base), CrossEntropy(["new"], "all")(base))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_tasks_of_an_external_teacher_are_not_old_classes(smoothing: float) -> None:
    view = View(torch.tensor([2, 0, 1]), outputs(3, 3, 0), outputs(3, 3, 1))
    base = Step({"new": view}, (2, 1), 3, seeded(), NETWORK)
    wanted = cross_entropy(view.student.logits, view.labels, label_smoothing=smoothing)
    assert torch.equal(CrossEntropy(["new"], "new", smoothing)(base), wanted)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_of_blended_images_is_against_the_blended_labels(smoothing: float) -> None:
    labels, others = torch.tensor([2, 0, 1]), torch.tensor([1, 0, 2])
    view = View(labels, outputs(3, 3, 0), None, Blend(others, 0.3))
    base = Step({"new": view}, (), 3, seeded(), NETWORK)
    targets = 0.3 * one_hot(labels, 3) + 0.7 * one_hot(others, 3)
    wanted = cross_entropy(view.student.logits, targets, label_smoothing=smoothing)
    torch.testing.assert_close(CrossEntropy(["new"], "new", smoothing)(base), wanted)


def test_the_ratio_is_that_of_ccil() -> None:
    ratio = RatioWeight(5.0)
    # CIFAR-100 in 5 steps: 50 classes, then 10 at a time.
    weights = [ratio.of(old, 10) for old in range(50, 100, 10)]
    assert weights[0] == pytest.approx(16.3, abs=0.05)
    assert weights[-1] == pytest.approx(22.9, abs=0.05)
    assert weights == sorted(weights)
    assert ratio.of(50, 10) == 5 * 6**0.66  # of all classes seen, not of the old
    assert {RatioWeight(7.0, 0.0).of(old, new) for old in (1, 50, 99) for new in (1, 10)} == {7.0}


@pytest.mark.parametrize("given", [(-5.0,), (np.nan,), (np.inf,), (5.0, np.nan)])
def test_a_weight_that_nobody_means_is_refused(given: tuple[float, ...]) -> None:
    for kind in (RatioWeight, OldRatioWeight):
        with pytest.raises(ValueError, match="must be a number of at least 0"):
            kind(*given)


@pytest.mark.parametrize("groups", ["whole", "each", "every"])
def test_distillation_is_lambda_times_the_sum_over_streams(groups: Groups) -> None:
    given = step(["new", "exemplars"], seeded())
    value = Distil(["new", "exemplars"], DenseDistillation(groups), RatioWeight(5.0))(given)
    wanted = sum(
        reference.distillation(
            array(view.student.logits), array(cast(Outputs, view.teacher).logits), OLD, groups
        ).value
        for view in given.views.values()
    )
    assert value.item() == pytest.approx(5 * (11 / 4) ** 0.66 * wanted, rel=1e-5)
    alone = Distil(["new"], DenseDistillation(groups), RatioWeight(5.0))(given)
    assert 0 < alone.item() < value.item()


def drawn(given: Step, streams: Sequence[Stream]) -> dict[tuple[reference.Group, ...], float]:
    """What a step costs, for each way in which groups could be drawn for the streams."""
    costs = {
        stream: {
            group: reference.distillation(
                array(given.views[stream].student.logits),
                array(cast(Outputs, given.views[stream].teacher).logits),
                OLD,
                "random",
                drawn=[group],
            ).value
            for group in reference.pool(len(OLD))
        }
        for stream in streams
    }
    first, second = (costs[stream] for stream in streams)
    return {(a, b): first[a] + second[b] for a in first for b in second}


def test_both_streams_of_a_step_have_the_same_group_and_the_next_step_another() -> None:
    streams: list[Stream] = ["new", "exemplars"]
    generator, alone = seeded(), seeded()
    given = step(streams, generator)
    costs = drawn(given, streams)
    term = Distil(streams, DenseDistillation("random"), RatioWeight(1.0, 0.0))
    groups = []
    for _ in range(30):
        value = term(given).item()
        pair = min(costs, key=lambda pair: abs(costs[pair] - value))
        assert value == pytest.approx(costs[pair], rel=1e-5)
        assert pair[0] == pair[1]
        groups.append(pair[0])
        # One draw a step, however many streams there are.
        mask = TaskPool(OLD).sample(alone, 1)[0]
        assert pair[0] == tuple(torch.nonzero(mask).flatten().tolist())
    assert len(set(groups)) == 7
    assert sum(a != b for a, b in itertools.pairwise(groups)) > 15


def test_groups_drawn_for_each_image_are_drawn_anew_at_each_step() -> None:
    given = step(["new", "exemplars"], seeded())
    loss = DenseDistillation("random", per_image=True)
    term = Distil(["new", "exemplars"], loss, RatioWeight(1.0))
    assert len({term(given).item() for _ in range(10)}) == 10


def pixels(images: Split) -> Tensor:
    assert isinstance(images.images, PixelImages)
    return images.images.pixels


class Encoder:
    """Features that tell the class, the image and the encoder."""

    def __init__(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        self.weight = torch.randn(2, 3, generator=generator)

    def __call__(self, images: Split) -> Tensor:
        return (pixels(images)[:, :2, 0, 0].float() @ self.weight).relu() + 0.1

    def vectors(self, images: Split, classes: int) -> reference.Array:
        features, labels = array(self(images)), images.labels - images.labels.min()
        return np.stack([features[labels.numpy() == c].mean(axis=0) for c in range(classes)])


def tasks() -> list[Task]:
    return list(Scenario(dataset(9, 5), range(9), [3, 2, 2, 2]))


def context(number: int, encoder: Encoder, exemplars: Split | None = None) -> TaskContext:
    old = tuple(len(task.classes) for task in tasks()[:number])
    return TaskContext(tasks()[number], old, exemplars, encoder, NETWORK, lambda: iter(()))


def adaptive(vectors: Vectors = "stored") -> Distil:
    loss = DenseDistillation("whole")
    return Distil(["new"], loss, AdaptiveWeights(20.0), vectors)


def weight(term: Distil, group: Sequence[bool]) -> float:
    assert isinstance(term.weight, AdaptiveWeights)
    return term.weight(torch.tensor(group)).item()


def test_adaptive_weights_compare_what_the_teacher_sees_with_what_trained_networks_saw() -> None:
    """Encoder t is the network after task t; the task before it was faced with encoder t - 1."""
    term, encoders = adaptive(), [Encoder(number) for number in range(4)]
    assert term.begin(context(0, Encoder(99))) == {}
    term.end(context(0, encoders[0]))
    old = [encoders[0].vectors(tasks()[0].train, 3)]
    for number in (1, 2, 3):
        notes = term.begin(context(number, encoders[number - 1]))
        new = encoders[number - 1].vectors(tasks()[number].train, 2)
        everything = tuple(range(number))
        wanted = reference.adaptive_weight(old, new, everything, 20.0)
        assert weight(term, [True] * number) == pytest.approx(wanted, rel=1e-6)
        last = [task == number - 1 for task in range(number)]
        wanted_last = reference.adaptive_weight(old, new, (number - 1,), 20.0)
        assert weight(term, last) == pytest.approx(wanted_last, rel=1e-6)
        classes = sum(map(len, old))
        assert notes == {"s": pytest.approx(wanted / 20 / (classes / 2) ** 0.5, rel=1e-6)}
        term.end(context(number, encoders[number]))
        old.append(encoders[number].vectors(tasks()[number].train, 2))
    held = term.state_dict()
    assert sorted(held) == ["tasks.0", "tasks.1", "tasks.2", "tasks.3"]
    for task, vectors in enumerate(old):
        np.testing.assert_allclose(held[f"tasks.{task}"].numpy(), vectors, rtol=1e-6)


def kept() -> Split:
    """One image of each of the first five classes, not their first."""
    task0, task1 = tasks()[:2]
    images = torch.cat([pixels(task0.train)[-3:], pixels(task1.train)[-2:]])
    return Split(PixelImages(images), torch.arange(5))


def test_recomputed_vectors_are_those_of_exemplars_by_the_teacher() -> None:
    stored, recomputed = adaptive(), adaptive("recomputed")
    for term in (stored, recomputed):
        for number in (0, 1):
            term.end(context(number, Encoder(number)))
        term.begin(context(2, Encoder(7), kept()))
    each = Encoder(7).vectors(kept(), 5)
    new = Encoder(7).vectors(tasks()[2].train, 2)
    wanted = reference.adaptive_weight([each[:3], each[3:]], new, (0, 1), 20.0)
    assert weight(recomputed, [True, True]) == pytest.approx(wanted, rel=1e-6)
    assert weight(stored, [True, True]) != pytest.approx(wanted, rel=1e-2)


def test_recomputed_vectors_need_exemplars() -> None:
    term = adaptive("recomputed")
    term.end(context(0, Encoder(0)))
    with pytest.raises(ValueError, match=r"class vectors of the old tasks.*exemplars"):
        term.begin(context(1, Encoder(0)))


def test_an_adaptive_weight_is_that_of_the_group_and_not_multiplied_by_a_ratio() -> None:
    term = adaptive()
    for number in range(3):
        term.end(context(number, Encoder(number)))
    term.begin(context(3, Encoder(2)))
    given = step(["new"], seeded(), new=2)
    plain = Distil(["new"], DenseDistillation("whole"), RatioWeight(1.0, 0.0))(given)
    assert term(given).item() == pytest.approx(weight(term, [True] * 3) * plain.item(), rel=1e-5)


def test_the_state_comes_back_whole() -> None:
    term, restored = adaptive(), adaptive()
    for number in (0, 1):
        term.end(context(number, Encoder(number)))
    restored.load_state_dict({name: x.clone() for name, x in term.state_dict().items()})
    for each in (term, restored):
        each.begin(context(2, Encoder(1)))
    for group in ([True, False], [False, True], [True, True]):
        assert weight(restored, group) == weight(term, group)
    # What has no state gives none, and is content with that.
    plain = Distil(["new"], DenseDistillation("whole"), RatioWeight(5.0))
    plain.end(context(0, Encoder(0)))
    assert plain.state_dict() == {}
    plain.load_state_dict({})
    assert CrossEntropy(["new"], "new").state_dict() == {}


def test_a_ratio_notes_its_lambda() -> None:
    term = Distil(["new"], DenseDistillation("whole"), RatioWeight(5.0))
    assert term.begin(context(2, Encoder(0))) == {"lambda": 5 * (7 / 2) ** 0.66}
    assert term.begin(context(0, Encoder(0))) == {}


def test_only_distillation_asks_for_a_teacher() -> None:
    assert Distil.needs_teacher
    assert not CrossEntropy.needs_teacher


def test_a_term_takes_the_batches_there_are() -> None:
    given = step(["exemplars"], seeded())
    assert CrossEntropy(["new", "exemplars"], "all").views(given) == [given.views["exemplars"]]
    assert CrossEntropy(["new"], "all").views(given) == []


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="stream='old' is not one of 'new', 'exemplars', 'merged'"):
        CrossEntropy([cast(Stream, "old")], "new")
    with pytest.raises(ValueError, match="over='old' is not one of 'new', 'all'"):
        CrossEntropy(["new"], cast(Over, "old"))
    with pytest.raises(ValueError, match="vectors='kept' is not one of 'stored', 'recomputed'"):
        adaptive(cast(Literal["stored"], "kept"))
