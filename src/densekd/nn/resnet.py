"""Residual networks: the CIFAR family, ResNet-18, PODNet's and wide ones.

PODNet's, also used by AFC, have no ReLU after a stage. Their pooled features are the mean of the
last map. The last norm of each block starts at 0, so a block starts as its shortcut. All of this is
as in the released code.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from densekd.nn.network import Features

# Limits, since names may come from a stranger: He et al.'s deepest network, and a width beyond any
# published one.
_DEEPEST, _WIDEST = 1202, 32


class Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, which is 1 x 1 where the shape changes.

    ``last_relu`` puts a ReLU after the addition.
    """

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )
        self.last_relu = True

    def forward(self, x: Tensor) -> Tensor:
        """``[B, inside, H, W]`` to ``[B, outside, H / stride, W / stride]``."""
        y = torch.relu_(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y)) + self.shortcut(x)
        return torch.relu_(y) if self.last_relu else y


class ResNet(nn.Module):
    """A stem, then stages of ``depth`` blocks, with ``widths`` channels each.

    All stages but the first halve height and width. The stem returns as many channels as the first
    stage has. Without ``last_relu`` the last block has no ReLU, as in this field's CIFAR networks.
    """

    def __init__(self, stem: nn.Module, widths: Sequence[int], depth: int, last_relu: bool) -> None:
        super().__init__()
        self.width = widths[-1]
        self.stem = stem
        self.stages = _stages(Block, [widths[0], *widths], depth)
        _blocks(self)[-1].last_relu = last_relu
        _kaiming(self)

    def forward(self, images: Tensor) -> Features:
        """``[B, 3, H, W]`` to pooled features ``[B, width]`` and the map of each stage."""
        maps = _maps(self.stages, self.stem(images))
        return Features(maps[-1].mean((2, 3)), maps)


