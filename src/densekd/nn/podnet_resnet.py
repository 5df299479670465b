"""PODNet's residual networks, which AFC took over: their maps are not rectified.

The next stage takes a map as it is: in the released networks nothing rectifies between two
stages either. The pooled features are the mean of the last map.

The last norm of each block starts at 0, so a block starts as its shortcut.
"""

from torch import Tensor, nn
from torch.nn.functional import pad

from densekd.nn.resnet import Block, ResNet, cifar_resnet


class Halved(nn.Module):
    """A shortcut without weights: every other pixel, and as many channels of zeros again."""

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W]`` to ``[B, 2 C, H / 2, W / 2]``."""
        return pad(x[..., ::2, ::2], (0, 0, 0, 0, 0, x.shape[1]))


def podnet_resnet(depth: int = 32) -> ResNet:
    """ResNet-14, 20, 26, 32, ... for small images: 16, 32, 64 channels, called "rebuffi" there.

    No block has a ReLU after its addition, shortcuts have no weights, and the last block is a
    stage of its own, the fourth. ResNet-32 has 5, 5, 4 and 1 blocks and 463,504 parameters under
    the classifier.
    """
    if depth == 8:
        raise ValueError("A ResNet-8 has too few blocks for four stages: take 14, 20, 26, 32, ...")
    network = cifar_resnet(depth)
    for block in _blocks(network):
        block.last_relu = False
        if not isinstance(block.shortcut, nn.Identity):
            block.shortcut = Halved()
    *before, last = network.stages
    *most, final = last.children()
    network.stages = nn.ModuleList([*before, nn.Sequential(*most), nn.Sequential(final)])
    return _quiet(network)


def podnet_resnet18() -> ResNet:
    """ResNet-18 with a stem of 3 x 3 and stride 1, so maps have four times `resnet18`'s pixels.

    Of the two blocks of a stage the first has a ReLU after its addition, the second has none.
    11,168,832 parameters under the classifier.
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
    return _quiet(network)


def _blocks(network: ResNet) -> list[Block]:
    return [module for module in network.modules() if isinstance(module, Block)]


def _quiet(network: ResNet) -> ResNet:
    """The network, each of whose blocks adds nothing to its shortcut yet."""
    for block in _blocks(network):
        nn.init.zeros_(block.norm2.weight)
    return network
