"""Minimise smooth functions, convex or of one valley.

A new class is taught in seconds, and SciPy's optimisers take half a second to import; torch's,
whose first step imports its compiler, take longer.
"""

import math
from collections import deque
from collections.abc import Callable

from torch import Tensor

_HISTORY = 20
_SUFFICIENT = 1e-4  # of the decrease that the slope promises
_SHORTEST = 1e-4  # steps below it are rounding
_GOLDEN = (math.sqrt(5) - 1) / 2


def lbfgs(
    loss: Callable[[Tensor], tuple[float, Tensor]],
    start: Tensor,
    iterations: int,
    tolerance: float,
) -> Tensor:
    """The place of the smallest loss, by L-BFGS with backtracking.

    Args:
        loss: gives its value and gradient at a place.
        start: where to begin.
        iterations: at most so many.
        tolerance: stop when no entry of the gradient is larger.
    """
    place, (value, gradient) = start, loss(start)
    pairs: deque[tuple[Tensor, Tensor]] = deque(maxlen=_HISTORY)
    for _ in range(iterations):
        if float(gradient.abs().max()) <= tolerance:
            break
        direction = _direction(gradient, pairs)
        slope, length = _dot(gradient, direction), 1.0
        while True:
            step = length * direction
            new_value, new_gradient = loss(place + step)
            if new_value <= value + _SUFFICIENT * length * slope:
                break
            length /= 2
            if length < _SHORTEST:
                return place
        change = new_gradient - gradient
        if _dot(step, change) > 0:
            pairs.append((step, change))
        place, value, gradient = place + step, new_value, new_gradient
    return place


def _direction(gradient: Tensor, pairs: deque[tuple[Tensor, Tensor]]) -> Tensor:
    """Minus the gradient times the inverse Hessian that steps and changes of gradient tell."""
    if not pairs:
        return -gradient / gradient.abs().sum()
    direction, shares = -gradient, []
    for step, change in reversed(pairs):
        shares.append(_dot(step, direction) / _dot(step, change))
        direction = direction - shares[-1] * change
    step, change = pairs[-1]
    direction = direction * (_dot(step, change) / _dot(change, change))
    for (step, change), share in zip(pairs, reversed(shares), strict=True):
        direction = direction + (share - _dot(change, direction) / _dot(step, change)) * step
    return direction


def _dot(first: Tensor, second: Tensor) -> float:
    return float(first.flatten() @ second.flatten())


def golden_section(
    loss: Callable[[float], float], low: float, high: float, tolerance: float = 1e-6
) -> float:
    """The place between ``low`` and ``high`` where a loss of one valley is smallest."""
    inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    values = [loss(place) for place in inner]
    while high - low > tolerance:
        if values[0] <= values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - _GOLDEN * (high - low)
            values[0] = loss(inner[0])
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + _GOLDEN * (high - low)
            values[1] = loss(inner[1])
    return (low + high) / 2
