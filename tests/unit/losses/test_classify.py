import math
from collections.abc import Callable
from typing import Any, cast, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from densekd.losses.classify import (
    NcaMode,
    nca_loss,
    new_class_bce,
    old_class_bce,
    soft_cross_entropy,
)

import reference_baselines as reference

OLD, SEEN = 4, 7
LABELS = [0, 6, 3, 4, 6, 1, 5, 2]  # old and new
MODES: tuple[NcaMode, ...] = get_args(NcaMode)
PRECISIONS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def logits(
    classes: int, seed: int = 0, scale: float = 1.5, dtype: torch.dtype = torch.float64
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(len(LABELS), classes, generator=generator, dtype=torch.float64)
    return (drawn * scale).to(dtype).requires_grad_()


def labels() -> Tensor:
    return torch.tensor(LABELS)


def assert_equals(
    loss: Callable[[Tensor], Tensor], expected: Callable[[reference.Array], float], x: Tensor
) -> None:
    """Value and gradient against the reference, as near as the digits of ``x`` allow."""
    given, array = loss(x), x.detach().double().numpy()
    assert given.shape == ()
    assert given.dtype == torch.promote_types(x.dtype, torch.float32)
    assert given.item() == pytest.approx(expected(array), rel=1e-5)
    (gradient,) = torch.autograd.grad(given, x)
    assert gradient.dtype == x.dtype
    right = reference.finite_differences(expected, array)
    error = np.abs(gradient.double().numpy() - right).max()
    assert error <= max(1e-5, torch.finfo(x.dtype).eps) * np.abs(right).max()


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_the_two_parts_of_icarls_loss_equal_the_reference(dtype: torch.dtype) -> None:
    student, teacher = logits(SEEN, dtype=dtype), logits(OLD, 1, dtype=dtype)
    targets = reference.icarl_targets(LABELS, SEEN, teacher.detach().double().numpy())
    size = len(LABELS) * SEEN

    def old_part(z: reference.Array) -> float:
        return float(reference.icarl(z, targets)[:, :OLD].sum() / size)

    def new_part(z: reference.Array) -> float:
        return float(reference.icarl(z, targets)[:, OLD:].sum() / size)

    assert_equals(lambda z: old_class_bce(z, teacher), old_part, student)
    assert_equals(lambda z: new_class_bce(z, labels(), OLD), new_part, student)
    assert_equals(
        lambda z: old_class_bce(z, teacher) + new_class_bce(z, labels(), OLD),
        lambda z: float(reference.icarl(z, targets).mean()),
        student,
    )


def test_in_the_base_task_all_classes_are_new() -> None:
    targets = reference.icarl_targets(LABELS, SEEN, np.zeros((len(LABELS), 0)))
    assert_equals(
        lambda z: new_class_bce(z, labels(), 0),
        lambda z: float(reference.icarl(z, targets).mean()),
        logits(SEEN),
    )


def test_the_label_of_an_exemplar_does_not_matter() -> None:
    student = logits(SEEN)
    other = torch.where(labels() < OLD, (labels() + 1) % OLD, labels())
    given, same = (new_class_bce(student, y, OLD) for y in (labels(), other))
    assert torch.equal(given, same)
    (gradient,) = torch.autograd.grad(given, student)
    assert not gradient[:, :OLD].any()
    assert gradient[:, OLD:].all()


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_released_nca_equals_what_the_released_code_does(dtype: torch.dtype) -> None:
    assert_equals(
        lambda z: nca_loss(z, labels(), "released"),
        lambda z: reference.nca_released(z, LABELS, 0.6),
        logits(SEEN, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("margin", [0.0, 0.6, 3.0])
def test_the_papers_nca_equals_the_reference(margin: float, dtype: torch.dtype) -> None:
    scores = logits(SEEN, dtype=dtype)
    with torch.no_grad():
        scores[1, LABELS[1]] = 12.0  # beyond the margin, and so is the next
        scores[5, LABELS[5]] = 15.0
    array = scores.detach().double().numpy()
    hinged = [reference.nca_paper(z[None], [y], margin) for z, y in zip(array, LABELS, strict=True)]
    assert hinged[1] == hinged[5] == 0.0 < max(hinged)
    assert_equals(
        lambda z: nca_loss(z, labels(), "paper", margin),
        lambda z: reference.nca_paper(z, LABELS, margin),
        scores,
    )


def test_released_nca_is_the_default_and_ignores_its_margin() -> None:
    scores = logits(SEEN)
    given = nca_loss(scores, labels())
    assert torch.equal(given, nca_loss(scores, labels(), "released", 5.0))
    assert given.item() != pytest.approx(nca_loss(scores, labels(), "paper").item(), rel=1e-2)


def test_a_margin_that_is_scaled_teaches_the_scale() -> None:
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    raw = logits(SEEN).detach()
    loss = nca_loss(scale * raw, labels(), "paper", scale * 0.6)
    (gradient,) = torch.autograd.grad(loss, scale)

    def expected(eta: reference.Array) -> float:
        return reference.nca_paper(eta[0] * raw.numpy(), LABELS, 0.6 * eta[0])

    right = reference.finite_differences(expected, np.array([2.0]))
    assert gradient.item() == pytest.approx(right[0], rel=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("offset", [-1e4, 1e4])
def test_nca_is_finite_for_large_scores(mode: NcaMode, offset: float) -> None:
    scores = logits(SEEN, dtype=torch.float64)
    large = (scores.detach() + offset).requires_grad_()
    losses = [nca_loss(z, labels(), mode) for z in (scores, large)]
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-9)
    gradients = [
        torch.autograd.grad(*pair)[0] for pair in zip(losses, (scores, large), strict=True)
    ]
    torch.testing.assert_close(gradients[1], gradients[0])
    apart = logits(SEEN, scale=1e30, dtype=torch.float32)
    (gradient,) = torch.autograd.grad(nca_loss(apart, labels(), mode), apart)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("mode", MODES)
def test_nca_of_a_single_class_is_zero(mode: NcaMode) -> None:
    scores = logits(1)
    loss = nca_loss(scores, torch.zeros(len(LABELS), dtype=torch.int64), mode)
    (gradient,) = torch.autograd.grad(loss, scores)
    assert loss.item() == 0.0
    assert not gradient.any()


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_soft_cross_entropy_equals_the_reference(temperature: float, dtype: torch.dtype) -> None:
    teacher = logits(OLD, 1, dtype=dtype)
    assert_equals(
        lambda z: soft_cross_entropy(z, teacher, temperature),
        lambda z: reference.soft_cross_entropy(z, teacher.detach().double().numpy(), temperature),
        logits(OLD, dtype=dtype),
    )


def test_logits_far_apart_keep_the_losses_finite() -> None:
    student, teacher = logits(SEEN, scale=1e6), logits(SEEN, 1, scale=1e6)
    losses = (
        old_class_bce(student, teacher),
        new_class_bce(student, labels(), OLD),
        soft_cross_entropy(student, teacher, 2.0),
    )
    for loss in losses:
        (gradient,) = torch.autograd.grad(loss, student)
        assert loss.isfinite()
        assert gradient.isfinite().all()


Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "new_class_bce": lambda student, teacher, y: new_class_bce(student, y, OLD),
    "old_class_bce": lambda student, teacher, y: old_class_bce(student, teacher),
    "released": lambda student, teacher, y: nca_loss(student, y, "released"),
    "paper": lambda student, teacher, y: nca_loss(student, y, "paper"),
    "soft": lambda student, teacher, y: soft_cross_entropy(student[:, :OLD], teacher, 2.0),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


@every_loss
def test_autocast_changes_nothing(loss: Loss) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        student, teacher = logits(SEEN, dtype=dtype), logits(OLD, 1, dtype=dtype)
        outside = loss(student, teacher, labels())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = loss(student, teacher, labels())
        assert torch.equal(inside, outside)


@every_loss
def test_no_value_is_read_back_from_the_device(loss: Loss) -> None:
    """Tensors on ``meta`` have no values, so reading one, a synchronisation, would raise."""
    student = torch.empty(len(LABELS), SEEN, device="meta", requires_grad=True)
    teacher = torch.empty(len(LABELS), OLD, device="meta")
    loss(student, teacher, labels().to("meta")).backward()
    assert student.grad is not None


@pytest.mark.parametrize("loss", [LOSSES["old_class_bce"], LOSSES["soft"]])
def test_the_teacher_gets_no_gradient_and_may_come_from_inference_mode(loss: Loss) -> None:
    student, teacher = logits(SEEN), logits(OLD, 1)
    given = loss(student, teacher, labels())
    gradients = torch.autograd.grad(given, [student, teacher], allow_unused=True)
    assert gradients[1] is None
    with torch.inference_mode():
        teacher = teacher.clone()
    (gradient,) = torch.autograd.grad(loss(student, teacher, labels()), student)
    assert torch.equal(gradient, gradients[0])


@every_loss
def test_a_score_that_is_not_finite_makes_the_loss_nan(loss: Loss) -> None:
    student = logits(SEEN).detach()
    student[:, 2], student[:, 5] = math.nan, math.nan
    assert loss(student, logits(OLD, 1), labels()).isnan()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: new_class_bce(torch.zeros(8), labels(), 1), r"scores must be.*\[8\]"),
        (lambda: new_class_bce(torch.zeros(0, 7), labels()[:0], 1), r"at least one.*\[0, 7\]"),
        (lambda: new_class_bce(torch.zeros(8, 7), labels()[:5], 1), r"int64 \[8\].*int64 \[5\]"),
        (lambda: new_class_bce(torch.zeros(8, 7), labels().float(), 1), r"not torch.float32 \[8\]"),
        (lambda: new_class_bce(torch.zeros(8, 7), labels(), 7), "old=7.*one of 7 classes"),
        (lambda: new_class_bce(torch.zeros(8, 7), labels(), -1), "old=-1"),
        (lambda: old_class_bce(torch.zeros(8, 3), torch.zeros(8, 4)), r"\[8, 4\].*\[8, 3\].*more"),
        (lambda: old_class_bce(torch.zeros(8, 3), torch.zeros(1, 3)), r"\[1, 3\].*same images"),
        (lambda: old_class_bce(torch.zeros(8, 3), torch.zeros(8, 0)), r"teacher's.*\[8, 0\]"),
        (lambda: nca_loss(torch.zeros(8), labels()), r"scores must be.*\[8\]"),
        (
            lambda: nca_loss(torch.zeros(8, 7), labels(), cast(Any, "proxy")),
            "mode='proxy' is not one of 'released', 'paper'",
        ),
        (
            lambda: soft_cross_entropy(torch.zeros(8, 7), torch.zeros(8, 4), 2.0),
            r"\[8, 7\].*\[8, 4\].*slice the student's",
        ),
        (lambda: soft_cross_entropy(torch.zeros(8, 7), torch.zeros(8, 7), 0.0), r"positive.*0\.0"),
        (lambda: soft_cross_entropy(torch.zeros(7), torch.zeros(7), 2.0), r"student's.*\[7\]"),
    ],
)
def test_bad_input_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("label", [-1, SEEN])
def test_a_label_of_no_class_is_refused(label: int) -> None:
    wrong = labels()
    wrong[3] = label
    with pytest.raises(RuntimeError, match="Class values"):
        new_class_bce(logits(SEEN), wrong, OLD)
    for mode in MODES:
        with pytest.raises(RuntimeError, match="out of bounds"):
            nca_loss(logits(SEEN), wrong, mode)
