import pytest
import torch
from torch import nn

from densekd.nn.network import Features
from densekd.nn.resnet import Block, WideResNet, cifar_resnet, resnet18


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameters_are_as_many_as_published() -> None:
    assert count(cifar_resnet(32)) == 466_256  # CCIL's backbone
    assert count(resnet18()) == 11_689_512 - 513_000  # without the classifier of 1000 classes
    with torch.device("meta"):
        assert count(WideResNet(40, 4)) + 256 * 100 + 100 == pytest.approx(8.97e6, rel=1e-3)
        assert count(WideResNet(28, 10)) + 640 * 10 + 10 == pytest.approx(36.5e6, rel=1e-3)


@pytest.mark.parametrize(
    ("backbone", "size", "shapes"),
    [
        (cifar_resnet(8), 32, [(16, 32), (32, 16), (64, 8)]),
        (cifar_resnet(8), 8, [(16, 8), (32, 4), (64, 2)]),
        (WideResNet(10, 2), 32, [(32, 32), (64, 16), (128, 8)]),
        (resnet18(), 64, [(64, 16), (128, 8), (256, 4), (512, 2)]),
    ],
)
def test_maps_halve_from_stage_to_stage(
    backbone: nn.Module, size: int, shapes: list[tuple[int, int]]
) -> None:
    given: Features = backbone(torch.randn(2, 3, size, size))
    assert [tuple(m.shape) for m in given.maps] == [(2, c, s, s) for c, s in shapes]
    assert given.pooled.shape == (2, backbone.width)


def test_only_the_last_relu_is_missing_from_the_cifar_networks() -> None:
    torch.manual_seed(0)
    network = cifar_resnet(8)
    given = network(torch.randn(4, 3, 16, 16))
    assert [bool((m < 0).any()) for m in given.maps] == [False, False, True]
    torch.testing.assert_close(given.pooled, given.maps[-1].mean((2, 3)))
    blocks = [module for module in network.modules() if isinstance(module, Block)]
    assert [block.last_relu for block in blocks] == [True, True, False]
    assert not any((m < 0).any() for m in resnet18()(torch.randn(2, 3, 64, 64)).maps)
    assert (resnet18(last_relu=False)(torch.randn(2, 3, 64, 64)).maps[-1] < 0).any()


def test_an_impossible_depth_or_width_is_refused() -> None:
    with pytest.raises(ValueError, match="no CIFAR ResNet-31"):
        cifar_resnet(31)
    with pytest.raises(ValueError, match="no WRN-40-0"):
        WideResNet(40, 0)
