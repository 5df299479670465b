"""Wide residual networks, whose activations come before the convolutions."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from densekd.nn.network import Features
from densekd.nn.resnet import kaiming, large_stem, stage_maps


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

    A depth of 6 n + 4 has n blocks a stage. ``large`` uses ResNet-18's stem, for images of about
    224 x 224: maps are a quarter as high and wide. Otherwise they take 49 times as long as 32 x 32.
    """

    def __init__(self, depth: int, widen: int, *, large: bool = False) -> None:
        super().__init__()
        if depth < 10 or depth % 6 != 4 or widen < 1:
            raise ValueError(f"There is no WRN-{depth}-{widen}: depths are 10, 16, 22, 28, ...")
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        self.width = widths[-1]
        # Also built if large: leaving it out would change the weights that a seed draws.
        self.stem: nn.Module = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        if large:
            self.stem = large_stem(16)
        self.stages = nn.ModuleList()
        for number, (inside, outside) in enumerate(pairwise(widths)):
            blocks = [PreBlock(inside, outside, 1 if number == 0 else 2)]
            blocks += [PreBlock(outside, outside, 1) for _ in range((depth - 4) // 6 - 1)]
            self.stages.append(nn.Sequential(*blocks))
        self.norm = nn.BatchNorm2d(self.width)
        kaiming(self)

    def forward(self, images: Tensor) -> Features:
        """``[B, 3, H, W]`` to pooled features ``[B, width]`` and the map of each stage."""
        maps = stage_maps(self.stages, self.stem(images))
        return Features(torch.relu(self.norm(maps[-1])).mean((2, 3)), maps)
