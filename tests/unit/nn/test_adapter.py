import pytest
import torch
from torch import Tensor, nn

from densekd.nn.adapter import BackboneAdapter, as_backbone, own_backbone
from densekd.nn.network import Features
from densekd.nn.resnet import cifar_resnet
from densekd.parts import OwnPartError

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


def flat(size: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * size * size, 7))


def test_a_network_of_ones_own_is_tried_at_the_size_of_the_images() -> None:
    assert own_backbone("mine.py:flat", lambda: flat(8), (8, 8)).width == 7
    with pytest.raises(OwnPartError, match=r"mine\.py:flat can't be used: .* 32 x 32 pixels"):
        own_backbone("mine.py:flat", lambda: flat(8))
    assert as_backbone(flat(4), (4, 4)).width == 7


def test_a_module_of_ones_own_is_copied() -> None:
    module = flat(8)
    made = own_backbone("mine.py:flat", module, (8, 8))
    assert isinstance(made, BackboneAdapter)
    assert made.module is not module


class Boasting(nn.Module):
    width = 9

    def forward(self, images: Tensor) -> Features:
        return Features(images.mean((2, 3)), ())


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (Boasting, "its width is 9, but it has 3"),
        (lambda: 3, "must be an nn.Module, not int"),
        (3, "must be an nn.Module, not int"),
        (nn.Flatten(0), r"must return features \[B, D\]"),
        (lambda: nn.Linear(5, 2), "can't take images of 8 x 8 pixels"),
    ],
)
def test_a_wrong_network_of_ones_own_is_named(value: object, sentence: str) -> None:
    with pytest.raises(OwnPartError, match=sentence) as found:
        own_backbone("mine.py:net", value, (8, 8))
    assert str(found.value).startswith("mine.py:net can't be used")
