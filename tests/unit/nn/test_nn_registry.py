import pytest

from densekd.nn.registry import make_backbone
from densekd.nn.resnet import ResNet, WideResNet


@pytest.mark.parametrize(
    ("name", "kind", "width", "stages"),
    [
        ("resnet20", ResNet, 64, 3),
        ("resnet18", ResNet, 512, 4),
        ("ucir18", ResNet, 512, 4),
        ("podnet14", ResNet, 64, 4),
        ("podnet18", ResNet, 512, 4),
        ("wrn-10-2", WideResNet, 128, 3),
        ("wrn-10-2-large", WideResNet, 128, 3),
    ],
)
def test_a_name_builds_its_network(name: str, kind: type, width: int, stages: int) -> None:
    backbone = make_backbone(name)
    assert isinstance(backbone, kind)
    assert (backbone.width, len(backbone.stages)) == (width, stages)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["", "resnet", "resnet18x", "wrn-40", "vgg16"])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=f"no network '{name}'.*resnet32.*wrn-40-4.*hf:FOLDER"):
        make_backbone(name)
