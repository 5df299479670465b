"""Backbones of one's own: any module that makes features of images."""

from typing import Any

import torch
from torch import Tensor, nn

from densekd.nn.network import Backbone, Features

# The images of the trial that tells how many features a module gives.
_TRIAL = 32


class Plain(nn.Module):
    """A module that gives a tensor, as a backbone.

    Args:
        module: gives features ``[B, D]``, or maps ``[B, D, H, W]``, whose mean is then taken.
        width: D; found by a trial on images of 32 x 32 pixels unless given.
    """

    def __init__(self, module: nn.Module, width: int | None = None) -> None:
        super().__init__()
        self.module = module
        self.width = _width_of(self) if width is None else width

    def forward(self, images: Tensor) -> Features:
        """``[B, 3, H, W]`` to pooled features ``[B, D]``, and the map if the module gives one."""
        out = self.module(images)
        if isinstance(out, Tensor) and out.ndim == 4:
            return Features(out.mean((2, 3)), (out,))
        if not isinstance(out, Tensor) or out.ndim != 2:
            shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                "A backbone must give features of shape [B, D] or maps of shape [B, D, H, W], "
                f"not {shape}."
            )
        return Features(out, ())


def as_backbone(module: Any) -> Backbone:
    """A module as a backbone: itself if it has a ``width``, else what makes one of its tensor."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"A backbone must be an nn.Module, not {type(module).__name__}.")
    if isinstance(getattr(module, "width", None), int):
        backbone: Backbone = module  # type: ignore[assignment]  # it has what the protocol asks for
        return backbone
    return Plain(module)


def _width_of(plain: Plain) -> int:
    parameter = next(plain.parameters(), torch.empty(0))
    images = torch.zeros(1, 3, _TRIAL, _TRIAL, device=parameter.device, dtype=parameter.dtype)
    was_training = plain.training
    # Otherwise the trial would be in the running statistics of batch norm.
    plain.eval()
    try:
        with torch.no_grad():
            features: Features = plain(images)
    except RuntimeError as error:
        reason = next(iter(str(error).splitlines()), "").rstrip(".")
        raise ValueError(
            f"The backbone can't take images of {_TRIAL} x {_TRIAL} pixels ({reason}); say how "
            "many features it gives: densekd.nn.adapter.Plain(module, width=...)."
        ) from error
    finally:
        plain.train(was_training)
    return features.pooled.shape[1]
