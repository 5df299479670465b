"""A pretrained network in which a photo costs next to nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch


def tiny_vit(folder: Path) -> str:
    """Save a ViT of three layers with random weights, and give its name as a network."""
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        **{"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2},
        **{"intermediate_size": 32, "image_size": 16, "patch_size": 8},
    }
    transformers.ViTModel(transformers.ViTConfig(**sizes)).save_pretrained(folder)
    return f"hf:{folder}"
