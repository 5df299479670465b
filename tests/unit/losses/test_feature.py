from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from densekd.losses.feature import (
    channel_distance,
    channel_importance,
    less_forget,
    normalised,
    pod_spatial,
)

import reference_baselines as reference

SHAPES = [(3, 2, 4, 3), (3, 5, 2, 2), (3, 4, 1, 1)]  # of maps, one of them not square
PRECISIONS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
Loss = Callable[[list[Tensor], list[Tensor]], Tensor]


def importance() -> list[Tensor]:
    generator = torch.Generator().manual_seed(9)
    drawn = [torch.rand(s[1], generator=generator, dtype=torch.float64) for s in SHAPES]
    return list(normalised(drawn))


LOSSES: dict[str, Loss] = {
    "less_forget": lambda xs, ys: less_forget(xs[0].flatten(1), ys[0].flatten(1)),
    "pod_spatial": pod_spatial,
    "channel_distance": lambda xs, ys: channel_distance(xs, ys, importance()),
}
REFERENCES: dict[str, Callable[[list[reference.Array], list[reference.Array]], float]] = {
    "less_forget": lambda xs, ys: reference.less_forget(xs[0].reshape(3, -1), ys[0].reshape(3, -1)),
    "pod_spatial": reference.pod_spatial,
    "channel_distance": lambda xs, ys: reference.channel_distance(
        xs, ys, [w.numpy() for w in importance()]
    ),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def maps(seed: int, scale: float = 1.5, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    return [(x * scale).to(dtype).requires_grad_() for x in drawn]


def gradients(loss: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True))


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_equal_the_reference(name: str, dtype: torch.dtype) -> None:
    student, teacher = maps(0, dtype=dtype), maps(1, dtype=dtype)
    xs, ys = ([x.detach().double().numpy() for x in side] for side in (student, teacher))
    given = LOSSES[name](student, teacher)
    assert given.shape == ()
    assert given.dtype == torch.promote_types(dtype, torch.float32)
    assert given.item() == pytest.approx(REFERENCES[name](xs, ys), rel=1e-5)
    for layer, gradient in enumerate(gradients(given, student)):

        def expected(x: reference.Array, layer: int = layer) -> float:
            return REFERENCES[name]([*xs[:layer], x, *xs[layer + 1 :]], ys)

        right = reference.finite_differences(expected, xs[layer])
        error = np.abs(gradient.double().numpy() - right).max()
        assert gradient.dtype == dtype
        # A map of one pixel normalises to a constant: its gradients are only rounding errors.
        assert error <= max(1e-5, torch.finfo(dtype).eps) * max(np.abs(right).max(), 1e-3)


@pytest.mark.parametrize("dtype", PRECISIONS)
@every_loss
def test_where_student_and_teacher_agree_loss_and_gradient_are_zero(
    loss: Loss, dtype: torch.dtype
) -> None:
    student = maps(0, dtype=dtype)
    given = loss(student, [x.detach().clone() for x in student])
    assert given.item() == 0.0
    assert not any(gradient.any() for gradient in gradients(given, student))


@pytest.mark.parametrize("distance", [1e-3, 1e-6])
@pytest.mark.parametrize("name", LOSSES)
def test_single_precision_keeps_its_digits_where_the_two_are_near(
    name: str, distance: float
) -> None:
    teacher = [x.detach() for x in maps(0, dtype=torch.float32)]
    apart = maps(1, dtype=torch.float32)
    pairs = zip(teacher, apart, strict=True)
    student = [(x + distance * y.detach()).requires_grad_() for x, y in pairs]
    wide = [x.detach().double().requires_grad_() for x in student]
    given = LOSSES[name](student, teacher)
    exact = LOSSES[name](wide, [x.double() for x in teacher])
    # The precision of a float32 difference of two numbers near 1.
    digits = 1e-6 / distance
    assert given.item() == pytest.approx(exact.item(), rel=digits)
    assert given.item() > 0
    assert all(gradient.isfinite().all() for gradient in gradients(given, student))


@every_loss
def test_features_of_zeros_leave_the_gradient_finite(loss: Loss) -> None:
    student, teacher = maps(0, dtype=torch.float32), maps(1, dtype=torch.float32)
    with torch.no_grad():
        student[0][0] = 0  # a whole image,
        student[1][:, 3] = 0  # a channel of all images,
        teacher[1][1, :2] = 0  # some of the teacher's
        student[2][:], teacher[2][:] = 0, 0  # and a whole layer of both
    given = loss(student, teacher)
    assert given.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients(given, student))


@every_loss
def test_the_length_of_the_features_makes_no_difference(loss: Loss) -> None:
    student, teacher = maps(0), maps(1)
    longer = loss([30 * x for x in student], [0.01 * y for y in teacher])
    assert longer.item() == pytest.approx(loss(student, teacher).item(), rel=1e-9)


def test_features_at_any_angle() -> None:
    student = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
    teacher = torch.tensor([[5.0, 0.0], [1.0, 0.0], [7.0, 0.0]])
    assert less_forget(student, teacher).item() == pytest.approx((0 + 1 + 2) / 3)


