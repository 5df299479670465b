import copy

import pytest
import torch
from torch import Tensor, nn

from densekd.nn.classifier import Classifier, CosineClassifier, LinearClassifier, ProxyClassifier
from densekd.nn.network import Features, Network
from densekd.nn.resnet import cifar_resnet


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


def test_a_grown_network_is_restored_from_its_state() -> None:
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


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="has 3 features, the classifier 4"):
        Network(Mean(), LinearClassifier(4))
    with pytest.raises(ValueError, match="must be an nn"):
        Network(object(), LinearClassifier(4))  # type: ignore[arg-type]
