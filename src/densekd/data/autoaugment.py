"""AutoAugment's policy for CIFAR-10, on whole batches: two operations for each image."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, conv2d, grid_sample

# What an operation is called, how probable it is, and how strong, from 0 to 9.
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
NUMBERS = 5  # that are drawn for each image
_GREY = 128.0  # where an image was moved away


def distorted(pixels: Tensor, numbers: Tensor) -> Tensor:
    """Each image by one of 25 pairs of operations, each of which is left out at times.

    Args:
        pixels: ``[B, 3, H, W]``, from 0 to 255.
        numbers: ``[B, NUMBERS]``, uniform from 0 to below 1: which pair; and of each of the two
            whether it is applied, and in which of two directions.

    Returns:
        float of the same shape, from 0 to 255.
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
    """Each pixel of the result from where the rows of a matrix say, both sides being 2 long."""
    matrix = pixels.new_zeros(len(pixels), 2, 3)
    for row, values in enumerate((x, y)):
        for column, value in enumerate(values):
            matrix[:, row, column] = value
    grid = affine_grid(matrix, list(pixels.shape), align_corners=False)
    return grid_sample(pixels - _GREY, grid, align_corners=False) + _GREY


def _shear_y(pixels: Tensor, level: Tensor) -> Tensor:
    return _moved(pixels, (1, 0, 0), (0.3 * level / _tall(pixels), 1, 0))


def _translate_x(pixels: Tensor, level: Tensor) -> Tensor:
    return _moved(pixels, (1, 0, 2 * 150 / 331 * level), (0, 1, 0))


def _translate_y(pixels: Tensor, level: Tensor) -> Tensor:
    return _moved(pixels, (1, 0, 0), (0, 1, 2 * 150 / 331 * level))


def _rotate(pixels: Tensor, level: Tensor) -> Tensor:
    angle, tall = level * math.radians(30), _tall(pixels)
    sin, cos = angle.sin(), angle.cos()
    return _moved(pixels, (cos, -sin * tall, 0), (sin / tall, cos, 0))


def _tall(pixels: Tensor) -> float:
    return pixels.shape[2] / pixels.shape[3]


def _blend(pixels: Tensor, other: Tensor, level: Tensor) -> Tensor:
    """Nearer to another image, or further from it."""
    factor = (1 + 0.9 * level).view(-1, 1, 1, 1)
    return (other + factor * (pixels - other)).clamp(0, 255)


def _grey(pixels: Tensor) -> Tensor:
    weights = pixels.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    return (pixels * weights).sum(1, keepdim=True)


def _brightness(pixels: Tensor, level: Tensor) -> Tensor:
    return _blend(pixels, pixels.new_zeros(()), level)


def _colour(pixels: Tensor, level: Tensor) -> Tensor:
    return _blend(pixels, _grey(pixels), level)


def _contrast(pixels: Tensor, level: Tensor) -> Tensor:
    return _blend(pixels, _grey(pixels).mean((2, 3), keepdim=True), level)


def _sharpness(pixels: Tensor, level: Tensor) -> Tensor:
    kernel = pixels.new_ones(3, 1, 3, 3)
    kernel[:, :, 1, 1] = 5
    smooth = pixels.clone()  # the border has no neighbours, and stays
    smooth[:, :, 1:-1, 1:-1] = conv2d(pixels, kernel / 13, groups=3)
    return _blend(pixels, smooth, level)


def _posterize(pixels: Tensor, level: Tensor) -> Tensor:
    step = 2 ** (4 * level.abs()).round().view(-1, 1, 1, 1)  # 8 to 4 bits are left
    return (pixels / step).floor() * step


def _solarize(pixels: Tensor, level: Tensor) -> Tensor:
    threshold = (256 * (1 - level.abs())).view(-1, 1, 1, 1)
    return torch.where(pixels < threshold, pixels, 255 - pixels)


def _invert(pixels: Tensor, level: Tensor) -> Tensor:
    return 255 - pixels


def _autocontrast(pixels: Tensor, level: Tensor) -> Tensor:
    low, high = pixels.amin((2, 3), keepdim=True), pixels.amax((2, 3), keepdim=True)
    return torch.where(high > low, (pixels - low) * (255 / (high - low).clamp(min=1e-6)), pixels)


def _equalize(pixels: Tensor, level: Tensor) -> Tensor:
    """Pillow's: all levels of a channel become equally frequent, as nearly as may be."""
    levels = pixels.long().flatten(2)
    counts = levels.new_zeros(*levels.shape[:2], 256)
    counts.scatter_add_(2, levels, torch.ones_like(levels))
    last = counts.gather(2, levels.amax(2, keepdim=True))
    step = (levels.shape[2] - last) // 255
    below = counts.cumsum(2) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(2, levels), levels).view_as(pixels).to(pixels.dtype)


# By a level from -1 to 1; where there is no direction its sign has no meaning.
OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
    "rotate": _rotate,
    "brightness": _brightness,
    "colour": _colour,
    "contrast": _contrast,
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": _solarize,
    "invert": _invert,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
}
