import logging
from typing import Any, cast

import numpy as np
import pytest
import torch

from densekd import AdaptiveWeights, DenseDistillation, TaskPool
from densekd.losses import groups as groups_module
from densekd.methods import adaptive_weights
from densekd.methods.adaptive_weights import Similarity, SizeRatio

import reference

SIZES = [4, 2, 3]


def vectors(classes: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(classes, 5, generator=generator, dtype=torch.float64) + 0.3 * seed


def facing(similarity: Similarity = "literal", ratio: SizeRatio = "group") -> AdaptiveWeights:
    weights = AdaptiveWeights(20.0, similarity, ratio)
    for task, size in enumerate(SIZES):
        weights.add_task(vectors(size, task))
    weights.set_new(vectors(2, 9))
    return weights


def expected(group: tuple[int, ...], per_group: bool = True) -> float:
    old = [vectors(size, task).numpy() for task, size in enumerate(SIZES)]
    return reference.adaptive_weight(old, vectors(2, 9).numpy(), group, 20.0, per_group)


@pytest.mark.parametrize("ratio", ["group", "all"])
def test_weights_equal_the_equation_for_every_group(ratio: SizeRatio) -> None:
    given = facing(ratio=ratio)(TaskPool(SIZES).every())
    wanted = [expected(group, ratio == "group") for group in reference.pool(3)]
    np.testing.assert_allclose(given.numpy(), wanted, rtol=1e-12)


def test_any_batch_shape_of_groups_is_taken() -> None:
    masks = TaskPool(SIZES).sample(torch.Generator().manual_seed(0), 12)
    weights = facing()
    assert torch.equal(weights(masks.view(3, 4, 3)), weights(masks).view(3, 4))


def test_rescaled_makes_the_distance_of_all_old_classes_one() -> None:
    masks = TaskPool(SIZES).every()
    weights = facing("rescaled")
    assert weights(masks)[-1].item() == pytest.approx(20.0 * (9 / 2) ** 0.5)
    ratio = facing()(masks) / weights(masks)
    torch.testing.assert_close(ratio, weights.distance(masks)[-1].expand(7))


@pytest.mark.parametrize("similarity", ["literal", "normalized"])
def test_class_vectors_are_means_of_features(similarity: Similarity) -> None:
    features = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(30) % 3
    given = AdaptiveWeights(1.0, similarity).class_vectors(features, labels, 3)
    rows = features.double().numpy()
    if similarity == "normalized":
        rows = rows / np.sqrt((rows**2).sum(axis=1, keepdims=True))
    wanted = [rows[labels.numpy() == label].mean(axis=0) for label in range(3)]
    np.testing.assert_allclose(given.numpy(), wanted, rtol=1e-12)


def test_revise_replaces_the_old_vectors_in_order() -> None:
    weights = AdaptiveWeights(20.0)
    for size in SIZES:
        weights.add_task(torch.zeros(size, 5))
    weights.replace_old(torch.cat([vectors(size, task) for task, size in enumerate(SIZES)]))
    weights.set_new(vectors(2, 9))
    masks = TaskPool(SIZES).every()
    assert torch.equal(weights(masks), facing()(masks))


def test_state_comes_back_whole() -> None:
    masks = TaskPool(SIZES).every()
    restored = AdaptiveWeights(20.0)
    restored.load_state_dict(facing().state_dict())
    assert torch.equal(restored(masks), facing()(masks))
    before_facing = AdaptiveWeights(20.0)
    before_facing.add_task(vectors(4, 0))
    restored.load_state_dict(before_facing.state_dict())
    assert list(restored.state_dict()) == ["tasks.0"]


def test_the_state_does_not_change_when_more_is_learned() -> None:
    weights = facing()
    state = {name: tensor.clone() for name, tensor in weights.state_dict().items()}
    kept = weights.state_dict()
    weights.add_task(vectors(2, 9))
    assert all(torch.equal(kept[name], tensor) for name, tensor in state.items())


def test_the_distance_is_logged_when_new_classes_come(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "densekd"):
        weights = facing()
    s = weights.distance(TaskPool(SIZES).every()[-1]).item()
    assert f"s(all old, new) = {s:.4g}; by task: " in caplog.text


def test_the_loss_is_weighted_group_by_group() -> None:
    generator = torch.Generator().manual_seed(5)
    student = torch.randn(6, 11, generator=generator, dtype=torch.float64)
    teacher = torch.randn(6, 9, generator=generator, dtype=torch.float64)
    given = DenseDistillation("every")(student, teacher, SIZES, weights=facing())
    wanted = reference.distillation(
        student.numpy(), teacher.numpy(), SIZES, "every", weight=expected
    )
    assert given.item() == pytest.approx(wanted.value, rel=1e-9)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: AdaptiveWeights(-1.0), r"lambda_base.*-1\.0"),
        (lambda: AdaptiveWeights(float("nan")), r"lambda_base.*nan"),
        (lambda: AdaptiveWeights(1.0, cast(Any, "cosine")), r"similarity='cosine'.*'literal'"),
        (lambda: AdaptiveWeights(1.0, ratio=cast(Any, "none")), r"ratio='none'.*'group'"),
        (lambda: AdaptiveWeights(1.0).set_new(vectors(2, 0)), r"add_task\(\) before set_new\(\)"),
        (lambda: AdaptiveWeights(1.0).add_task(torch.zeros(3)), r"not \[3\]"),
        (lambda: AdaptiveWeights(1.0).replace_old(vectors(2, 0)), "2 class vectors for 0"),
        (lambda: facing().add_task(torch.zeros(2, 7)), "7 dimensions.*had 5"),
        (lambda: facing()(torch.ones(1, 4, dtype=torch.bool)), "of 4 tasks, but 3"),
        (lambda: AdaptiveWeights(1.0).load_state_dict({"x": vectors(1, 0)}), r"\['x'\]"),
    ],
)
def test_bad_input_gets_a_sentence(action: object, message: str) -> None:
    assert callable(action)
    with pytest.raises(ValueError, match=message):
        action()


