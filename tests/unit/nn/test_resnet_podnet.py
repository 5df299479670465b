from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, max_pool2d

from densekd.nn.classifier import ProxyClassifier
from densekd.nn.network import Network
from densekd.nn.resnet import Block, ResNet, podnet_resnet, podnet_resnet18


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def stirred(network: ResNet) -> ResNet:
    """Randomise all norms, so that no block equals its shortcut."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.running_var, module.bias.data):
                assert tensor is not None
                tensor.uniform_(0.5, 1.5)
            module.bias.data.sub_(1)
    return network.eval()


class Transcript:
    """Run the layers by their weights, as in the released networks."""

    def __init__(self, network: ResNet) -> None:
        self.state = network.state_dict()

    def norm(self, x: Tensor, name: str) -> Tensor:
        keys = ("running_mean", "running_var", "weight", "bias")
        return batch_norm(x, *(self.state[f"{name}.{key}"] for key in keys))

    def conv(self, x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = self.state[f"{name}.weight"]
        return conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    def residual(self, x: Tensor, name: str, stride: int) -> Tensor:
        y = self.norm(self.conv(x, f"{name}.conv1", stride), f"{name}.norm1").relu()
        return self.norm(self.conv(y, f"{name}.conv2"), f"{name}.norm2")


def test_parameters_are_as_many_as_published() -> None:
    assert count(podnet_resnet()) == 463_504
    assert count(podnet_resnet18()) == 11_689_512 - 513_000 - 64 * 3 * (7 * 7 - 3 * 3) == 11_168_832


def test_blocks_are_5_5_4_and_1() -> None:
    blocks = [len(list(stage.children())) for stage in podnet_resnet().stages]
    assert blocks == [5, 5, 4, 1]
    assert [len(list(stage.children())) for stage in podnet_resnet(14).stages] == [2, 2, 1, 1]


@pytest.mark.parametrize("size", [32, 9])
def test_the_small_network_is_as_released(size: int) -> None:
    torch.manual_seed(0)
    network, images = stirred(podnet_resnet()), torch.randn(2, 3, size, size)
    script, maps = Transcript(network), []
    x = script.norm(script.conv(images, "stem.0"), "stem.1").relu()
    for stage, blocks in enumerate((5, 5, 4, 1)):
        for block in range(blocks):
            halve = block == 0 and stage in (1, 2)
            shortcut = x
            if halve:
                shortcut = x[..., ::2, ::2]
                shortcut = torch.cat([shortcut, torch.zeros_like(shortcut)], dim=1)
            x = shortcut + script.residual(x, f"stages.{stage}.{block}", 2 if halve else 1)
        maps.append(x)
    given = network(images)
    assert [m.shape[1] for m in given.maps] == [16, 32, 64, 64]
    for got, expected in zip(given.maps, maps, strict=True):
        torch.testing.assert_close(got, expected)
        assert (got < 0).any()
    torch.testing.assert_close(given.pooled, maps[-1].mean((2, 3)))


def test_the_large_network_is_as_released() -> None:
    torch.manual_seed(0)
    network, images = stirred(podnet_resnet18()), torch.randn(2, 3, 32, 32)
    script, maps = Transcript(network), []
    x = script.norm(script.conv(images, "stem.0"), "stem.1").relu()
    x = max_pool2d(x, 3, 2, 1)
    for stage in range(4):
        name, shortcut = f"stages.{stage}.0", x
        if stage:
            shortcut = script.conv(x, f"{name}.shortcut.0", 2)
            shortcut = script.norm(shortcut, f"{name}.shortcut.1")
        x = (shortcut + script.residual(x, name, 2 if stage else 1)).relu()
        x = x + script.residual(x, f"stages.{stage}.1", 1)
        maps.append(x)
    given = network(images)
    assert [tuple(m.shape[1:3]) for m in given.maps] == [(64, 16), (128, 8), (256, 4), (512, 2)]
    for got, expected in zip(given.maps, maps, strict=True):
        torch.testing.assert_close(got, expected)
        assert (got < 0).any()
    torch.testing.assert_close(given.pooled, maps[-1].mean((2, 3)))


@pytest.mark.parametrize("make", [podnet_resnet, podnet_resnet18])
def test_blocks_start_as_their_shortcuts(make: Callable[[], ResNet]) -> None:
    network = make().eval()
    blocks = [module for module in network.modules() if isinstance(module, Block)]
    for block in blocks:
        x = torch.randn(1, block.conv1.in_channels, 4, 4)
        start = block.shortcut(x)
        assert torch.equal(block(x), start.relu() if block.last_relu else start)
    assert len(blocks) == (15 if network.width == 64 else 8)


def test_every_parameter_has_a_gradient_after_the_first_step() -> None:
    torch.manual_seed(0)
    network = Network(podnet_resnet(14), ProxyClassifier(64))
    network.grow(4)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    images, labels = torch.randn(16, 3, 16, 16), torch.arange(16) % 4
    for _ in range(2):  # until the last norms have left 0
        optimizer.zero_grad()
        outputs = network(images)
        torch.nn.functional.cross_entropy(outputs.logits, labels).backward()
        optimizer.step()
    assert len(outputs.maps) == 4
    still = [n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


def test_a_network_of_too_few_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="too few blocks for four stages"):
        podnet_resnet(8)
    with pytest.raises(ValueError, match="no CIFAR ResNet-31"):
        podnet_resnet(31)
