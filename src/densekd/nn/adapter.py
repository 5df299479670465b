"""Use any module that maps images to features as a backbone."""

from typing import Any

import torch
from torch import Tensor, nn

from densekd.checks import first_line
from densekd.nn.network import Backbone, Features

# The height and width of the zero image that tells how many features a module returns.
_TRIAL = 32


class BackboneAdapter(nn.Module):
    """A backbone made of a module that returns one tensor.

    Args:
        module: returns features ``[B, D]``, or maps ``[B, D, H, W]`` that are then averaged.
        width: D; unless given, found by running the module on an image of 32 x 32 pixels.
    """

    def __init__(self, module: nn.Module, width: int | None = None) -> None:
        super().__init__()
        self.module = module
        self.width = _width_of(self) if width is None else width

    def forward(self, images: Tensor) -> Features:
        """``[B, 3, H, W]`` to pooled features ``[B, D]``, and the map if there is one."""
        out = self.module(images)
        if isinstance(out, Tensor) and out.ndim == 4:
            return Features(out.mean((2, 3)), (out,))
        if not isinstance(out, Tensor) or out.ndim != 2:
            shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"A backbone must return features [B, D] or maps [B, D, H, W], not {shape}."
            )
        return Features(out, ())


def as_backbone(module: Any) -> Backbone:
    """Return the module itself if it has a ``width``, otherwise wrapped as a backbone."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"A backbone must be an nn.Module, not {type(module).__name__}.")
    if isinstance(getattr(module, "width", None), int):
        backbone: Backbone = module  # type: ignore[assignment]
        return backbone
    return BackboneAdapter(module)


def _width_of(adapter: BackboneAdapter) -> int:
    parameter = next(adapter.parameters(), torch.empty(0))
    images = torch.zeros(1, 3, _TRIAL, _TRIAL, device=parameter.device, dtype=parameter.dtype)
    was_training = adapter.training
    # Otherwise the trial would change the running statistics of batch norm.
    adapter.eval()
    try:
        with torch.no_grad():
            features: Features = adapter(images)
    except RuntimeError as error:
        raise ValueError(
            f"The backbone can't take images of {_TRIAL} x {_TRIAL} pixels ({first_line(error)}); "
            "state its features: densekd.nn.adapter.BackboneAdapter(module, width=...)."
        ) from error
    finally:
        adapter.train(was_training)
    return features.pooled.shape[1]
