import copy

import pytest
import torch
from torch import Tensor, nn

from densekd.nn.classifier import Classifier, CosineClassifier, LinearClassifier
from densekd.nn.network import Features, Network
from densekd.nn.proxies import ProxyClassifier
from densekd.nn.resnet import Block, cifar_resnet, resnet18
from densekd.nn.wideresnet import WideResNet


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameters_are_as_many_as_published() -> None:
    assert count(cifar_resnet(32)) == 466_256  # CCIL's backbone
    assert count(resnet18()) == 11_689_512 - 513_000  # without the classifier of 1000 classes
    with torch.device("meta"):
        assert count(WideResNet(40, 4)) + 256 * 100 + 100 == pytest.approx(8.97e6, rel=1e-3)
        assert count(WideResNet(28, 10)) + 640 * 10 + 10 == pytest.approx(36.5e6, rel=1e-3)


@pytest.mark.parametrize(
    ("backbone", "size", "shapes"),
    [
        (cifar_resnet(8), 32, [(16, 32), (32, 16), (64, 8)]),
        (cifar_resnet(8), 8, [(16, 8), (32, 4), (64, 2)]),
        (WideResNet(10, 2), 32, [(32, 32), (64, 16), (128, 8)]),
        (resnet18(), 64, [(64, 16), (128, 8), (256, 4), (512, 2)]),
    ],
)
def test_maps_halve_from_stage_to_stage(
    backbone: nn.Module, size: int, shapes: list[tuple[int, int]]
) -> None:
    given: Features = backbone(torch.randn(2, 3, size, size))
    assert [tuple(m.shape) for m in given.maps] == [(2, c, s, s) for c, s in shapes]
    assert given.pooled.shape == (2, backbone.width)


def test_only_the_last_relu_is_missing_from_the_cifar_networks() -> None:
    torch.manual_seed(0)
    network = cifar_resnet(8)
    given = network(torch.randn(4, 3, 16, 16))
    assert [bool((m < 0).any()) for m in given.maps] == [False, False, True]
    torch.testing.assert_close(given.pooled, given.maps[-1].mean((2, 3)))
    blocks = [module for module in network.modules() if isinstance(module, Block)]
    assert [block.last_relu for block in blocks] == [True, True, False]
    assert not any((m < 0).any() for m in resnet18()(torch.randn(2, 3, 64, 64)).maps)
    assert (resnet18(last_relu=False)(torch.randn(2, 3, 64, 64)).maps[-1] < 0).any()


@pytest.mark.parametrize("kind", [CosineClassifier, LinearClassifier, ProxyClassifier])
@pytest.mark.parametrize("sizes", [[50, 10, 10], [3, 1, 1, 1], [50] + [1] * 20])
def test_growing_keeps_the_old_logits_to_the_bit(kind: type[Classifier], sizes: list[int]) -> None:
    torch.manual_seed(0)
    network = Network(cifar_resnet(8), kind(64)).eval()
    images = torch.randn(16, 3, 8, 8)
    before = torch.empty(16, 0)
    for size in sizes:
        network.grow(size)
        after = network(images).logits
        assert after.shape == (16, before.shape[1] + size)
        assert torch.equal(after[:, : before.shape[1]], before)
        before = after
    assert network.classifier.sizes == tuple(sizes)
    assert network.classifier.classes == sum(sizes)


def test_the_cosine_classifier_is_a_scaled_cosine() -> None:
    torch.manual_seed(0)
    classifier = CosineClassifier(8)
    classifier.grow(3)
    classifier.grow(2)
    classifier.scale.data.fill_(7.0)
    features = torch.randn(5, 8)
    weights = torch.cat(list(classifier.blocks))
    expected = 7 * torch.cosine_similarity(features[:, None], weights[None], dim=2)
    torch.testing.assert_close(classifier(features), expected)
    assert weights.abs().max() <= 8**-0.5


def test_the_linear_classifier_is_a_linear_layer() -> None:
    torch.manual_seed(0)
    classifier = LinearClassifier(8)
    classifier.grow(3)
    classifier.grow(2)
    features = torch.randn(5, 8)
    weights, biases = torch.cat(list(classifier.blocks)), torch.cat(list(classifier.biases))
    torch.testing.assert_close(classifier(features), features @ weights.T + biases)


def test_a_grown_network_comes_back_from_its_state() -> None:
    torch.manual_seed(0)
    network = Network(cifar_resnet(8), CosineClassifier(64)).eval()
    network.grow(4)
    network.grow(2)
    other = copy.deepcopy(network)
    for parameter in other.parameters():
        parameter.data.zero_()
    other.load_state_dict(network.state_dict())
    images = torch.randn(3, 3, 8, 8)
    assert torch.equal(other(images).logits, network(images).logits)


class Mean(nn.Module):
    width = 3

    def forward(self, images: Tensor) -> Features:
        return Features(images.mean((2, 3)), ())


def test_any_module_that_gives_features_can_be_the_backbone() -> None:
    network = Network(Mean(), LinearClassifier(3))
    network.grow(5)
    outputs = network(torch.ones(2, 3, 4, 4))
    assert outputs.logits.shape == (2, 5)
    assert torch.equal(outputs.features, torch.ones(2, 3))


def test_impossible_networks_get_a_sentence() -> None:
    with pytest.raises(ValueError, match="no CIFAR ResNet-31"):
        cifar_resnet(31)
    with pytest.raises(ValueError, match="no WRN-40-0"):
        WideResNet(40, 0)
    with pytest.raises(ValueError, match="gives 3 features, the classifier takes 4"):
        Network(Mean(), LinearClassifier(4))
    with pytest.raises(ValueError, match="Can't grow by 0"):
        LinearClassifier(4).grow(0)
    with pytest.raises(ValueError, match="must be an nn"):
        Network(object(), LinearClassifier(4))  # type: ignore[arg-type]
