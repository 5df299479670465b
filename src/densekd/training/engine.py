"""Device, precision, memory layout and ranks, through Lightning Fabric."""

from collections.abc import Sequence
from typing import get_args

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor, nn

from densekd.checks import check_choice
from densekd.data.batches import RankShare
from densekd.precision import Precision


class Engine:
    """Runs training in one process or several, on any device.

    Args:
        accelerator: ``auto``, ``cpu``, ``cuda``, ``mps`` or any other that Fabric knows.
        devices: how many processes share each batch, each on its own device.
        precision: ``bf16`` for autocast to bfloat16, ``32`` for none, ``auto`` for the faster.
    """

    def __init__(
        self, accelerator: str = "auto", devices: int = 1, precision: Precision = "auto"
    ) -> None:
        check_choice("precision", precision, get_args(Precision))
        # `average_buffers` averages batch norm's running statistics once an epoch instead.
        ddp = DDPStrategy(forward_sync_buffers=False)
        strategy = "auto" if devices == 1 else ddp
        self.fabric = Fabric(accelerator=accelerator, devices=devices, strategy=strategy)
        kind = self.fabric.device.type
        bf16 = precision == "bf16" or (precision == "auto" and has_fast_bf16(kind))
        self.precision = "bf16" if bf16 else "32"
        self.channels_last = kind in ("cpu", "cuda")

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.fabric.device

    @property
    def share(self) -> RankShare:
        """This process's part of each batch."""
        return RankShare(self.fabric.global_rank, self.fabric.world_size)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files and reports progress."""
        return self.fabric.global_rank == 0

    def place(self, module: nn.Module) -> None:
        """Move a module to the device, and its convolutions to the faster memory layout."""
        module.to(self.device)
        if self.channels_last:
            # torch's type hints lack `to` with a memory format alone.
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def lay_out(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` in the faster memory layout."""
        if not self.channels_last:
            return images
        return images.contiguous(memory_format=torch.channels_last)

    def autocast(self) -> torch.autocast:
        """A context that computes in the engine's precision."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def average_buffers(self, module: nn.Module) -> None:
        """Average a module's floating-point buffers over all ranks."""
        if self.fabric.world_size > 1:
            for buffer in module.buffers():
                if buffer.is_floating_point():
                    buffer.copy_(self.total(buffer) / self.fabric.world_size)

    def total(self, values: Tensor) -> Tensor:
        """The sum over all ranks."""
        total = self.fabric.all_reduce(values, reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

    def broadcast(self, value: bool) -> bool:
        """The value of rank 0; all ranks wait for it."""
        return bool(self.fabric.broadcast(value))

    def describe(self) -> dict[str, object]:
        """What a run record says about the computation."""
        return {
            "device": str(self.device.type),
            "devices": self.fabric.world_size,
            "precision": self.precision,
            "channels_last": self.channels_last,
            "threads": torch.get_num_threads(),
        }


def has_fast_bf16(kind: str) -> bool:
    """Whether a kind of device computes bfloat16 in hardware; emulation is far slower."""
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    has = torch.cpu.get_capabilities() if kind == "cpu" else {}
    return any(has.get(feature, False) for feature in ("avx512_bf16", "amx_bf16", "bf16"))


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether all numbers are finite; waits for the device once."""
    norms = torch._foreach_norm(list(tensors), torch.inf)
    return bool(torch.stack([norm.float() for norm in norms]).isfinite().all())