def test_weights_before_the_new_classes_are_known_are_refused() -> None:
    weights = AdaptiveWeights(1.0)
    weights.add_task(vectors(4, 0))
    with pytest.raises(ValueError, match=r"call set_new\(\) first"):
        weights(torch.ones(1, 1, dtype=torch.bool))


def test_rescaling_by_nothing_is_refused() -> None:
    weights = AdaptiveWeights(1.0, "rescaled")
    weights.add_task(torch.ones(2, 3))
    weights.set_new(torch.zeros(4, 3))
    before = weights.state_dict()
    with pytest.raises(ValueError, match="same mean vector"):
        weights.set_new(torch.ones(4, 3))
    assert torch.equal(weights.state_dict()["new"], before["new"])
    assert weights(torch.ones(1, 1, dtype=torch.bool)).item() == pytest.approx((2 / 4) ** 0.5)


def test_vectors_are_copied_and_a_failed_load_changes_nothing() -> None:
    weights = facing()
    before = weights(TaskPool(SIZES).every())
    weights.state_dict()  # holds the tensors themselves
    own = vectors(4, 0)
    other = AdaptiveWeights(1.0)
    other.add_task(own)
    own.zero_()
    assert other.state_dict()["tasks.0"].any()
    with pytest.raises(ValueError, match="7 dimensions"):
        weights.load_state_dict({"tasks.0": vectors(4, 0), "tasks.1": torch.zeros(2, 7)})
    assert torch.equal(weights(TaskPool(SIZES).every()), before)


def test_normalized_refuses_vectors_that_are_not() -> None:
    with pytest.raises(ValueError, match="longer than 1"):
        AdaptiveWeights(1.0, "normalized").add_task(torch.full((2, 3), 5.0))


def test_negative_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="whole numbers from 0"):
        AdaptiveWeights(1.0).class_vectors(torch.ones(2, 2), torch.tensor([0, -1]), 2)


def many(tasks: int) -> tuple[AdaptiveWeights, torch.Tensor, torch.Tensor, list[int]]:
    weights, sizes = AdaptiveWeights(20.0), [2] * tasks
    for task in range(tasks):
        weights.add_task(vectors(2, task % 5))
    weights.set_new(vectors(3, 9))
    source = torch.Generator().manual_seed(tasks)
    student, teacher = torch.randn(2, 3, 2 * tasks, generator=source, dtype=torch.float64)
    return weights, student, teacher, sizes


def test_drawing_groups_with_their_weights_averages_to_every_group() -> None:
    weights, student, teacher, sizes = many(6)
    every = DenseDistillation("every")(student, teacher, sizes, weights=weights)
    source = torch.Generator().manual_seed(0)
    for per_image in (False, True):
        loss = DenseDistillation("random", draws=300, per_image=per_image)
        drawn = torch.stack(
            [loss(student, teacher, sizes, generator=source, weights=weights) for _ in range(20)]
        )
        assert abs(drawn.mean() - every) < 5 * drawn.std() / 20**0.5


def test_beyond_twelve_tasks_weighted_groups_are_drawn_without_bias() -> None:
    weights, student, teacher, sizes = many(13)
    masks = TaskPool(sizes).every()
    source = torch.Generator().manual_seed(0)
    # All 8191 groups at once, as if each had been drawn once for each image.
    blocks = groups_module.Blocks.of(student, teacher, tuple(sizes), 2.0)
    every = (groups_module.listed_divergence(blocks) * weights(masks)).mean()
    every = every * 4 / TaskPool(sizes).mean_group_size
    loss = DenseDistillation("every", draws=300)
    drawn = torch.stack(
        [loss(student, teacher, sizes, generator=source, weights=weights) for _ in range(20)]
    )
    assert abs(drawn.mean() - every) < 5 * drawn.std() / 20**0.5


@pytest.mark.parametrize("labels", [[0, 0, 2], [0, 1, 3]])
def test_a_class_without_images_has_no_vector(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="needs an image"):
        AdaptiveWeights(1.0).class_vectors(torch.ones(3, 2), torch.tensor(labels), 3)


def test_vectors_from_a_file_follow_new_ones_to_their_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a device that every computer has, which computes no numbers to be logged."""
    monkeypatch.setattr(torch.Tensor, "tolist", lambda _: [])
    monkeypatch.setattr(torch.Tensor, "item", lambda _: 0.0)
    weights = AdaptiveWeights(1.0)
    weights.load_state_dict({"tasks.0": vectors(4, 0), "tasks.1": vectors(2, 1)})
    weights.set_new(vectors(2, 2).to("meta"))
    assert {x.device.type for x in weights.state_dict().values()} == {"meta"}
    assert weights(torch.ones(1, 2, dtype=torch.bool, device="meta")).device.type == "meta"


def test_old_vectors_get_the_type_of_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apple's mps has no float64."""
    weights = AdaptiveWeights(1.0)
    weights.add_task(vectors(4, 0))
    monkeypatch.setattr(adaptive_weights, "working_dtype", lambda _: torch.float32)
    weights.set_new(vectors(2, 2))
    assert weights(torch.ones(1, 1, dtype=torch.bool)).dtype == torch.float32