def cifar_resnet(depth: int) -> ResNet:
    """Build ResNet-20, 32, 44, 56, 110 for small images: 16, 32, 64 channels, no last ReLU.

    ResNet-32 is the network of UCIR and CCIL: 466,256 parameters without classifier.
    """
    if not 8 <= depth <= _DEEPEST or depth % 6 != 2:
        raise ValueError(
            f"There is no CIFAR ResNet-{depth}: depths are 8, 14, 20, 26, 32, ..., {_DEEPEST}."
        )
    return ResNet(_stem(16, 3, 1), (16, 32, 64), (depth - 2) // 6, last_relu=False)


def resnet18(last_relu: bool = True) -> ResNet:
    """Build ResNet-18 for 224 x 224; CCIL keeps the last ReLU, UCIR does not."""
    return ResNet(_large_stem(64), (64, 128, 256, 512), 2, last_relu)


class HalvingShortcut(nn.Module):
    """A shortcut without weights: every other pixel, padded with as many channels of zeros."""

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W]`` to ``[B, 2 C, H / 2, W / 2]``."""
        return pad(x[..., ::2, ::2], (0, 0, 0, 0, 0, x.shape[1]))


def podnet_resnet(depth: int = 32) -> ResNet:
    """Build PODNet's "rebuffi" ResNet-14, 20, 26, 32, ... for small images.

    No block has a ReLU after its addition, shortcuts have no weights, and the last block is a
    fourth stage. ResNet-32 has 5, 5, 4 and 1 blocks and 463,504 parameters without classifier.
    """
    if depth == 8:
        raise ValueError("A ResNet-8 has too few blocks for four stages: use 14, 20, 26, 32, ...")
    network = cifar_resnet(depth)
    for block in _blocks(network):
        block.last_relu = False
        if not isinstance(block.shortcut, nn.Identity):
            block.shortcut = HalvingShortcut()
    *before, last = network.stages
    *most, final = last.children()
    network.stages = nn.ModuleList([*before, nn.Sequential(*most), nn.Sequential(final)])
    return _start_as_shortcuts(network)


def podnet_resnet18() -> ResNet:
    """Build PODNet's ResNet-18 for large images; 11,168,832 parameters without classifier.

    Its stem is 3 x 3 with stride 1, so maps have four times `resnet18`'s pixels. Only the first of
    a stage's two blocks has a ReLU after its addition.
    """
    network = ResNet(_large_stem(64, 3, 1), (64, 128, 256, 512), 2, last_relu=False)
    for block in _blocks(network)[1::2]:
        block.last_relu = False
    return _start_as_shortcuts(network)


class PreBlock(nn.Module):
    """Norm, ReLU, convolution, twice, and a shortcut, which is 1 x 1 where the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inside)
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inside != outside:
            self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, inside, H, W]`` to ``[B, outside, H / stride, W / stride]``."""
        y = torch.relu(self.norm1(x))
        # A 1 x 1 shortcut starts from the activation, an identity from the input.
        kept: Tensor = x if self.shortcut is None else self.shortcut(y)
        added: Tensor = self.conv2(torch.relu(self.norm2(self.conv1(y))))
        return kept + added


class WideResNet(nn.Module):
    """WRN-depth-widen: three stages of 16, 32, 64 channels, each times ``widen``.

    Its activations come before the convolutions. A depth of 6 n + 4 has n blocks a stage. ``large``
    uses ResNet-18's stem, for images of about 224 x 224: maps are a quarter as high and wide.
    Without it, such images take 49 times as long as those of 32 x 32.
    """

    def __init__(self, depth: int, widen: int, *, large: bool = False) -> None:
        super().__init__()
        if not 10 <= depth <= _DEEPEST or depth % 6 != 4 or not 1 <= widen <= _WIDEST:
            raise ValueError(
                f"There is no WRN-{depth}-{widen}: depths are 10, 16, 22, 28, ..., and widths 1 to "
                f"{_WIDEST}."
            )
        self.width = 64 * widen
        # Also built if large: leaving it out would change the weights that a seed draws.
        self.stem: nn.Module = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        if large:
            self.stem = _large_stem(16)
        self.stages = _stages(PreBlock, [16, 16 * widen, 32 * widen, 64 * widen], (depth - 4) // 6)
        self.norm = nn.BatchNorm2d(self.width)
        _kaiming(self)

    def forward(self, images: Tensor) -> Features:
        """``[B, 3, H, W]`` to pooled features ``[B, width]`` and the map of each stage."""
        maps = _maps(self.stages, self.stem(images))
        return Features(torch.relu(self.norm(maps[-1])).mean((2, 3)), maps)


def _stem(channels: int, kernel: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(3, channels, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


def _large_stem(channels: int, kernel: int = 7, stride: int = 2) -> nn.Sequential:
    """Build a stem that divides height and width by twice its stride."""
    return _stem(channels, kernel, stride).append(nn.MaxPool2d(3, 2, 1))


def _stages(
    block: Callable[[int, int, int], nn.Module], widths: Sequence[int], depth: int
) -> nn.ModuleList:
    """Build stages of ``depth`` blocks; the first of ``widths`` is that of the stem."""
    stages = nn.ModuleList()
    for number, (inside, outside) in enumerate(pairwise(widths)):
        first = block(inside, outside, 1 if number == 0 else 2)
        more = [block(outside, outside, 1) for _ in range(depth - 1)]
        stages.append(nn.Sequential(first, *more))
    return stages


def _maps(stages: nn.ModuleList, x: Tensor) -> tuple[Tensor, ...]:
    maps = []
    for stage in stages:
        x = stage(x)
        maps.append(x)
    return tuple(maps)


def _kaiming(network: nn.Module) -> None:
    """Draw all convolutions from He's normal distribution (fan-out)."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _blocks(network: ResNet) -> list[Block]:
    return [module for module in network.modules() if isinstance(module, Block)]


def _start_as_shortcuts(network: ResNet) -> ResNet:
    for block in _blocks(network):
        nn.init.zeros_(block.norm2.weight)
    return network
