"""Device, precision, memory layout, compilation and ranks, through Lightning Fabric."""

import copy
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import get_args

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor, nn

from densekd.checks import check_choice
from densekd.data.batches import RankShare
from densekd.nn.network import Features, Network, Outputs
from densekd.precision import AUTOCAST_TYPES, Compile, Precision


class Engine:
    """Runs training in one process or several, on any device.

    Args:
        accelerator: ``auto``, ``cpu``, ``cuda``, ``mps`` or any other that Fabric knows.
        devices: how many processes of this machine share each batch, each on its own device.
        precision: ``bf16`` or ``fp16`` for autocast to that type, ``32`` for none, ``auto`` for
            what the device is fast in.
        nodes: how many machines share each batch, each with as many processes.
        compile: compile backbones by ``torch.compile`` for training; ``auto`` never does.
    """

    def __init__(
        self,
        accelerator: str = "auto",
        devices: int = 1,
        precision: Precision = "auto",
        nodes: int = 1,
        compile: Compile = "auto",
    ) -> None:
        check_choice("precision", precision, get_args(Precision))
        check_choice("compile", compile, get_args(Compile))
        if not has_accelerator(accelerator):
            raise ValueError(
                f"This computer has no {accelerator} that PyTorch can use; choose auto or cpu."
            )
        # `average_buffers` averages batch norm's running statistics once an epoch instead.
        ddp = DDPStrategy(forward_sync_buffers=False)
        strategy = "auto" if devices * nodes == 1 else ddp
        self.devices, self.nodes = devices, nodes
        self.fabric = Fabric(
            accelerator=accelerator, devices=devices, num_nodes=nodes, strategy=strategy
        )
        kind = self.fabric.device.type
        self.precision = fast_precision(kind) if precision == "auto" else precision
        self.channels_last = kind in ("cpu", "cuda")
        self.compiles, self._compiled = compile == "on", False

    def launch(self) -> None:
        """Start the other processes of this machine, or join those that a launcher has started.

        Raises ValueError if the launcher has started another number of them.
        """
        started = _started_processes()
        if started not in (None, self.devices * self.nodes):
            raise ValueError(
                f"{started} processes were started, but the settings are for {self.devices} on "
                f"each of {self.nodes} machines; give --devices and --nodes as to the launcher."
            )
        self.fabric.launch()

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
        dtype = AUTOCAST_TYPES.get(self.precision)
        return torch.autocast(self.device.type, dtype or torch.bfloat16, enabled=dtype is not None)

    def make_scaler(self) -> torch.amp.GradScaler:
        """Make a scaler that keeps fp16 gradients from vanishing; otherwise it does nothing."""
        return torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Seed torch's global generators, from which networks draw; restore them afterwards.

        The generator of Apple's ``mps`` is not restored.
        """
        kind = self.device.type
        with torch.random.fork_rng([self.device] if kind == "cuda" else []):
            # Not `torch.manual_seed`, which takes 0.1 ms where CUDA is not in use.
            torch.default_generator.manual_seed(seed)
            if kind == "cuda":
                torch.cuda.manual_seed(seed)
            elif kind == "mps":
                torch.mps.manual_seed(seed)
            yield

    def in_float32(self) -> "Engine":
        """The same engine without autocast, whose results depend less on the processor."""
        other = copy.copy(self)
        other.precision = "32"
        return other

    def forward(self, network: Network) -> Callable[[Tensor], Outputs]:
        """A function from images to a network's outputs, compiled if the engine compiles.

        The classifier isn't compiled, so that the same code serves all tasks. All sizes are
        dynamic: code made for the sizes seen so far would make a resumed run compute differently.
        """
        if not self.compiles:
            return network.__call__
        if not self._compiled:
            _check_compiler()
            # Code that other engines compiled in this process would count towards torch's limit.
            torch.compiler.reset()
            self._compiled = True
        backbone: Callable[[Tensor], Features] = network.backbone
        compiled = torch.compile(backbone, dynamic=True)
        return lambda images: network.classify(compiled(images))

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

    def gather(self, rows: Tensor, index: Tensor, count: int) -> Tensor:
        """All ranks' rows ``[n, D]``, each at its index, as ``[count, D]`` on the CPU."""
        every = rows.new_zeros(count, rows.shape[1])
        every[index.to(rows.device)] = rows
        return self.total(every).cpu()

    def broadcast(self, value: bool) -> bool:
        """The value of rank 0; all ranks wait for it."""
        return bool(self.fabric.broadcast(value))

    def check_agreement(self, facts: Mapping[str, object]) -> None:
        """Raise ValueError on all ranks if a fact is not the same on all of them.

        It compares the facts that the first rank has.
        """
        if self.fabric.world_size == 1:
            return
        first = self.fabric.broadcast(dict(facts))
        wrong = torch.tensor([facts.get(name) != value for name, value in first.items()])
        counts = self.total(wrong.long().to(self.device)).tolist()
        if names := [name for name, count in zip(first, counts, strict=True) if count]:
            raise ValueError(
                f"The processes of this run don't have the same {' and '.join(names)}; start all "
                "of them with the same command, code, data and folder of runs."
            )

    def describe(self) -> dict[str, object]:
        """The engine's entry in a run record.

        It is part of the hash that names the folders of shared bases and teachers. So that old
        names stay valid, facts that later versions added are left out at their default.
        """
        return {
            "device": str(self.device.type),
            "devices": self.fabric.world_size,
            "precision": self.precision,
            "channels_last": self.channels_last,
            "threads": torch.get_num_threads(),
            **({"nodes": self.nodes} if self.nodes > 1 else {}),
            **({"compiled": True} if self.compiles else {}),
        }


def fast_precision(kind: str) -> Precision:
    """The precision that a kind of device is fast in; bf16 before fp16, for its larger range."""
    if has_fast_bf16(kind):
        return "bf16"
    return "fp16" if kind == "cuda" else "32"


def has_accelerator(kind: str) -> bool:
    """Whether this computer has ``cuda`` or ``mps``; True for other kinds, which Fabric checks."""
    if kind == "cuda":
        return torch.cuda.is_available()
    return kind != "mps" or torch.backends.mps.is_available()


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


def _started_processes() -> int | None:
    """How many processes torchrun or SLURM's srun has started; None if none of them has."""
    for sign, count in (("TORCHELASTIC_RUN_ID", "WORLD_SIZE"), ("SLURM_STEP_ID", "SLURM_NTASKS")):
        if sign in os.environ and count in os.environ:
            return int(os.environ[count])
    return None


def _check_compiler() -> None:
    names = [os.environ.get("CXX", "g++"), "g++", "clang++"]
    if not any(map(shutil.which, names)):
        raise ValueError(
            "engine.compile needs a C++ compiler, and there is neither g++ nor clang++; install "
            "one, or leave engine.compile out."
        )
