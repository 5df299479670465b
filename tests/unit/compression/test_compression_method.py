"""What a student minimises, computed by hand, and who teaches it."""

from typing import get_args

import numpy as np
import pytest
import torch

from densekd.compression.method import CompressionMethod, CompressionOptions, compression
from densekd.data.augment import Augment
from densekd.data.dataset import PixelImages
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario
from densekd.methods.schedule import Schedule
from densekd.methods.terms import Step, View
from densekd.nn.classifier import LinearClassifier
from densekd.nn.network import Network, Outputs
from densekd.pool import TaskPool
from densekd.training.learner import Learner, Settings
from densekd.training.phases import ExternalTeacher

import reference
from support.datasets import dataset
from support.tiny_learners import ENGINE, Recorder, TinyBackbone, tiny_learner

SIZES = (3, 2, 1, 2)
CLASSES, IMAGES, TAU = 8, 7, 4.0
WHOLE = Scenario.of(dataset(CLASSES, 6), base=CLASSES, steps=0)
NETWORK = Network(TinyBackbone(), LinearClassifier(10))
GROUPS = {"kd": "whole", "rdkd": "random", "fdkd": "every"}


def drawn_group(generator: torch.Generator) -> reference.Group:
    mask = TaskPool(SIZES).sample(generator, 1)[0]
    return tuple(torch.nonzero(mask).flatten().tolist())


@pytest.mark.parametrize(
    ("name", "whole"),
    [("kd", False), ("rdkd", False), ("fdkd", False), ("rdkd", True), ("fdkd", True)],
)
def test_labels_weigh_a_tenth_and_the_teacher_nine(name: CompressionMethod, whole: bool) -> None:
    draw = np.random.default_rng(0)
    student, teacher = draw.normal(size=(2, IMAGES, CLASSES)) * 3
    labels = [5, 0, 1, 7, 7, 2, 3]

    def outputs(logits: reference.Array) -> Outputs:
        return Outputs(torch.from_numpy(logits), torch.zeros(IMAGES, 1), ())

    view = View(torch.tensor(labels), outputs(student), outputs(teacher))
    generator = torch.Generator().manual_seed(1)
    step = Step({"merged": view}, SIZES, CLASSES, generator, NETWORK)
    method = compression(name, CompressionOptions(whole=whole), Schedule())
    loss = sum(float(term(step)) for term in method.terms.values())

    group = drawn_group(torch.Generator().manual_seed(1))
    assert 1 <= len(group) < len(SIZES)

    def divergence(groups: str) -> float:
        both = student, teacher, SIZES
        found = reference.distillation(*both, groups, reduction="batch", tau=TAU, drawn=[group])
        return found.value

    expected = 0.1 * reference.cross_entropy(student, labels) + 0.9 * divergence(GROUPS[name])
    if whole:
        expected += 0.9 * divergence("whole")
    assert loss == pytest.approx(expected, rel=1e-9)


def test_kd_is_hintons() -> None:
    """Without the package's own helpers: 0.1 CE + 0.9 tau^2 KL(p_teacher || p_student)."""
    student, teacher = np.array([[1.0, 2.0, 0.5]]), np.array([[3.0, -1.0, 0.0]])
    p, q = (np.exp(z / TAU) / np.exp(z / TAU).sum() for z in (teacher, student))
    divergence = (p * np.log(p / q)).sum()
    labels = -np.log(np.exp(student[0, 1]) / np.exp(student).sum())
    views = [Outputs(torch.from_numpy(z), torch.zeros(1, 1), ()) for z in (student, teacher)]
    view = View(torch.tensor([1]), views[0], views[1])
    step = Step({"merged": view}, (2, 1), 3, torch.Generator(), NETWORK)
    terms = compression("kd", CompressionOptions(), Schedule()).terms
    assert float(terms["labels"](step)) == pytest.approx(0.1 * labels)
    assert float(terms["kd"](step)) == pytest.approx(0.9 * TAU**2 * divergence)


def test_alone_there_is_the_cross_entropy_and_nothing_else() -> None:
    (term,) = compression("alone", CompressionOptions(), Schedule()).terms.values()
    assert term.formula == "CE(z_all(x_merged), y)"
    assert not term.needs_teacher


def test_a_formula_has_its_weight() -> None:
    terms = compression("rdkd", CompressionOptions(), Schedule()).terms
    assert terms["labels"].formula == "0.1 CE(z_all(x_merged), y)"
    assert "lambda = 0.9" in terms["kd"].formula


@pytest.mark.parametrize("name", ["alone", "kd"])
def test_all_classes_are_added_to_groups_only(name: CompressionMethod) -> None:
    with pytest.raises(ValueError, match=f"goes with rdkd and fdkd; leave it out with {name}"):
        compression(name, CompressionOptions(whole=True), Schedule())


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="temperature must be a positive number, not 0"):
        CompressionOptions(temperature=0)
    with pytest.raises(ValueError, match="weights of labels and teacher"):
        CompressionOptions(teacher=-1)


def external_teacher() -> ExternalTeacher:
    network = Network(TinyBackbone(), LinearClassifier(10))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        network.grow(CLASSES)
    return ExternalTeacher(network, SIZES)


def test_a_tutor_teaches_in_the_first_task() -> None:
    """With all images in one batch and hardly a step, the loss is that of the network as it is."""
    how = compression("kd", CompressionOptions(), Schedule(1, 1e-12, batch_size=100))
    augment = Augment((0.014, 0.01, 0.0), (0.01, 0.01, 1.0), padding=0, flip=False)
    each = Learner(TinyBackbone(), how, ExemplarMemory(Quota(0)), Settings(augment, 1, ENGINE))
    callback, who = Recorder(), external_teacher()
    each.learn(WHOLE[0], callback=callback, external_teacher=who)
    train = WHOLE[0].train
    assert isinstance(train.images, PixelImages)
    images = augment.normalise(train.images.pixels)
    with torch.no_grad():
        student = each.network.train()(images).logits.double().numpy()
        teacher = who.network.eval()(images).logits.double().numpy()
    (end,) = callback.epoch_ends
    labels = reference.cross_entropy(student, train.labels.tolist())
    kd = reference.distillation(student, teacher, SIZES, "whole", reduction="batch", tau=TAU)
    assert end.losses["labels"] == pytest.approx(0.1 * labels, rel=1e-5)
    assert end.losses["kd"] == pytest.approx(0.9 * kd.value, rel=1e-5)


def test_without_a_tutor_there_are_labels_alone_in_the_first_task() -> None:
    callback = Recorder()
    how = compression("rdkd", CompressionOptions(), Schedule(1, 0.05, batch_size=8))
    tiny_learner(how).learn(WHOLE[0], callback=callback)
    assert callback.slots(0, "train") == {"labels"}


def test_a_tutor_is_left_as_it_is() -> None:
    who = external_teacher()
    before = {name: x.clone() for name, x in who.network.state_dict().items()}
    how = compression("fdkd", CompressionOptions(), Schedule(2, 0.05, batch_size=8))
    each = tiny_learner(how, per_class=0)
    each.learn(WHOLE[0], external_teacher=who)
    after = who.network.state_dict()
    assert all(torch.equal(after[name], x) for name, x in before.items())
    assert len(each.classes) == CLASSES


def test_all_methods_have_a_name() -> None:
    names = [
        compression(n, CompressionOptions(), Schedule()).name for n in get_args(CompressionMethod)
    ]
    assert names == ["alone", "kd", "rdkd", "fdkd"]
