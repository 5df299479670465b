"""A model's pretrained network: it turns photos into features, and is saved with the model."""

from pathlib import Path

import torch
from torch import Tensor, nn

from densekd.allocator import keep_freed_memory
from densekd.data.dataset import IMAGENET_MEAN, IMAGENET_STD
from densekd.files import DamagedFile
from densekd.nn.efficientnet_lite import EfficientNetLite
from densekd.nn.network import Backbone, Preprocessing, own_statistics
from densekd.nn.registry import describe_backbone, make_backbone, rebuild_backbone
from densekd.training.checkpoint import State, load_state, save_state

_SIZE = 224  # of images, for networks that don't say which size they were trained on
# On a CPU, the activations of a larger batch don't fit into the cache; for a smaller one, torch
# has a slower convolution if it runs on one thread.
BATCH, _BATCH_ON_CUDA = 16, 64


class FrozenBackbone(nn.Module):
    """The pretrained network called ``network``, with the size and normalisation it was trained on.

    It is in evaluation mode.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: str, backbone: Backbone) -> None:
        super().__init__()
        assert isinstance(backbone, nn.Module)
        self.network, self.width = network, backbone.width
        size: tuple[int, int] | None = getattr(backbone, "preprocessing", Preprocessing()).size
        self.size = _SIZE if size is None else size[0]
        # Mean and deviation of each channel, for pixels from 0 to 1.
        self.statistics = own_statistics(backbone) or (IMAGENET_MEAN, IMAGENET_STD)
        self.backbone = backbone
        for name, values in zip(("mean", "std"), self.statistics, strict=True):
            scaled = 255 * torch.tensor(values).view(1, 3, 1, 1)
            self.register_buffer(name, scaled, persistent=False)
        self.eval().requires_grad_(False)
        self.to("cuda" if torch.cuda.is_available() else "cpu")
        fused = backbone.fused() if isinstance(backbone, EfficientNetLite) else backbone
        # Channels last makes convolutions faster on a CPU, too.
        fused.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # In a tuple, so that its weights aren't saved and counted with this module's.
        self._fused: tuple[nn.Module] = (fused,)
        keep_freed_memory()

    def forward(self, pixels: Tensor) -> Tensor:
        """Turn pixels uint8 ``[n, 3, size, size]`` into features ``[n, width]`` of length 1."""
        return self._by(self.backbone, pixels)

    def _by(self, network: nn.Module, pixels: Tensor) -> Tensor:
        images = (pixels.float() - self.mean) / self.std
        features: Tensor = network(images).pooled
        return torch.nn.functional.normalize(features.float(), dim=1)

    @torch.inference_mode()
    def features(self, pixels: Tensor) -> Tensor:
        """`forward` in batches of the best size, on the best device; the result is on the CPU."""
        device = self.mean.device
        batch = _BATCH_ON_CUDA if device.type == "cuda" else BATCH
        parts = [
            self._by(self._fused[0], part.to(device, memory_format=torch.channels_last)).cpu()
            for part in pixels.split(batch)
        ]
        return torch.cat(parts) if len(pixels) else torch.empty(0, self.width)

    def save(self, path: Path) -> None:
        """Save all that `load_backbone` needs, so that a model never depends on a download."""
        facts = describe_backbone(self.network, self.backbone)
        save_state(path, State(facts, self.backbone.state_dict()))


def pretrained_backbone(network: str) -> FrozenBackbone:
    """The pretrained network of that name; raises ValueError if it has no pretrained weights."""
    return FrozenBackbone(network, make_backbone(network))


def load_backbone(path: Path) -> FrozenBackbone:
    """Load what `FrozenBackbone.save` saved; never downloads anything."""
    facts, tensors = load_state(path)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    try:
        backbone = rebuild_backbone(facts, shapes)
        assert isinstance(backbone, nn.Module)
        backbone.load_state_dict(tensors)
    except (KeyError, RuntimeError) as error:
        raise DamagedFile(f"The backbone {path} doesn't fit its description.") from error
    return FrozenBackbone(facts["network"], backbone)
