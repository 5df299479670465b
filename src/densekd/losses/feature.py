"""Distances between the features of student and teacher: UCIR's, PODNet's and AFC's.

All return a scalar: 0, with a gradient of 0, where the two agree, as they do when a task begins.
They compute in at least float32. No gradient flows into the teacher.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from densekd.losses.checks import widened
from densekd.precision import working_dtype

# Features shorter than this are divided by it, not by their length, which bounds the gradient.
_SHORTEST = 1e-6


def less_forget(student: Tensor, teacher: Tensor) -> Tensor:
    """Return UCIR's less-forget constraint, also PODNet's POD-flat: ``1 - cos(f, g)``.

    It is the mean over images of pooled features ``[B, D]``, computed as
    ``|f/|f| - g/|g||^2 / 2``: the same number, but precise where f is near g.
    """
    if student.ndim != 2 or student.numel() == 0 or student.shape != teacher.shape:
        raise ValueError(
            "The features of student and teacher must both be [images, D], not "
            f"{list(student.shape)} and {list(teacher.shape)}."
        )
    f, g = (normalize(widened(x), dim=1, eps=_SHORTEST) for x in (student, teacher.detach()))
    return (f - g).square().sum(1).mean() / 2


def pod_spatial(student_maps: Sequence[Tensor], teacher_maps: Sequence[Tensor]) -> Tensor:
    """Return PODNet's POD-spatial: ``|p(x) - p(y)|``, the mean over images, then over maps.

    p squares a map, sums it over its width and over its height, concatenates both for all
    channels, ``C (H + W)`` numbers, and divides them by their Euclidean norm. The maps,
    ``[B, C, H, W]`` each, are the last of each stage, before its ReLU.
    """
    _check_maps(student_maps, teacher_maps)
    pairs = zip(student_maps, teacher_maps, strict=True)
    losses = [(_profile(x) - _profile(y.detach())).norm(dim=1).mean() for x, y in pairs]
    return torch.stack(losses).mean()


def _profile(maps: Tensor) -> Tensor:
    """``[B, C, H, W]`` to unit vectors ``[B, C (H + W)]``."""
    squares = widened(maps).square()
    return normalize(torch.cat([squares.sum(3), squares.sum(2)], dim=2).flatten(1), dim=1)


def channel_distance(
    student_maps: Sequence[Tensor], teacher_maps: Sequence[Tensor], importance: Sequence[Tensor]
) -> Tensor:
    """Return AFC's distance: ``w_c |q(x_c) - q(y_c)|``, the mean over images, channels, layers.

    q squares a channel of a map and divides its ``H W`` numbers by their Euclidean norm. The maps,
    ``[B, C, H, W]`` each, are the last of each stage. The importance w is ``[C]`` for each layer,
    scaled by `normalised`.
    """
    _check_maps(student_maps, teacher_maps)
    channels = [list(x.shape[1:2]) for x in student_maps]
    if [list(w.shape) for w in importance] != channels:
        raise ValueError(
            f"importance must have a number for each channel, shapes {channels}, not "
            f"{[list(w.shape) for w in importance]}."
        )
    losses = []
    for x, y, w in zip(student_maps, teacher_maps, importance, strict=True):
        distance = (_channels(x) - _channels(y.detach())).norm(dim=2)
        losses.append((distance * w.detach().to(distance)).mean())
    return torch.stack(losses).mean()


def _channels(maps: Tensor) -> Tensor:
    """``[B, C, H, W]`` to unit vectors ``[B, C, H W]``."""
    return normalize(widened(maps).square().flatten(2), dim=2)


def channel_importance(gradients: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return one batch's share of AFC's channel importance: ``sum_x sum_{h, w} (dL / dx_c)^2``.

    The gradients are of the classification loss with respect to each stage's last map,
    ``[B, C, H, W]``. Sum the result, ``[C]`` for each layer, over batches; then use `normalised`.
    """
    for gradient in gradients:
        _check_map("gradients", gradient)
    # The squares of small gradients underflow in float32.
    wide = (gradient.detach().to(working_dtype(gradient.device)) for gradient in gradients)
    return tuple(gradient.square().sum((0, 2, 3)) for gradient in wide)


def normalised(importance: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Scale the importance ``[C]`` of each layer to a mean of 1; all 1 if it is 0 everywhere."""
    means = [layer.mean() for layer in importance]
    pairs = zip(importance, means, strict=True)
    return tuple(torch.where(mean == 0, 1.0, layer / mean) for layer, mean in pairs)


def _check_maps(student_maps: Sequence[Tensor], teacher_maps: Sequence[Tensor]) -> None:
    shapes = [[list(x.shape) for x in maps] for maps in (student_maps, teacher_maps)]
    if not shapes[0] or shapes[0] != shapes[1]:
        raise ValueError(
            "Student and teacher must have maps of the same shapes, at least one, not "
            f"{shapes[0]} and {shapes[1]}."
        )
    for x in student_maps:
        _check_map("maps", x)


def _check_map(name: str, x: Tensor) -> None:
    if x.ndim != 4 or x.numel() == 0:
        raise ValueError(f"The {name} must be [images, channels, H, W], not {list(x.shape)}.")
