"""Use any module that maps images to features as a backbone."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from densekd.nn.network import Backbone, Features
from densekd.parts import OwnPartError, display_name, explain_errors, line_of
from densekd.text import first_line


class _WrongOutput(ValueError):
    """A module returned something other than features."""


class BackboneAdapter(nn.Module):
    """A backbone made of a module that returns one tensor.

    Args:
        module: returns features ``[B, D]``, or maps ``[B, D, H, W]`` that are then averaged.
        width: D; unless given, found by running the module on an image.
        size: the height and width of that image; by default 32 x 32.
    """

    def __init__(
        self, module: nn.Module, width: int | None = None, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.module = module
        self.finds_width = width is None
        self.width = _try(self, size).shape[1] if width is None else width

    def forward(self, images: Tensor) -> Features:
        """``[B, 3, H, W]`` to pooled features ``[B, D]``, and the map if there is one."""
        out = self.module(images)
        if isinstance(out, Tensor) and out.ndim == 4:
            return Features(out.mean((2, 3)), (out,))
        if not isinstance(out, Tensor) or out.ndim != 2:
            shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise _WrongOutput(
                f"A backbone must return features [B, D] or maps [B, D, H, W], not {shape}."
            )
        return Features(out, ())


def width_at(backbone: Any, size: tuple[int, int] | None = None) -> int:
    """The number of features that a backbone has for images of a size.

    Found by running it on an image, except for this package's own and adapters with a given width.

    Raises:
        ValueError: it can't take such images, or has another width than it says.
    """
    finds = getattr(backbone, "finds_width", False)
    if type(backbone).__module__.startswith("densekd.") and not finds:
        return int(backbone.width)
    features = _try(backbone, size).shape[1]
    if features != backbone.width and not finds:
        raise ValueError(f"A backbone says its width is {backbone.width}, but it has {features}.")
    return features


def as_backbone(module: Any, size: tuple[int, int] | None = None) -> Backbone:
    """Return the module itself if it has a ``width``, otherwise wrapped as a backbone.

    ``size`` is the height and width of the images; by default 32 x 32.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"A backbone must be an nn.Module, not {type(module).__name__}.")
    if isinstance(getattr(module, "width", None), int):
        backbone: Backbone = module  # type: ignore[assignment]
        return backbone
    return BackboneAdapter(module, size=size)


def as_lazy_backbone(module: Any) -> Backbone:
    """Like `as_backbone`, but a module that can't take 32 x 32 images gets the width 1 for now."""
    try:
        return as_backbone(module)
    except ValueError:
        if not isinstance(module, nn.Module):
            raise
    backbone = BackboneAdapter(module, width=1)
    backbone.finds_width = True
    return backbone


def own_backbone(name: str, value: object, size: tuple[int, int] | None = None) -> Backbone:
    """Make a backbone from a module, which is copied, or from a function or class that makes one.

    Raises:
        OwnPartError: it can't be used for images of ``size``; the message calls it ``name``.
    """
    name = display_name(name, "network")
    with explain_errors(name):
        made = copy.deepcopy(value) if isinstance(value, nn.Module) else value
        made = made() if callable(made) and not isinstance(made, nn.Module) else made
    try:
        backbone = as_backbone(made, size)
        width_at(backbone, size)
    except ValueError as error:
        raise OwnPartError(f"{name} can't be used: {first_line(error)}.") from error
    return backbone


def _try(backbone: Any, size: tuple[int, int] | None) -> Tensor:
    """The pooled features of a zero image, ``[1, D]``."""
    height, width = size or (32, 32)
    parameter = next(backbone.parameters(), torch.empty(0))
    images = torch.zeros(1, 3, height, width, device=parameter.device, dtype=parameter.dtype)
    was_training = backbone.training
    # Otherwise the trial would change the running statistics of batch norm.
    backbone.eval()
    try:
        with torch.no_grad():
            features = backbone(images)
    except _WrongOutput:
        raise
    except Exception as error:
        raise ValueError(
            f"The backbone can't take images of {height} x {width} pixels "
            f"({type(error).__name__}{line_of(error)}: {first_line(error)}); change it, or state "
            "its features: densekd.nn.adapter.BackboneAdapter(module, width=...)."
        ) from error
    finally:
        backbone.train(was_training)
    pooled = getattr(features, "pooled", None)
    if not isinstance(pooled, Tensor):
        given = type(features if pooled is None else pooled).__name__
        raise ValueError(f"A backbone with a width must return densekd.Features, not {given}.")
    if pooled.ndim != 2 or len(pooled) != 1:
        raise ValueError(f"A backbone must return features [B, D], not {list(pooled.shape)}.")
    if pooled.dtype != torch.float32:
        raise ValueError(f"A backbone must return features in float32, not {pooled.dtype}.")
    return pooled
