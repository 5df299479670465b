"""Where and how it is computed: device, precision, memory layout, ranks. All through Fabric."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor, nn

from densekd.checks import check_choice
from densekd.data.batches import RankShare

Precision = Literal["auto", "32", "bf16"]


class Engine:
    """One process or several, on whatever device there is.

    Args:
        accelerator: ``auto``, ``cpu``, ``cuda``, ``mps``, as Fabric calls them.
        devices: how many processes share a batch, each with a device of its own.
        precision: ``bf16`` for autocast to bfloat16, ``32`` for none, ``auto`` for what
            the device is faster with.
    """

    def __init__(
        self, accelerator: str = "auto", devices: int = 1, precision: Precision = "auto"
    ) -> None:
        check_choice("precision", precision, get_args(Precision))
        # Batch norm's running statistics are averaged by `average_buffers`, once an epoch.
        ddp = DDPStrategy(forward_sync_buffers=False)
        strategy = "auto" if devices == 1 else ddp
        self.fabric = Fabric(accelerator=accelerator, devices=devices, strategy=strategy)
        kind = self.fabric.device.type
        bf16 = precision == "bf16" or (precision == "auto" and gains_by_bf16(kind))
        self.precision = "bf16" if bf16 else "32"
        self.channels_last = kind in ("cpu", "cuda")

    def launch(self) -> None:
        """Start the other processes, if there are to be several."""
        self.fabric.launch()

    @property
    def device(self) -> torch.device:
        """Where tensors go."""
        return self.fabric.device

    @property
    def share(self) -> RankShare:
        """This process's part of each batch."""
        return RankShare(self.fabric.global_rank, self.fabric.world_size)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and reports."""
        return self.fabric.global_rank == 0

    def placed(self, module: nn.Module) -> None:
        """Move a module to the device, convolutions in the layout that is faster."""
        module.to(self.device)
        if self.channels_last:
            # mypy is not told by torch that `to` takes a memory format alone.
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def laid_out(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` in the layout that is faster."""
        return (
            images.contiguous(memory_format=torch.channels_last) if self.channels_last else images
        )

    def autocast(self) -> torch.autocast:
        """A context that computes in the precision chosen."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def average_buffers(self, module: nn.Module) -> None:
        """Make running statistics the same on all ranks, by their mean."""
        if self.fabric.world_size > 1:
            for buffer in module.buffers():
                if buffer.is_floating_point():
                    buffer.copy_(self.total(buffer) / self.fabric.world_size)

    def total(self, values: Tensor) -> Tensor:
        """The sum over ranks."""
        total = self.fabric.all_reduce(values, reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

    def agreed(self, value: bool) -> bool:
        """What the first process says."""
        return bool(self.fabric.broadcast(value))

    def describe(self) -> dict[str, object]:
        """What a run record states of how it was computed."""
        return {
            "device": str(self.device.type),
            "devices": self.fabric.world_size,
            "precision": self.precision,
            "channels_last": self.channels_last,
            "threads": torch.get_num_threads(),
        }


def gains_by_bf16(kind: str) -> bool:
    """Whether a kind of device multiplies bfloat16 in hardware; emulated, it is far slower."""
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    has = torch.cpu.get_capabilities() if kind == "cpu" else {}
    return any(has.get(feature, False) for feature in ("avx512_bf16", "amx_bf16", "bf16"))


def finite(tensors: Sequence[Tensor]) -> bool:
    """Whether all numbers are finite; waits for the device once."""
    norms = torch._foreach_norm(list(tensors), torch.inf)
    return bool(torch.stack([norm.float() for norm in norms]).isfinite().all())
