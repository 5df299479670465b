"""Floating-point precision, and whether to compile."""

from typing import Literal

import torch

Precision = Literal["auto", "32", "bf16", "fp16"]
Compile = Literal["auto", "off", "on"]
# The types that autocast computes in; for ``32`` it is off.
AUTOCAST_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def working_dtype(device: torch.device) -> torch.dtype:
    """float64, or float32 on Apple's ``mps``, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
