import torch
from torch import Tensor
from torch.nn.functional import normalize

from densekd.model.frozen.copies import first_copies


def photos(count: int, seed: int = 0) -> Tensor:
    """Features of length 1 that have little in common."""
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(count, 256, generator=generator), dim=1)


def turned(features: Tensor, cosine: float, seed: int) -> Tensor:
    """Features at this cosine to the given ones, in a direction drawn by the seed."""
    other = photos(len(features), seed)
    across = normalize(other - (other * features).sum(1, keepdim=True) * features, dim=1)
    sine = float((1 - cosine**2) ** 0.5)
    return cosine * features + sine * across


def test_different_photos_are_their_own() -> None:
    assert first_copies(photos(20), torch.arange(20) % 3).tolist() == list(range(20))


def test_near_copies_have_the_first_one_in_common() -> None:
    features = photos(4)
    burst = torch.cat([features, features, turned(features, 0.97, 1), turned(features, 0.9, 2)])
    copies = first_copies(burst, torch.zeros(16, dtype=torch.int64))
    assert copies.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 12, 13, 14, 15]


def test_another_class_has_no_copies() -> None:
    features = photos(1).repeat(4, 1)
    assert first_copies(features, torch.tensor([1, 0, 1, 0])).tolist() == [0, 1, 0, 1]


def test_a_large_class_is_compared_in_parts() -> None:
    features = photos(1500)
    places = first_copies(torch.cat([features, features]), torch.zeros(3000, dtype=torch.int64))
    assert places.tolist() == [*range(1500), *range(1500)]
