import pytest
import torch

from densekd.nn.registry import make_backbone
from densekd.nn.resnet import WideResNet


@pytest.mark.parametrize(
    ("name", "heights"), [("wrn-10-1", (224, 112, 56)), ("wrn-10-1-large", (56, 28, 14))]
)
def test_a_stem_for_large_images_makes_maps_a_quarter_as_high(
    name: str, heights: tuple[int, ...]
) -> None:
    with torch.no_grad():
        features = make_backbone(name)(torch.zeros(1, 3, 224, 224))
    assert tuple(one.shape[2] for one in features.maps) == heights
    assert features.pooled.shape == (1, 64)


def test_only_the_stem_differs() -> None:
    small, large = (
        dict(WideResNet(10, 2, large=large).named_parameters()) for large in (False, True)
    )
    kept = [name for name in small if not name.startswith("stem")]
    assert kept == [name for name in large if not name.startswith("stem")]
    assert all(small[name].shape == large[name].shape for name in kept)
