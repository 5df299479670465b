from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from densekd.data.autoaugment import NUMBERS, OPERATIONS, distorted

_Picture = Callable[[Image.Image], Image.Image]


def images(n: int = 6, height: int = 32, width: int = 32) -> Tensor:
    """Gradients with some noise, in whole numbers from 0 to 255."""
    source = torch.Generator().manual_seed(0)
    slope = torch.linspace(0, 1, height)[:, None] * torch.linspace(20, 200, width)
    noise = torch.randint(0, 50, (n, 3, height, width), generator=source)
    return (slope + noise).floor()


def by_pillow(pixels: Tensor, operation: _Picture) -> Tensor:
    """Augment one image at a time with Pillow, as AutoAugment's authors did."""
    pictures = [Image.fromarray(p.permute(1, 2, 0).byte().numpy()) for p in pixels]
    return torch.stack(
        [torch.from_numpy(np.array(operation(p))).permute(2, 0, 1).float() for p in pictures]
    )


def applied(name: str, level: float, pixels: Tensor) -> Tensor:
    return OPERATIONS[name](pixels, torch.full((len(pixels),), level))


# Pillow rounds to whole numbers between steps; our operations don't.
@pytest.mark.parametrize(
    ("name", "level", "operation", "tolerance"),
    [
        ("brightness", 7 / 9, lambda p: ImageEnhance.Brightness(p).enhance(1.7), 1),
        ("brightness", -1.0, lambda p: ImageEnhance.Brightness(p).enhance(0.1), 1),
        ("colour", 1.0, lambda p: ImageEnhance.Color(p).enhance(1.9), 1.5),
        ("colour", -3 / 9, lambda p: ImageEnhance.Color(p).enhance(0.7), 1.5),
        ("contrast", 6 / 9, lambda p: ImageEnhance.Contrast(p).enhance(1.6), 1.5),
        ("contrast", -6 / 9, lambda p: ImageEnhance.Contrast(p).enhance(0.4), 1.5),
        ("sharpness", 1.0, lambda p: ImageEnhance.Sharpness(p).enhance(1.9), 1.5),
        ("sharpness", -1.0, lambda p: ImageEnhance.Sharpness(p).enhance(0.1), 1.5),
        ("posterize", 7 / 9, lambda p: ImageOps.posterize(p, 5), 0),
        ("posterize", 0.0, lambda p: ImageOps.posterize(p, 8), 0),
        ("solarize", -4.5 / 9, lambda p: ImageOps.solarize(p, 128), 0),
        ("invert", 0.5, ImageOps.invert, 0),
        ("autocontrast", 0.5, ImageOps.autocontrast, 1),
        ("equalize", 0.5, ImageOps.equalize, 0),
    ],
)
def test_colours_are_changed_as_pillow_does(
    name: str, level: float, operation: _Picture, tolerance: float
) -> None:
    given, expected = applied(name, level, images()), by_pillow(images(), operation)
    torch.testing.assert_close(given, expected, atol=tolerance, rtol=0)
    if level:
        assert (given - images()).abs().mean() > 1


def turned(angle: float) -> _Picture:
    return lambda p: p.rotate(angle, Image.Resampling.BILINEAR, fillcolor=(128,) * 3)


def sheared(slope: float, width: int) -> _Picture:
    centred = (1, 0, 0, slope, 1, -slope * width / 2)
    fill = (128,) * 3
    return lambda p: p.transform(
        p.size, Image.Transform.AFFINE, centred, Image.Resampling.BILINEAR, fillcolor=fill
    )


@pytest.mark.parametrize(("height", "width"), [(32, 32), (32, 20)])
def test_shapes_are_changed_as_pillow_does_but_about_the_centre(height: int, width: int) -> None:
    pixels, inner = images(3, height, width), (slice(8, -8), slice(6, -6))
    for name, operation in (("rotate", turned(30)), ("shear_y", sheared(0.3, width))):
        given, expected = applied(name, 1.0, pixels), by_pillow(pixels, operation)
        torch.testing.assert_close(given[:, :, *inner], expected[:, :, *inner], atol=2, rtol=0)
        # The parts that move in from outside are grey.
        assert (given[:, :, 0, 0] == 128).all()
        assert (given - applied(name, -1.0, pixels)).abs().mean() > 1


@pytest.mark.parametrize("by", [-150, 150])
def test_images_are_moved_by_up_to_150_of_331_of_their_side(by: int) -> None:
    pixels = images(2, 331, 331)
    for name, axis in (("translate_x", 3), ("translate_y", 2)):
        expected = torch.full_like(pixels, 128)
        size, start, end = 331 - abs(by), max(0, -by), max(0, by)
        expected.narrow(axis, start, size).copy_(pixels.narrow(axis, end, size))
        given = applied(name, by / 150, pixels)
        torch.testing.assert_close(given, expected, atol=0.1, rtol=0)


def drawn(n: int) -> Tensor:
    return torch.rand(n, NUMBERS, generator=torch.Generator().manual_seed(1))


def test_each_image_is_distorted_by_its_own_numbers() -> None:
    pixels, numbers = images(200), drawn(200)
    given = distorted(pixels.byte(), numbers)
    alone = [distorted(p[None], x[None])[0] for p, x in zip(pixels, numbers, strict=True)]
    torch.testing.assert_close(given, torch.stack(alone), atol=1e-3, rtol=0)
    assert torch.equal(pixels, images(200))
    changed = (given != pixels).flatten(1).any(1).double().mean()
    assert 0.6 < changed < 0.98
    assert given.min() >= -1e-3
    assert given.max() <= 255 + 1e-3


def test_the_numbers_say_which_pair_whether_and_in_which_direction() -> None:
    pixels = images(1)

    def by(*numbers: float) -> Tensor:
        return distorted(pixels, torch.tensor([numbers]))

    never, always = 0.999, 0.0
    assert torch.equal(by(0.01, never, 0.1, never, 0.1), pixels)
    assert torch.equal(by(0.01, always, 0.1, never, 0.1), 255 - pixels)
    first = applied("sharpness", -1 / 9, pixels)
    torch.testing.assert_close(by(0.1, always, 0.1, never, 0.1), first)
    both = applied("sharpness", 3 / 9, first)
    torch.testing.assert_close(by(0.1, always, 0.1, always, 0.9), both)
    moved = applied("autocontrast", 1 / 9, applied("translate_y", 1.0, pixels))
    torch.testing.assert_close(by(0.9999999, 0.69, 0.5, 0.89, 0.5), moved)
    assert torch.equal(by(0.9999999, 0.71, 0.5, 0.91, 0.5), pixels)


def test_an_image_of_one_colour_stays_one() -> None:
    flat = torch.full((len(OPERATIONS), 3, 8, 8), 77.0)
    for name in ("autocontrast", "equalize", "contrast", "sharpness", "colour"):
        torch.testing.assert_close(applied(name, 1.0, flat), flat)
