"""Residual networks: the CIFAR family and ResNet-18."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from densekd.nn.network import Features


class Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, which is 1 x 1 where the shape changes.

    ``last_relu`` puts a ReLU after the addition.
    """

    def __init__(self, inside: int, outside: int, stride: int, last_relu: bool = True) -> None:
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
        self.last_relu = last_relu

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
        self.stages = nn.ModuleList()
        for number, (inside, outside) in enumerate(pairwise([widths[0], *widths])):
            shapes = [(inside, 1 if number == 0 else 2)] + [(outside, 1)] * (depth - 1)
            blocks = [Block(channels, outside, stride) for channels, stride in shapes]
            if number == len(widths) - 1:
                blocks[-1].last_relu = last_relu
            self.stages.append(nn.Sequential(*blocks))
        kaiming(self)

    def forward(self, images: Tensor) -> Features:
        """``[B, 3, H, W]`` to pooled features ``[B, width]`` and the map of each stage."""
        maps = stage_maps(self.stages, self.stem(images))
        return Features(maps[-1].mean((2, 3)), maps)


def stage_maps(stages: Iterable[nn.Module], x: Tensor) -> tuple[Tensor, ...]:
    """Run the stages on one another and return the output of each."""
    maps = []
    for stage in stages:
        x = stage(x)
        maps.append(x)
    return tuple(maps)


def kaiming(network: nn.Module) -> None:
    """Draw all convolutions from He's normal distribution (fan-out)."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def cifar_resnet(depth: int) -> ResNet:
    """Build ResNet-20, 32, 44, 56, 110 for small images: 16, 32, 64 channels, no last ReLU.

    ResNet-32 is the network of UCIR and CCIL: 466,256 parameters without classifier.
    """
    if depth < 8 or depth % 6 != 2:
        raise ValueError(f"There is no CIFAR ResNet-{depth}: depths are 8, 14, 20, 26, 32, ...")
    stem = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
    )
    return ResNet(stem, (16, 32, 64), (depth - 2) // 6, last_relu=False)


def resnet18(last_relu: bool = True) -> ResNet:
    """Build ResNet-18 for 224 x 224; CCIL keeps the last ReLU, UCIR does not."""
    return ResNet(large_stem(64), (64, 128, 256, 512), 2, last_relu)


def large_stem(channels: int) -> nn.Sequential:
    """Build a stem for large images: ``[B, 3, H, W]`` to ``[B, channels, H / 4, W / 4]``."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 7, 2, 3, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    )
