"""Which floating-point type to compute in where digits are few."""

import torch


def working_dtype(device: torch.device) -> torch.dtype:
    """float64, or float32 on the one kind of device that has no float64 (Apple's ``mps``)."""
    return torch.float32 if device.type == "mps" else torch.float64
