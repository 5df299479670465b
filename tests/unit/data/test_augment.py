from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from densekd.data.augment import Augment, Draws
from densekd.data.autoaugment import distorted

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def images(n: int = 64, height: int = 6, width: int = 5) -> Tensor:
    source = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (n, 3, height, width), generator=source, dtype=torch.uint8)


def denormalised(x: Tensor) -> Tensor:
    return (x * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)) * 255


def literally(image: Tensor, corner: Tensor, flipped: bool, padding: int) -> Tensor:
    """One image at a time: pad, slice, flip."""
    _, height, width = image.shape
    padded = torch.zeros(3, height + 2 * padding, width + 2 * padding)
    padded[:, padding : padding + height, padding : padding + width] = image
    top, left = corner.tolist()
    crop = padded[:, top : top + height, left : left + width]
    return crop.flip(2) if flipped else crop


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("flip", [False, True])
def test_augmenting_a_batch_equals_augmenting_each_image(padding: int, flip: bool) -> None:
    augment = Augment(MEAN, STD, padding=padding, flip=flip)
    draws = augment.draw(64, torch.Generator().manual_seed(1))
    given = denormalised(augment(images(), draws))
    expected = torch.stack(
        [
            literally(image, corner, bool(flipped), padding)
            for image, corner, flipped in zip(images(), draws.corners, draws.flipped, strict=True)
        ]
    )
    torch.testing.assert_close(given, expected, atol=1e-3, rtol=0)


def test_a_flip_is_horizontal_and_keeps_the_channels() -> None:
    augment = Augment(MEAN, STD, padding=0)
    nothing = torch.empty(1, 0)
    draws = Draws(torch.zeros(1, 2).long(), torch.tensor([True]), torch.ones(1), nothing)
    given = denormalised(augment(images(1), draws))[0]
    torch.testing.assert_close(given, images(1)[0].flip(-1).float(), atol=1e-3, rtol=0)


def test_corners_and_flips_are_drawn_evenly() -> None:
    draws = Augment(MEAN, STD, padding=2).draw(50_000, torch.Generator().manual_seed(2))
    counts = torch.bincount(draws.corners[:, 0] * 5 + draws.corners[:, 1], minlength=25)
    assert counts.shape == (25,)
    assert (counts - 2000).abs().max() < 5 * 2000**0.5
    assert abs(draws.flipped.double().mean() - 0.5) < 5 * 0.5 / 50_000**0.5
    assert not Augment(MEAN, STD, flip=False).draw(99, torch.Generator()).flipped.any()


def test_brightness_multiplies_and_saturates() -> None:
    augment = Augment(MEAN, STD, padding=0, flip=False, brightness=63 / 255)
    draws = augment.draw(64, torch.Generator().manual_seed(3))
    assert draws.brightness.min() < 0.8
    assert draws.brightness.max() > 1.2
    assert (draws.brightness - 1).abs().max() <= 63 / 255
    expected = (images() * draws.brightness.view(-1, 1, 1, 1)).clamp(max=255)
    torch.testing.assert_close(denormalised(augment(images(), draws)), expected, atol=1e-3, rtol=0)
    assert expected.max() == 255


def test_normalising_gives_mean_zero_and_deviation_one() -> None:
    pixels = images(500)
    mean = tuple((pixels.double() / 255).mean((0, 2, 3)).tolist())
    std = tuple((pixels.double() / 255).std((0, 2, 3)).tolist())
    x = Augment(mean, std).normalise(pixels)
    assert x.dtype == torch.float32
    assert x.mean((0, 2, 3)).abs().max() < 1e-3
    assert (x.std((0, 2, 3)) - 1).abs().max() < 1e-3


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="padding=-1"):
        Augment(MEAN, STD, padding=-1)
    with pytest.raises(ValueError, match=r"brightness=1\.5"):
        Augment(MEAN, STD, brightness=1.5)
    with pytest.raises(ValueError, match=r"std=\(0"):
        Augment(MEAN, (0.0, 1.0, 1.0))


def test_heavy_augmentation_does_not_change_the_usual_draws() -> None:
    usual = Augment(MEAN, STD, padding=2)
    draws = usual.draw(64, torch.Generator().manual_seed(1))
    more = usual.of("heavy").draw(64, torch.Generator().manual_seed(1))
    assert all(torch.equal(a, b) for a, b in zip(draws[:3], more[:3], strict=True))
    assert draws.heavy.shape == (64, 0)
    assert more.heavy.shape == (64, 7)
    assert not usual.heavy


def literally_heavy(image: Tensor, corner: Tensor, flipped: bool, centre: Tensor) -> Tensor:
    """One image at a time: cut out, mirror at the borders, slice, flip."""
    cut = image.clone().float()
    y, x = (int(c * side) for c, side in zip(centre.tolist(), image.shape[1:], strict=True))
    cut[:, max(0, y - 8) : y + 8, max(0, x - 8) : x + 8] = 0
    padded = torch.from_numpy(np.pad(cut.numpy(), ((0, 0), (4, 4), (4, 4)), mode="reflect"))
    top, left = corner.tolist()
    crop = padded[:, top : top + 32, left : left + 32]
    return crop.flip(2) if flipped else crop


def test_heavy_augmentation_cuts_mirrors_and_distorts() -> None:
    pixels, augment = images(40, 32, 32), Augment(MEAN, STD, padding=4).of("heavy")
    draws = augment.draw(40, torch.Generator().manual_seed(1))
    rows = zip(pixels, draws.corners, draws.flipped, draws.heavy[:, 5:], strict=True)
    cut = torch.stack([literally_heavy(p, c, bool(f), h) for p, c, f, h in rows])
    still = draws._replace(heavy=draws.heavy.clone())
    still.heavy[:, 1] = still.heavy[:, 3] = 1  # no operation is applied
    torch.testing.assert_close(denormalised(augment(pixels, still)), cut, atol=1e-3, rtol=0)
    expected = distorted(cut, draws.heavy)
    assert not torch.equal(expected, cut)
    torch.testing.assert_close(denormalised(augment(pixels, draws)), expected, atol=1e-3, rtol=0)


def test_negative_mixup_is_refused() -> None:
    assert Augment(MEAN, STD).of("usual", 0.1).mixup == 0.1
    with pytest.raises(ValueError, match="mixup must be at least 0, not -1"):
        Augment(MEAN, STD).of("usual", -1.0)


@pytest.mark.parametrize("settings", [{}, {"padding": 0}, {"brightness": 0.3}, {"crop": "resized"}])
def test_large_images_are_augmented_a_few_at_a_time_with_the_same_result(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels, augment = images(7, 110, 120), Augment(MEAN, STD, **settings)
    draws = augment.draw(7, torch.Generator().manual_seed(1))
    found = augment(pixels, draws)
    colours_last = augment(pixels.contiguous(memory_format=torch.channels_last), draws)
    monkeypatch.setattr("densekd.data.augment._LARGE", 10**9)
    assert torch.equal(found, augment(pixels, draws))
    assert torch.equal(found, colours_last)
