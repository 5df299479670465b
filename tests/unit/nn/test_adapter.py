import pytest
import torch
from torch import nn

from densekd.nn.adapter import BackboneAdapter, as_backbone
from densekd.nn.resnet import cifar_resnet

IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_a_module_that_gives_a_tensor_is_a_backbone() -> None:
    flat = nn.Sequential(nn.Conv2d(3, 7, 3), nn.BatchNorm2d(7), nn.AdaptiveAvgPool2d(1))
    statistics = flat[1].get_buffer("running_mean").clone()
    mapped, pooled = as_backbone(flat), as_backbone(nn.Sequential(flat, nn.Flatten()))
    assert mapped.width == pooled.width == 7
    # Finding the width changed nothing.
    assert torch.equal(flat[1].get_buffer("running_mean"), statistics)
    assert flat.training
    flat.eval()
    assert torch.equal(mapped(IMAGES).pooled, pooled(IMAGES).pooled)
    (only,) = mapped(IMAGES).maps
    assert only.shape == (3, 7, 1, 1)
    assert pooled(IMAGES).maps == ()
    known = cifar_resnet(8)
    assert as_backbone(known) is known


def test_a_module_for_one_image_size_needs_its_width() -> None:
    picky = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 5))
    with pytest.raises(ValueError, match=r"32 x 32 .*BackboneAdapter\(module, width="):
        as_backbone(picky)
    assert BackboneAdapter(picky, width=5)(IMAGES).pooled.shape == (3, 5)


def test_a_module_without_features_is_refused() -> None:
    with pytest.raises(ValueError, match=r"features \[B, D\].* not \[1, 3, 1024\]"):
        as_backbone(nn.Flatten(2))
    with pytest.raises(ValueError, match=r"must be an nn\.Module, not str"):
        as_backbone("resnet8")