def test_a_tiny_feature_has_a_bounded_gradient() -> None:
    student = torch.full((1, 2), 1e-20, requires_grad=True)
    (gradient,) = torch.autograd.grad(less_forget(student, torch.tensor([[3.0, 0.0]])), student)
    assert gradient[0, 0].item() == pytest.approx(-1e6)


def test_a_channel_without_importance_costs_nothing() -> None:
    student, teacher = maps(0), maps(1)
    weights = importance()
    weights[0] = torch.tensor([0.0, 2.0], dtype=torch.float64)
    given = gradients(channel_distance(student, teacher, weights), student)
    assert not given[0][:, 0].any()
    assert given[0][:, 1].any()


def test_importance_may_have_another_precision() -> None:
    student, teacher = maps(0, dtype=torch.bfloat16), maps(1, dtype=torch.bfloat16)
    given = channel_distance(student, teacher, importance())
    single = channel_distance(student, teacher, [w.float() for w in importance()])
    assert given.dtype == torch.float32
    assert torch.equal(given, single)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_importance_adds_up_the_squares_over_batches(dtype: torch.dtype) -> None:
    first, second = maps(0, dtype=dtype), maps(1, dtype=dtype)
    parts = zip(channel_importance(first), channel_importance(second), strict=True)
    given = [a + b for a, b in parts]
    together = [torch.cat(pair).detach() for pair in zip(first, second, strict=True)]
    expected = reference.channel_importance([x.double().numpy() for x in together])
    for weights, right, scaled in zip(given, expected, normalised(given), strict=True):
        assert not weights.requires_grad
        np.testing.assert_allclose(weights.numpy(), right, rtol=1e-12)
        np.testing.assert_allclose(scaled.numpy(), right / right.mean(), rtol=1e-12)


def test_importance_of_tiny_gradients_is_not_lost() -> None:
    tiny = [1e-25 * x.detach().float() for x in maps(0)]
    expected = normalised(channel_importance(maps(0)))
    for given, right in zip(normalised(channel_importance(tiny)), expected, strict=True):
        torch.testing.assert_close(given, right, rtol=1e-5, atol=0)


def test_a_layer_without_gradient_has_equal_channels() -> None:
    zeros, some = normalised([torch.zeros(3), torch.tensor([1.0, 3.0])])
    assert zeros.tolist() == [1.0, 1.0, 1.0]
    assert some.tolist() == [0.5, 1.5]
    (lost,) = normalised([torch.tensor([1.0, torch.nan])])
    assert lost.isnan().all()


@every_loss
def test_autocast_changes_nothing(loss: Loss) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        student, teacher = maps(0, dtype=dtype), maps(1, dtype=dtype)
        outside = loss(student, teacher)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = loss(student, teacher)
        assert torch.equal(inside, outside)


@every_loss
def test_no_value_is_read_back_from_the_device(loss: Loss) -> None:
    """Tensors on ``meta`` have no values, so reading one, a synchronisation, would raise."""
    student = [torch.empty(shape, device="meta", requires_grad=True) for shape in SHAPES]
    teacher = [torch.empty(shape, device="meta") for shape in SHAPES]
    loss(student, teacher).backward()
    assert student[0].grad is not None


@every_loss
def test_the_teacher_gets_no_gradient_and_may_come_from_inference_mode(loss: Loss) -> None:
    student, teacher = maps(0), maps(1)
    given = loss(student, teacher)
    taught = torch.autograd.grad(given, teacher, allow_unused=True, retain_graph=True)
    assert all(gradient is None for gradient in taught)
    expected = gradients(given, student)
    with torch.inference_mode():
        teacher = [y.clone() for y in teacher]
    again = gradients(loss(student, teacher), student)
    assert all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))


@every_loss
def test_a_feature_that_is_not_finite_makes_the_loss_nan(loss: Loss) -> None:
    student = [x.detach() for x in maps(0)]
    student[0][1, 1, 0, 0] = torch.nan
    assert loss(student, maps(1)).isnan()


MAP = torch.zeros(2, 3, 4, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: less_forget(torch.zeros(2, 3), torch.zeros(2, 4)), r"\[2, 3\] and \[2, 4\]"),
        (lambda: less_forget(MAP, MAP), r"both be \[images, D\], not \[2, 3, 4, 4\]"),
        (lambda: less_forget(torch.zeros(0, 3), torch.zeros(0, 3)), r"\[0, 3\]"),
        (lambda: pod_spatial([], []), "at least one"),
        (lambda: pod_spatial([MAP], [MAP, MAP]), "same shapes"),
        (lambda: pod_spatial([MAP], [MAP[:1]]), r"\[2, 3, 4, 4\]\] and \[\[1, 3, 4, 4\]\]"),
        (lambda: pod_spatial([MAP[0]], [MAP[0]]), r"not \[3, 4, 4\]"),
        (lambda: channel_distance([MAP], [MAP], []), r"\[\[3\]\], not \[\]"),
        (lambda: channel_distance([MAP], [MAP], [torch.ones(1)]), r"\[\[3\]\], not \[\[1\]\]"),
        (lambda: channel_distance([MAP[0]], [MAP[0]], [torch.ones(4)]), r"not \[3, 4, 4\]"),
        (lambda: channel_importance([MAP[0]]), r"gradients.*not \[3, 4, 4\]"),
    ],
)
def test_bad_input_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
