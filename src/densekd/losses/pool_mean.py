"""The mean over every non-empty set of blocks, exactly, for any number of blocks.

``docs/exact-dense-distillation.md`` derives the integral, the quadrature and its error bound.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

# The trapezoid rule's step. By the bound in docs/exact-dense-distillation.md the curvature of the
# pool mean is off by at most 2 * w**2 * |Gamma(-iw)| = 3e-12, w = 2 pi / step.
_STEP = 0.3
# How far apart (in nats) two blocks must be for the lower one to stop mattering to the upper; the
# nodes reach half as far to the left. The truncation error is at most exp(-28) = 7e-13.
_NATS = 28.0
_LEFT = -_NATS / 2
# exp(-exp(3.4)) = 1e-13: past this point on the right the lowest block has been integrated.
_RIGHT = 3.4
# exp(-exp(_FLAT)) == 0 in float64, so larger exponents change nothing and must not overflow.
_FLAT = 6.7
# Nodes are evaluated in slices of about this many elements: on a CPU they fit into the cache (twice
# as fast as all at once), elsewhere into memory, at 8 MB a tensor.
_CPU_SLICE, _SLICE = 1 << 16, 1 << 20


def pool_mean_divergence(a: Tensor, b: Tensor, k: Tensor) -> Tensor:
    """Return the mean of ``KL_S`` over all 2^t - 1 groups S of blocks.

    ``KL_S = sum_{i in S} w_i (k_i + log w_i - log v_i)`` with w, v the softmaxes of a, b over S;
    its mean is ``sum_i W_i(a) (k_i + a_i - b_i) - F(a) + F(b)``, F and W of `pool_log_sum_exp`.
    See `densekd.losses.groups.Blocks` for a, b and k. The result, ``[B]``, has a gradient in b
    and k, not in a.
    """
    value, weight = pool_log_sum_exp(a.detach())
    mean: Tensor = _PoolLogSumExp.apply(b)  # type: ignore[no-untyped-call]
    return (weight * (k + a - b)).sum(-1) - value + mean


def pool_log_sum_exp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean log-sum-exp over all non-empty subsets of the columns, and its gradient.

    ``F(x) = (2^t - 1)^-1 sum_S log sum_{i in S} exp(x_i)``, ``[B]``, and ``W(x) = dF/dx``,
    ``[B, t]``, both by one integral instead of a sum over ``2^t - 1`` subsets. The rows of W are
    positive and sum to 1. x is ``[B, t]`` of any finite values.
    """
    tasks = x.shape[-1]
    ordered, order = x.sort(dim=-1, descending=True)
    position, skipped = _close_gaps(ordered)
    share = _half_share(tasks)
    centre = position.logsumexp(-1) + math.log(share)
    position = position - centre[:, None]
    reach = _span(tasks) + math.log(tasks)
    if x.device.type == "cpu":
        # Elsewhere reading the data would synchronise, so all nodes are used there.
        reach = min(reach, torch.nan_to_num(-position.min()).item())
    value, gradient = _integrate(position, reach)
    value = value + centre + ordered[:, 0] - skipped
    return value, torch.empty_like(gradient).scatter_(-1, order, gradient)


def _half_share(tasks: int) -> float:
    """Return the probability that a given task is in a uniformly drawn non-empty group."""
    return (1 << tasks - 1) / ((1 << tasks) - 1)


def _close_gaps(ordered: Tensor) -> tuple[Tensor, Tensor]:
    """Shorten wide gaps between blocks, which shifts ``F`` by a known amount and leaves ``W``.

    If all members of a set are below a wide gap, its value moves with them; no other set's value
    depends on them. So a cut changes ``F`` by its length times the probability of such a set.

    Takes rows ``[B, t]`` in descending order. Returns positions ``[B, t]`` that start at 0 and span
    at most ``_span(t)``, and by how much the cuts lower the mean, ``[B]``.
    """
    tasks = ordered.shape[-1]
    above = torch.arange(1, tasks, dtype=ordered.dtype, device=ordered.device)
    gaps = ordered[:, :-1] - ordered[:, 1:]
    # Cumulative distances, clamped where more makes no difference, so that the sums stay exact.
    depth = pad(gaps.clamp(max=4 * _NATS).cumsum(-1), (1, -1))
    # P(first member is i) e^(x_k - x_i), summed over i <= k: how much k matters to the sets above.
    needed = _NATS + (depth - math.log(2) * above).logcumsumexp(-1) - depth
    kept = torch.minimum(gaps, needed.clamp(min=0.0))
    none_above = (torch.exp2(-above) - 2.0**-tasks) / (1.0 - 2.0**-tasks)
    position = pad(-kept.cumsum(-1), (1, 0))
    return position, ((gaps - kept) * none_above).sum(-1)


def _span(tasks: int) -> float:
    """Return the widest span, in nats, that `_close_gaps` can leave ``tasks`` blocks."""
    weights = (math.log1p(math.exp(_NATS) * 2.0**-j) for j in range(2, tasks))
    return _NATS - math.log(2) + sum(weights)


def _integrate(x: Tensor, reach: float) -> tuple[Tensor, Tensor]:
    """Compute `pool_log_sum_exp` of blocks above ``-reach`` whose mean group sum is 1."""
    tasks = x.shape[-1]
    nodes = math.ceil((_RIGHT + reach - _LEFT) / _STEP) + 1
    r = _LEFT + _STEP * torch.arange(nodes, dtype=x.dtype, device=x.device)
    scale = 2 * _half_share(tasks)
    empty = 2.0**-tasks * scale
    columns = x.T.contiguous()[:, None]
    value = torch.zeros_like(x[:, 0])
    gradient = torch.zeros_like(x.T)
    elements = _CPU_SLICE if x.device.type == "cpu" else _SLICE
    for part in r.split(max(1, elements // x.numel())):
        z = (columns + part[:, None]).clamp_(max=_FLAT).exp_()  # [t, nodes, B]
        q = z.neg().exp_()
        factor = q + 1.0
        product = (factor * 0.5).prod(0).mul_(scale)
        mean = torch.exp(-part.exp())[:, None]
        value += (mean - (product - empty)).sum(0)
        gradient += z.mul_(q).div_(factor).mul_(product).sum(1)
    gradient *= _STEP
    # The mean group sum places the nodes and moves with x: add this part, so that the gradient sums
    # to 1.
    gradient += (1.0 - gradient.sum(0)) * _half_share(tasks) * columns[:, 0].exp()
    return _STEP * value, gradient.T


class _PoolLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        value, gradient = pool_log_sum_exp(x)
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        gradient: Tensor
        (gradient,) = ctx.saved_tensors
        return upstream[:, None] * gradient
