from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from densekd.losses.classify import margin_ranking

import reference_baselines as reference

OLD, SEEN = 4, 7
LABELS = [0, 6, 3, 4, 6, 1, 5, 2]  # old and new


def cosines(classes: int = SEEN, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(classes)
    drawn = 2 * torch.rand(len(LABELS), classes, generator=generator, dtype=torch.float64) - 1
    return drawn.to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("margin", "k"), [(0.5, 2), (0.2, 2), (0.5, 1), (0.5, 3)])
def test_value_and_gradient_equal_the_reference(margin: float, k: int, dtype: torch.dtype) -> None:
    x = cosines(dtype=dtype)
    array = x.detach().double().numpy()

    def expected(s: reference.Array) -> float:
        return reference.margin_ranking(s, LABELS, OLD, margin, k)

    given = margin_ranking(x, torch.tensor(LABELS), OLD, margin, k)
    assert given.dtype == torch.promote_types(dtype, torch.float32)
    assert given.item() == pytest.approx(expected(array), rel=1e-5)
    (gradient,) = torch.autograd.grad(given, x)
    right = reference.finite_differences(expected, array)
    error = np.abs(gradient.double().numpy() - right).max()
    assert error <= max(1e-5, torch.finfo(dtype).eps) * np.abs(right).max()


def test_the_defaults_are_those_of_ucir() -> None:
    x = cosines()
    given = margin_ranking(x, torch.tensor(LABELS), OLD)
    expected = reference.margin_ranking(x.detach().numpy(), LABELS, OLD, margin=0.5, k=2)
    assert given.item() == pytest.approx(expected, rel=1e-12)


def test_a_single_new_class_is_compared_once() -> None:
    labels = [0, 4, 3, 4, 1, 1, 4, 2]
    x = cosines(OLD + 1)
    given = margin_ranking(x, torch.tensor(labels), OLD, k=2)
    expected = reference.margin_ranking(x.detach().numpy(), labels, OLD, margin=0.5, k=1)
    assert given.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("labels", "old"), [([4, 6, 5, 4, 6, 6, 5, 4], OLD), (LABELS, 0)])
def test_without_images_of_old_classes_it_is_zero(labels: list[int], old: int) -> None:
    x = cosines()
    loss = margin_ranking(x, torch.tensor(labels), old)
    (gradient,) = torch.autograd.grad(loss, x)
    assert loss.item() == 0.0
    assert not gradient.any()


def test_an_image_beyond_the_margin_costs_nothing() -> None:
    x = torch.full((2, SEEN), -0.5)
    x[:, 0] = torch.tensor([0.1, -0.1])
    x.requires_grad_()
    loss = margin_ranking(x, torch.tensor([0, 0]), OLD)
    (gradient,) = torch.autograd.grad(loss, x)
    assert loss.item() == pytest.approx(0.05)  # (0 + 0 + 0.1 + 0.1) / 4
    assert not gradient[0].any()
    assert gradient[1].sum().item() == 0.0
    assert gradient[1, 0].item() == -0.5


def test_autocast_changes_nothing() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = cosines(dtype=dtype)
        outside = margin_ranking(x, torch.tensor(LABELS), OLD)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = margin_ranking(x, torch.tensor(LABELS), OLD)
        assert torch.equal(inside, outside)


def test_no_value_is_read_back_from_the_device() -> None:
    """Tensors on ``meta`` have no values, so reading one, a synchronisation, would raise."""
    x = torch.empty(len(LABELS), SEEN, device="meta", requires_grad=True)
    margin_ranking(x, torch.tensor(LABELS, device="meta"), OLD).backward()
    assert x.grad is not None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda y: margin_ranking(torch.zeros(8, 7), y, 7), "old=7.*one of 7 classes"),
        (lambda y: margin_ranking(torch.zeros(8, 7), y, 4, k=0), "k must be 1 or more.*not 0"),
        (lambda y: margin_ranking(torch.zeros(8), y, 4), r"\[8\]"),
        (lambda y: margin_ranking(torch.zeros(8, 7), y[:2], 4), r"int64 \[8\].*\[2\]"),
    ],
)
def test_bad_input_is_refused(call: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.tensor(LABELS))
