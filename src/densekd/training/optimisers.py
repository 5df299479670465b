"""The optimisers and gradient scalers of a phase, and their state in checkpoints."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD, AdamW, Optimizer

from densekd.methods.schedule import Schedule

# What an optimiser keeps of each parameter, and how a checkpoint names it; ``step`` is one number.
_KEPT = {
    "momentum_buffer": "momentum",
    "exp_avg": "adamw.exp_avg",
    "exp_avg_sq": "adamw.exp_avg_sq",
    "step": "adamw.step",
}
# A scaler begins at 65536 and halves its scale at each step whose gradient isn't finite. Below
# this, after 30 such steps in a row, no scale helps.
_LEAST_SCALE = 1e-4


def make_optimiser(groups: Mapping[float, list[nn.Parameter]], schedule: Schedule) -> Optimizer:
    """Make a schedule's optimiser; ``groups`` has the parameters by factor of the learning rate."""
    parameters = [{"params": own, "factor": factor} for factor, own in groups.items()]
    lr, momentum, decay = schedule.lr, schedule.momentum, schedule.weight_decay
    if schedule.optimiser == "adamw":
        return AdamW(parameters, lr, betas=(momentum, 0.999), weight_decay=decay)
    return SGD(parameters, lr, momentum, weight_decay=decay)


def optimiser_tensors(optimiser: Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """All that an optimiser keeps of a module's parameters, by name."""
    return {
        f"{_KEPT[key]}.{name}": kept
        for name, parameter in module.named_parameters()
        for key, kept in optimiser.state.get(parameter, {}).items()
        if kept is not None  # SGD without momentum keeps None
    }


def load_optimiser_tensors(
    optimiser: Optimizer, module: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Restore what `optimiser_tensors` gave for the parameters that are trained."""
    for name, parameter in module.named_parameters():
        for key, prefix in _KEPT.items():
            saved = tensors.get(f"{prefix}.{name}")
            if not parameter.requires_grad or saved is None:
                continue
            if saved.shape != (() if key == "step" else parameter.shape):
                raise ValueError(f"The checkpoint's {prefix}.{name} isn't what was saved.")
            if key == "step":
                optimiser.state[parameter][key] = saved.clone()
                continue
            # In the parameter's memory layout, since another may round differently.
            buffer = torch.empty_like(parameter).copy_(saved)
            optimiser.state[parameter][key] = buffer.detach()


def can_scale(scaler: GradScaler) -> bool:
    """Whether gradients can be finite at some scale; the scaler skips a step where they aren't.

    Only fp16 has a scale. No scale helps a loss that isn't finite: it diverges as without fp16.
    """
    return not scaler.is_enabled() or scaler.get_scale() >= _LEAST_SCALE


def scaler_tensors(scaler: GradScaler) -> dict[str, Tensor]:
    """The scale, and for how many steps it gave finite gradients; empty without fp16."""
    kept = scaler.state_dict()
    if not kept:
        return {}
    numbers = [kept["scale"], kept["_growth_tracker"]]
    return {"scaler": torch.tensor(numbers, dtype=torch.float64)}


def load_scaler_tensors(scaler: GradScaler, tensors: Mapping[str, Tensor]) -> None:
    """Restore what `scaler_tensors` gave."""
    if scaler.is_enabled() and "scaler" in tensors:
        scale, steps = tensors["scaler"].tolist()
        changed = {"scale": scale, "_growth_tracker": int(steps)}
        scaler.load_state_dict({**scaler.state_dict(), **changed})
