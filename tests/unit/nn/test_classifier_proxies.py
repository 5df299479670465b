import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from densekd.nn.classifier import ProxyClassifier

Array = NDArray[np.float64]


def grown(*sizes: int, proxies: int = 3) -> ProxyClassifier:
    torch.manual_seed(0)
    classifier = ProxyClassifier(8, proxies)
    for size in sizes:
        classifier.grow(size)
    return classifier


def reference(features: Array, weights: Array, proxies: int) -> Array:
    """Class by class: the softmax-weighted mean of minus the squared distances."""
    scores = np.empty((len(features), len(weights) // proxies))
    for row, f in enumerate(features):
        for c in range(scores.shape[1]):
            own = weights[c * proxies : (c + 1) * proxies]
            s = [-np.sum((f / np.linalg.norm(f) - w / np.linalg.norm(w)) ** 2) for w in own]
            scores[row, c] = np.dot(np.exp(s) / np.exp(s).sum(), s)
    return scores


def test_scores_are_as_written_and_logits_are_scaled() -> None:
    classifier = grown(4, 1, 2).double()
    features = 5 * torch.randn(6, 8, dtype=torch.float64)
    weights = torch.cat(list(classifier.blocks)).detach().numpy()
    expected = torch.from_numpy(reference(features.numpy(), weights, 3))
    torch.testing.assert_close(classifier.scores(features), expected)
    torch.testing.assert_close(classifier(features), expected)
    classifier.eta.data.fill_(12.5)
    torch.testing.assert_close(classifier.scores(features), expected)
    torch.testing.assert_close(classifier(features), 12.5 * expected)


def test_a_score_is_0_on_all_proxies_and_minus_4_opposite_them() -> None:
    classifier = grown(2)
    classifier.blocks[0].data[:3] = torch.eye(8)[0]
    scores = classifier.scores(7 * torch.stack([torch.eye(8)[0], -torch.eye(8)[0]]))
    torch.testing.assert_close(scores[:, 0], torch.tensor([0.0, -4.0]))


def test_classes_are_counted_not_proxies() -> None:
    classifier = grown(4, 1, 2)
    assert classifier.sizes == (4, 1, 2)
    assert classifier.classes == 7
    assert [tuple(block.shape) for block in classifier.blocks] == [(12, 8), (3, 8), (6, 8)]
    assert classifier(torch.randn(5, 8)).shape == (5, 7)
    assert classifier(torch.randn(0, 8)).shape == (0, 7)


def test_one_proxy_is_a_cosine() -> None:
    classifier, features = grown(4, proxies=1), torch.randn(5, 8)
    cosines = torch.cosine_similarity(features[:, None], classifier.blocks[0][None], dim=2)
    torch.testing.assert_close(classifier(features), 2 * cosines - 2)


def test_blocks_are_drawn_as_kaiming_draws_linear_ones() -> None:
    torch.manual_seed(0)
    classifier = ProxyClassifier(64)
    classifier.grow(200)
    drawn = classifier.blocks[0].detach()
    assert len(drawn) == 2000
    assert drawn.mean().item() == pytest.approx(0, abs=1e-3)
    assert drawn.std().item() == pytest.approx(1 / 8, rel=1e-2)
    assert drawn.abs().max() > 4 / 8  # a uniform distribution would end at sqrt(3) / 8


def test_all_blocks_and_the_scale_learn() -> None:
    classifier = grown(4, 2).double()
    classifier.eta.data.fill_(3.0)
    features = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    inputs = (features, *classifier.parameters())
    assert torch.autograd.gradcheck(lambda features, *_: classifier(features), inputs)
    classifier(features).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().min() > 0 for p in classifier.parameters())


def test_impossible_proxies_are_refused() -> None:
    with pytest.raises(ValueError, match="can't have 0 proxies"):
        ProxyClassifier(8, proxies=0)
    with pytest.raises(ValueError, match="Can't grow by -1 classes"):
        ProxyClassifier(8).grow(-1)
