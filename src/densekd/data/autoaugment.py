"""AutoAugment's policy for CIFAR-10 on whole batches: two operations for each image."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, conv2d, grid_sample

# The name, probability and strength (0 to 9) of an operation.
_Operation = tuple[str, float, int]
_Row = tuple[Tensor | float, Tensor | float, Tensor | float]

# Cubuk et al., AutoAugment, CVPR 2019, the table of the policy found on (reduced) CIFAR-10.
_POLICY: tuple[tuple[_Operation, _Operation], ...] = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 8), ("equalize", 0.9, 2)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("colour", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 5), ("equalize", 0.5, 1)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("colour", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 7), ("autocontrast", 0.4, 8)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("colour", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 3)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 8), ("equalize", 0.6, 4)),
    (("colour", 0.9, 9), ("equalize", 0.6, 6)),
    (("autocontrast", 0.8, 4), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("colour", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 3)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 2), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 8), ("invert", 0.1, 3)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 1)),
)
NUMBERS = 5  # random numbers drawn for each image
_GREY = 128.0  # fills the area that a moved image uncovers


def distorted(pixels: Tensor, numbers: Tensor) -> Tensor:
    """Apply one of 25 pairs of operations to each image ``[B, 3, H, W]``, from 0 to 255.

    The numbers, ``[B, NUMBERS]``, are uniform in [0, 1): which pair; then, for each of its
    operations, whether to apply it and in which of two directions.
    """
    pixels = pixels.to(numbers.dtype, copy=True)
    pair = (numbers[:, 0] * len(_POLICY)).long()
    for place in (0, 1):
        steps = [operations[place] for operations in _POLICY]
        chance = numbers.new_tensor([step[1] for step in steps])[pair]
        level = numbers.new_tensor([step[2] / 9 for step in steps])[pair]
        applied = numbers[:, 1 + 2 * place] < chance
        level = torch.where(numbers[:, 2 + 2 * place] < 0.5, -level, level)
        for name in sorted({step[0] for step in steps}):
            named = torch.tensor([step[0] == name for step in steps], device=pair.device)
            index = torch.nonzero(applied & named[pair]).flatten()
            if len(index):
                pixels[index] = OPERATIONS[name](pixels[index], level[index])
    return pixels


def _moved(pixels: Tensor, x: _Row, y: _Row) -> Tensor:
    """Apply an affine map, given by its rows, in coordinates from -1 to 1."""
    matrix = pixels.new_zeros(len(pixels), 2, 3)
    for row, values in enumerate((x, y)):
        for column, value in enumerate(values):
            matrix[:, row, column] = value
    grid = affine_grid(matrix, list(pixels.shape), align_corners=False)
    return grid_sample(pixels - _GREY, grid, align_corners=False) + _GREY


def _rotate(pixels: Tensor, level: Tensor) -> Tensor:
    angle, aspect = level * math.radians(30), _aspect(pixels)
    sin, cos = angle.sin(), angle.cos()
    return _moved(pixels, (cos, -sin * aspect, 0), (sin / aspect, cos, 0))


def _aspect(pixels: Tensor) -> float:
    return pixels.shape[2] / pixels.shape[3]


def _blend(pixels: Tensor, other: Tensor, level: Tensor) -> Tensor:
    """Move the pixels towards another image, or away from it."""
    factor = (1 + 0.9 * level).view(-1, 1, 1, 1)
    return (other + factor * (pixels - other)).clamp(0, 255)


def _grey(pixels: Tensor) -> Tensor:
    weights = pixels.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    return (pixels * weights).sum(1, keepdim=True)


def _sharpness(pixels: Tensor, level: Tensor) -> Tensor:
    kernel = pixels.new_ones(3, 1, 3, 3)
    kernel[:, :, 1, 1] = 5
    smooth = pixels.clone()  # the border stays
    smooth[:, :, 1:-1, 1:-1] = conv2d(pixels, kernel / 13, groups=3)
    return _blend(pixels, smooth, level)


def _posterize(pixels: Tensor, level: Tensor) -> Tensor:
    step = 2 ** (4 * level.abs()).round().view(-1, 1, 1, 1)  # keeps 8 to 4 bits
    return (pixels / step).floor() * step


def _solarize(pixels: Tensor, level: Tensor) -> Tensor:
    threshold = (256 * (1 - level.abs())).view(-1, 1, 1, 1)
    return torch.where(pixels < threshold, pixels, 255 - pixels)


def _autocontrast(pixels: Tensor, level: Tensor) -> Tensor:
    low, high = pixels.amin((2, 3), keepdim=True), pixels.amax((2, 3), keepdim=True)
    return torch.where(high > low, (pixels - low) * (255 / (high - low).clamp(min=1e-6)), pixels)


def _equalize(pixels: Tensor, level: Tensor) -> Tensor:
    """Equalise the histogram of each channel, as Pillow does."""
    levels = pixels.long().flatten(2)
    counts = levels.new_zeros(*levels.shape[:2], 256)
    counts.scatter_add_(2, levels, torch.ones_like(levels))
    last = counts.gather(2, levels.amax(2, keepdim=True))
    step = (levels.shape[2] - last) // 255
    below = counts.cumsum(2) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(2, levels), levels).view_as(pixels).to(pixels.dtype)


# Each takes a level from -1 to 1; operations without a direction ignore the sign.
OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "shear_y": lambda x, level: _moved(x, (1, 0, 0), (0.3 * level / _aspect(x), 1, 0)),
    "translate_x": lambda x, level: _moved(x, (1, 0, 2 * 150 / 331 * level), (0, 1, 0)),
    "translate_y": lambda x, level: _moved(x, (1, 0, 0), (0, 1, 2 * 150 / 331 * level)),
    "rotate": _rotate,
    "brightness": lambda x, level: _blend(x, x.new_zeros(()), level),
    "colour": lambda x, level: _blend(x, _grey(x), level),
    "contrast": lambda x, level: _blend(x, _grey(x).mean((2, 3), keepdim=True), level),
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": _solarize,
    "invert": lambda x, _: 255 - x,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
}
