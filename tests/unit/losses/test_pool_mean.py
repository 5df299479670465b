import math

import pytest
import torch
from scipy.special import gamma
from torch import Tensor

from densekd.losses import pool_mean
from densekd.losses.pool_mean import pool_log_sum_exp, pool_mean_divergence
from densekd.pool import TaskPool


def by_listing(x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    masks = TaskPool([1] * x.shape[1]).every()
    mean = x[:, None].masked_fill(~masks, -math.inf).logsumexp(-1).mean(-1)
    (gradient,) = torch.autograd.grad(mean.sum(), x)
    return mean.detach(), gradient


def blocks(tasks: int, scale: float) -> Tensor:
    x = torch.randn(12, tasks, dtype=torch.float64, generator=torch.Generator().manual_seed(tasks))
    x = x * scale
    x[0] = 1.5  # all alike
    x[1, 0] = 30 * scale  # one far above
    x[2, -1] = -30 * scale  # one far below
    x[3] = -scale * torch.arange(tasks)  # evenly spaced
    return x


@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0, 25.0, 60.0, 1e3, 1e8])
@pytest.mark.parametrize("tasks", [2, 3, 6, 12])
def test_mean_and_gradient_equal_the_sum_over_subsets(tasks: int, scale: float) -> None:
    x = blocks(tasks, scale)
    value, gradient = pool_log_sum_exp(x)
    expected, expected_gradient = by_listing(x)
    assert ((value - expected).abs() <= 1e-11 * (1 + expected.abs())).all()
    assert (gradient - expected_gradient).abs().max() < 1e-11


@pytest.mark.parametrize("gap", [27.0, 40.0, 1e3, 1e30])
def test_blocks_far_apart_are_weighted_by_their_first_member(gap: float) -> None:
    """With 60 blocks a wide gap apart, only the highest member of a group matters."""
    tasks = 60
    x = -gap * torch.arange(tasks, dtype=torch.float64)[None]
    first = torch.exp2(tasks - 1 - torch.arange(tasks, dtype=torch.float64)) / (2.0**tasks - 1)
    value, gradient = pool_log_sum_exp(x)
    torch.testing.assert_close(gradient[0], first, rtol=0, atol=1e-11)
    torch.testing.assert_close(value[0], (first * x[0]).sum(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("tasks", [5, 50, 300])
def test_the_nodes_that_suffice_for_any_data_give_the_same_as_those_for_this_data(
    tasks: int,
) -> None:
    x, _ = pool_mean._close_gaps(blocks(tasks, 5.0).sort(dim=-1, descending=True).values)
    x = x - (x.logsumexp(-1, keepdim=True) + math.log(pool_mean._half_share(tasks)))
    near = pool_mean._integrate(x, -x.min().item())
    far = pool_mean._integrate(x, pool_mean._span(tasks) + math.log(tasks))
    assert all((a - b).abs().max() < 1e-11 for a, b in zip(near, far, strict=True))


@pytest.mark.parametrize("tasks", [2, 10, 50, 400])
def test_closing_gaps_bounds_the_span_for_any_data(tasks: int) -> None:
    wide = -1e6 * torch.arange(tasks, dtype=torch.float64)[None]
    position, _ = pool_mean._close_gaps(wide)
    assert -position.min().item() <= pool_mean._span(tasks) + 1e-9
    assert pool_mean._span(tasks) < 600


def test_the_step_keeps_the_derived_error_bound() -> None:
    frequency = 2 * math.pi / pool_mean._STEP
    assert 2 * frequency**2 * abs(gamma(-1j * frequency)) < 3e-12
    assert math.exp(2 * pool_mean._LEFT) < 1e-12
    assert math.exp(-math.exp(pool_mean._RIGHT)) < 1e-12
    assert math.exp(-math.exp(pool_mean._FLAT)) < 1e-300


def test_weights_sum_to_one_and_shifts_pass_through() -> None:
    x = blocks(40, 3.0)
    value, gradient = pool_log_sum_exp(x)
    assert (gradient.sum(-1) - 1).abs().max() < 1e-9
    assert (gradient >= 0).all()
    shifted, same = pool_log_sum_exp(x + 123.0)
    assert (shifted - value - 123.0).abs().max() < 1e-9
    assert (same - gradient).abs().max() < 1e-9


def test_equal_blocks_give_exactly_zero_and_no_gradient() -> None:
    a = blocks(30, 3.0)
    b = a.clone().requires_grad_()
    loss = pool_mean_divergence(a, b, torch.zeros_like(a))
    (gradient,) = torch.autograd.grad(loss.sum(), b)
    assert not loss.any()
    assert not gradient.any()


def test_a_second_derivative_is_refused_rather_than_wrong() -> None:
    b = blocks(4, 1.0).requires_grad_()
    loss = pool_mean_divergence(b.detach(), b, torch.zeros_like(b))
    (gradient,) = torch.autograd.grad(loss.square().sum(), b, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
