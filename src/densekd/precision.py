"""The floating-point type for computations that need many digits."""

import torch


def working_dtype(device: torch.device) -> torch.dtype:
    """float64, or float32 on Apple's ``mps``, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
