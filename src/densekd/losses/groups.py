"""The divergence on groups of tasks, from three numbers per task and image.

A class's probability within a group is its task's probability within the group times its own within
the task. So a group's divergence needs only `Blocks`, not all logits.
"""

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid

from densekd.precision import working_dtype


class Layout(NamedTuple):
    """Which columns belong to which task."""

    block: Tensor  # [N], the task of each class
    members: Tensor  # [N, t], 1 where the class belongs to the task, else 0


def _make_layout(sizes: tuple[int, ...], device: torch.device) -> Layout:
    tasks = [torch.full((size,), task, device=device) for task, size in enumerate(sizes)]
    block = torch.cat(tasks)
    members = block[:, None] == torch.arange(len(sizes), device=device)
    return Layout(block, members.to(working_dtype(device)))


@functools.lru_cache(maxsize=64)
def _kept_layout(sizes: tuple[int, ...], device: torch.device) -> Layout:
    # A tensor made in inference mode can't be used in training later.
    with torch.inference_mode(False):
        return _make_layout(sizes, device)


def layout_of(sizes: tuple[int, ...], device: torch.device) -> Layout:
    """Return the layout of these tasks; cached, since copying to an accelerator synchronises."""
    if torch.compiler.is_compiling():
        return _make_layout(sizes, device)
    return _kept_layout(sizes, device)


class Blocks(NamedTuple):
    """What a group's divergence is computed from: three numbers per image and task, ``[B, t]``."""

    a: Tensor  # lse of the teacher's logits
    b: Tensor  # lse of the student's logits
    k: Tensor  # KL(teacher || student) within the task

    @classmethod
    def of(
        cls, student: Tensor, teacher: Tensor, sizes: tuple[int, ...], temperature: float
    ) -> "Blocks":
        """Compute them from logits ``[B, N]`` over the old classes, divided by ``temperature``.

        For KL(student || teacher), swap the two; either may need a gradient.
        """
        # KL of nearly equal distributions is a small difference of large terms: float64 keeps
        # it to 1e-5 where float32 would lose it.
        layout = layout_of(sizes, student.device)
        dtype = working_dtype(student.device)
        v = student.to(dtype) / temperature
        u = teacher.to(dtype) / temperature
        a = _block_log_sum_exp(u, layout)
        b = _block_log_sum_exp(v, layout)
        log_p = u - a[:, layout.block]
        log_q = v - b[:, layout.block]
        return cls(a, b, _divergence_terms(log_p, log_q) @ layout.members)


def _divergence_terms(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return non-negative terms whose sum over a distribution is KL(p || q).

    ``p (d + exp(-d) - 1)`` with ``d = log p - log q``, which is ``p d + (q - p)``; the added part
    sums to zero. So nothing cancels where q is near p, neither here nor in the gradient, ``q - p``.
    """
    p, d = log_p.exp(), log_p - log_q
    near = d.clamp(-1, 1)
    far = p * (d - 1) + log_q.exp()
    return torch.where(d.abs() < 1, p * (near + torch.expm1(-near)), far)


def _block_log_sum_exp(x: Tensor, layout: Layout) -> Tensor:
    """Return ``lse`` of each block of columns: ``[B, N]`` to ``[B, t]``."""
    index = layout.block.expand_as(x)
    lowest = x.new_full((len(x), layout.members.shape[1]), -math.inf)
    top = lowest.scatter_reduce(1, index, x.detach(), "amax")
    return top + ((x - top[:, layout.block]).exp() @ layout.members).log()


def masked_divergence(blocks: Blocks, masks: Tensor) -> Tensor:
    """Return the KL of each masked group: ``[G, t]`` or ``[B, G, t]`` masks to ``[B, G]``.

    By the chain rule, ``KL_S = sum_{i in S} w_i (k_i + log w_i - log v_i)``, where w and v are
    the softmaxes of a and b over the tasks in S.
    """
    a, b, k = (x[:, None] for x in blocks)
    log_w = a - a.masked_fill(~masks, -math.inf).logsumexp(-1, keepdim=True)
    log_v = b - b.masked_fill(~masks, -math.inf).logsumexp(-1, keepdim=True)
    w = log_w.masked_fill(~masks, -math.inf).exp()
    # Equal numbers outside the group give a term of zero and no gradient.
    between = _divergence_terms(log_w.masked_fill(~masks, 0.0), log_v.masked_fill(~masks, 0.0))
    return (w * k + between).sum(-1)


def listed_divergence(blocks: Blocks) -> Tensor:
    """Return the KL of every group, ``[B, 2^t - 1]`` in the order of `TaskPool.every`.

    Each task doubles the list: the groups without it, the task by itself, the groups joined with
    it. That is O(1) for a group, and stable however far apart the blocks are.
    """
    lse_a, lse_b, kl = (x[:, :1] for x in blocks)
    columns = zip(*(x.split(1, dim=1) for x in blocks), strict=True)
    for a, b, k in list(columns)[1:]:
        joined_kl, joined_b = _Join.apply(lse_a, lse_b, kl, a, b, k)  # type: ignore[no-untyped-call]
        kl = torch.cat([kl, k, joined_kl], dim=1)
        lse_b = torch.cat([lse_b, b, joined_b], dim=1)
        lse_a = torch.cat([lse_a, a, torch.logaddexp(lse_a, a)], dim=1)
    return kl


class _Join(torch.autograd.Function):
    """Join one task to many groups, by the chain rule for two parts.

    With w and v the teacher's and the student's share of the group in the union,
    ``KL = w KL_group + (1 - w) KL_task + KL(w || v)``.
    """

    @staticmethod
    def forward(  # noqa: PLR0913 - two groups of three
        ctx: Any, lse_a: Tensor, lse_b: Tensor, kl: Tensor, a: Tensor, b: Tensor, k: Tensor
    ) -> tuple[Tensor, Tensor]:
        x, y = lse_a - a, lse_b - b
        w, v = x.sigmoid(), y.sigmoid()
        # The slope in x is needed only if teacher and student are swapped.
        slope = w * (-x).sigmoid() * (kl - k + x - y) if ctx.needs_input_grad[0] else None
        ctx.save_for_backward(w, v, slope)
        joined = w * kl + (-x).sigmoid() * k + _binary_divergence(x, y)
        return joined, torch.logaddexp(lse_b, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_kl: Tensor, to_lse: Tensor) -> tuple[Tensor | None, ...]:
        w, v, slope = ctx.saved_tensors
        to_group = to_kl * (v - w) + to_lse * v
        to_task = (to_lse - to_group).sum(1, keepdim=True)
        to_k = (to_kl - to_kl * w).sum(1, keepdim=True)
        if slope is None:
            return None, to_group, to_kl * w, None, to_task, to_k
        to_x = to_kl * slope
        return to_x, to_group, to_kl * w, -to_x.sum(1, keepdim=True), to_task, to_k


def _binary_divergence(x: Tensor, y: Tensor) -> Tensor:
    """Return KL of two Bernoulli distributions with log-odds x and y, precise for near x and y."""
    low = -x.abs()  # the teacher's log-odds of its less likely outcome
    d = torch.where(x > 0, x - y, y - x)
    share = low.sigmoid()
    near = torch.log1p(share * torch.expm1(d.clamp(max=1)))
    far = logsigmoid(-low) - logsigmoid(-low - d)
    return torch.where(d < 1, near, far) - share * d
