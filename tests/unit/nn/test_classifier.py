import copy
from typing import get_args

import pytest
import torch

from densekd.nn.classifier import HEADS, BiasClassifier, CosineClassifier, Head, LinearClassifier


def grown(*sizes: int) -> BiasClassifier:
    torch.manual_seed(0)
    classifier = BiasClassifier(8)
    for size in sizes:
        classifier.grow(size)
    return classifier


def corrected(classifier: BiasClassifier) -> None:
    classifier.beta.data.fill_(0.5)
    classifier.gamma.data.fill_(-3.0)


def linear_part(classifier: BiasClassifier, features: torch.Tensor) -> torch.Tensor:
    weights, biases = torch.cat(list(classifier.blocks)), torch.cat(list(classifier.biases))
    return features @ weights.T + biases


def test_only_the_newest_logits_are_corrected() -> None:
    classifier, features = grown(3, 2, 4), torch.randn(5, 8)
    expected = linear_part(classifier, features)
    torch.testing.assert_close(classifier(features), expected)
    before = classifier(features)
    corrected(classifier)
    after = classifier(features)
    assert torch.equal(after[:, :5], before[:, :5])
    torch.testing.assert_close(after[:, 5:], 0.5 * expected[:, 5:] - 3)


def test_a_first_block_is_the_newest() -> None:
    classifier, features = grown(3), torch.randn(5, 8)
    corrected(classifier)
    expected = 0.5 * linear_part(classifier, features) - 3
    torch.testing.assert_close(classifier(features), expected)


def test_growing_drops_the_correction_and_a_copy_keeps_it() -> None:
    classifier, features = grown(3, 2), torch.randn(5, 8)
    corrected(classifier)
    teacher, before = copy.deepcopy(classifier), classifier(features)
    classifier.grow(4)
    after = classifier(features)
    assert (classifier.beta.item(), classifier.gamma.item()) == (1, 0)
    assert torch.equal(after[:, :3], before[:, :3])
    # These were the newest, so unlike other old logits they change.
    torch.testing.assert_close(0.5 * after[:, 3:5] - 3, before[:, 3:5])
    assert torch.equal(teacher(features), before)


def test_it_starts_as_the_linear_classifier_to_the_bit() -> None:
    classifier, features = grown(3, 2), torch.randn(5, 8)
    torch.manual_seed(0)
    linear = LinearClassifier(8)
    linear.grow(3)
    linear.grow(2)
    assert torch.equal(classifier(features), linear(features))


def test_the_correction_has_the_gradient_of_the_newest_logits() -> None:
    classifier, features = grown(3, 2), torch.randn(5, 8)
    upstream = torch.randn(5, 5)
    (classifier(features) * upstream).sum().backward()
    new = linear_part(classifier, features)[:, 3:]
    torch.testing.assert_close(classifier.beta.grad, (new * upstream[:, 3:]).sum().detach())
    torch.testing.assert_close(classifier.gamma.grad, upstream[:, 3:].sum())


def test_the_correction_is_part_of_the_state() -> None:
    classifier, features = grown(3, 2), torch.randn(5, 8)
    corrected(classifier)
    other = grown(3, 2)
    other.load_state_dict(classifier.state_dict())
    assert torch.equal(other(features), classifier(features))


@pytest.mark.parametrize("kind", [LinearClassifier, BiasClassifier])
def test_linear_layers_are_not_imprinted(kind: type[LinearClassifier]) -> None:
    classifier = kind(8)
    classifier.grow(3)
    classifier.grow(1)
    with pytest.raises(ValueError, match=f"A {kind.__name__} can't be imprinted"):
        classifier.imprint(torch.randn(2, 8), torch.tensor([0, 0]), seed=0)


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


def test_growing_by_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="Can't grow by 0"):
        LinearClassifier(4).grow(0)


def test_every_head_has_a_classifier() -> None:
    assert set(HEADS) == set(get_args(Head))
