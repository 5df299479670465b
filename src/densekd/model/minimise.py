"""Minimise smooth functions that are convex or have a single minimum.

A new class is taught in seconds, but SciPy's optimisers take half a second to import, and torch's
take longer, since their first step imports its compiler.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

_HISTORY = 20
_SUFFICIENT = 1e-4  # a step must reach this share of the decrease that the slope predicts
_SHORTEST = 1e-4  # what shorter steps gain is rounding error
_GOLDEN = (math.sqrt(5) - 1) / 2
_NARROW = 1e-6  # the search ends when the interval is this narrow


def lbfgs(
    loss: Callable[[Tensor], tuple[float, Tensor]],
    start: Tensor,
    iterations: int,
    tolerance: float,
) -> Tensor:
    """Find where a loss is smallest, by L-BFGS with backtracking.

    Args:
        loss: gives its value and gradient at a place.
        start: where to begin.
        iterations: the largest number of steps.
        tolerance: stop when no entry of the gradient is larger.
    """
    place, (value, gradient) = start, loss(start)
    past: deque[_Step] = deque(maxlen=_HISTORY)
    for _ in range(iterations):
        if float(gradient.abs().max()) <= tolerance:
            break
        direction = _direction(gradient.flatten(), past).view_as(gradient)
        slope, length = float(gradient.flatten() @ direction.flatten()), 1.0
        while True:
            step = length * direction
            new_value, new_gradient = loss(place + step)
            if new_value <= value + _SUFFICIENT * length * slope:
                break
            length /= 2
            if length < _SHORTEST:
                return place
        moved, change = step.flatten(), (new_gradient - gradient).flatten()
        curvature = float(moved @ change)
        if curvature > 0:
            past.append(_Step(moved, change, curvature))
        place, value, gradient = place + step, new_value, new_gradient
    return place


class _Step(NamedTuple):
    """A past step, and the curvature that it measured."""

    moved: Tensor
    change: Tensor  # of the gradient
    curvature: float  # the dot product of both


def _direction(gradient: Tensor, past: deque[_Step]) -> Tensor:
    """Minus the gradient times the inverse Hessian, as estimated from the past steps."""
    if not past:
        return -gradient / gradient.abs().sum()
    direction, shares = -gradient, []
    for moved, change, curvature in reversed(past):
        shares.append(float(moved @ direction) / curvature)
        direction.sub_(change, alpha=shares[-1])
    _, change, curvature = past[-1]
    direction.mul_(curvature / float(change @ change))
    for (moved, change, curvature), share in zip(past, reversed(shares), strict=True):
        direction.add_(moved, alpha=share - float(change @ direction) / curvature)
    return direction


def golden_section(loss: Callable[[float], float], low: float, high: float) -> float:
    """Find the only minimum of a loss between ``low`` and ``high``."""
    inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    values = [loss(place) for place in inner]
    while high - low > _NARROW:
        if values[0] <= values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - _GOLDEN * (high - low)
            values[0] = loss(inner[0])
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + _GOLDEN * (high - low)
            values[1] = loss(inner[1])
    return (low + high) / 2
