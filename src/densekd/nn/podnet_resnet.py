"""PODNet's residual networks, also used by AFC: no ReLU follows a stage.

The pooled features are the mean of the last map. The last norm of each block starts at 0, so a
block starts as its shortcut. Both are as in the released code.
"""

from torch import Tensor, nn
from torch.nn.functional import pad

from densekd.nn.resnet import Block, ResNet, cifar_resnet


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
    stem = nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    )
    network = ResNet(stem, (64, 128, 256, 512), 2, last_relu=False)
    for block in _blocks(network)[1::2]:
        block.last_relu = False
    return _start_as_shortcuts(network)


def _blocks(network: ResNet) -> list[Block]:
    return [module for module in network.modules() if isinstance(module, Block)]


def _start_as_shortcuts(network: ResNet) -> ResNet:
    for block in _blocks(network):
        nn.init.zeros_(block.norm2.weight)
    return network
