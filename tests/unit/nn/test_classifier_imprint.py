import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans  # type: ignore[import-untyped]
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from densekd.nn.classifier import Classifier, CosineClassifier, ProxyClassifier

Array = NDArray[np.float64]


def grown(classifier: Classifier, *sizes: int) -> Classifier:
    torch.manual_seed(0)
    for size in sizes:
        classifier.grow(size)
    return classifier


def images(classes: int, each: int, width: int = 8) -> tuple[Tensor, Tensor]:
    """Make features of classes in turn, each class around its own centre."""
    torch.manual_seed(1)
    labels = torch.arange(classes).repeat(each)
    return 3 * torch.randn(classes, width)[labels] + torch.randn(classes * each, width), labels


def units(features: Tensor, labels: Tensor, label: int) -> Array:
    own = features[labels == label].double().numpy()
    return np.asarray(own / np.linalg.norm(own, axis=1, keepdims=True))


def old_length(classifier: Classifier) -> float:
    old = torch.cat(list(classifier.blocks)[:-1]).detach().double().numpy()
    return float(np.mean([np.linalg.norm(row) for row in old]))


def test_a_cosine_classifier_takes_the_mean_direction() -> None:
    classifier = grown(CosineClassifier(8), 4, 1, 3)
    old = [block.detach().clone() for block in classifier.blocks[:-1]]
    features, labels = images(3, 5)
    classifier.imprint(features, labels, seed=0)
    for label, row in enumerate(classifier.blocks[-1].detach().double().numpy()):
        mean = units(features, labels, label).mean(0)
        expected = mean / np.linalg.norm(mean) * old_length(classifier)
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-7)
    assert all(map(torch.equal, old, classifier.blocks[:-1]))
    assert all(block.requires_grad and block.grad_fn is None for block in classifier.blocks)


def test_an_imprinted_classifier_knows_the_new_classes() -> None:
    features, labels = images(3, 50)
    for classifier in (CosineClassifier(8), ProxyClassifier(8)):
        grown(classifier, 4, 3)
        drawn = (classifier(features).argmax(1) == labels + 4).float().mean()
        classifier.imprint(features, labels, seed=0)
        imprinted = (classifier(features).argmax(1) == labels + 4).float().mean()
        assert imprinted > 0.9 > drawn


def test_proxies_take_the_centres_of_clusters() -> None:
    classifier = grown(ProxyClassifier(8, proxies=4), 4, 3, 2)
    features, labels = images(2, 40)
    classifier.imprint(features, labels, seed=2**40 + 7)
    rows = classifier.blocks[-1].detach().double().numpy() / old_length(classifier)
    for label in (0, 1):
        own = rows[4 * label : 4 * label + 4]
        points = units(features, labels, label)
        fitted = KMeans(4, n_init=10, random_state=7).fit(points)
        np.testing.assert_allclose(own, fitted.cluster_centers_, rtol=1e-5, atol=1e-7)
        # A centre is the mean of the points that are nearest to it.
        nearest = ((points[:, None] - own[None]) ** 2).sum(2).argmin(1)
        means = [points[nearest == k].mean(0) for k in range(4)]
        np.testing.assert_allclose(own, means, rtol=1e-5, atol=1e-6)


def test_clusters_are_the_same_for_any_number_of_threads() -> None:
    features, labels = images(1, 1300, width=32)  # several of k-means' portions of 256
    imprinted = []
    for threads in (1, 4, 4, 4):
        classifier = grown(ProxyClassifier(32).double(), 2, 1)
        with threadpool_limits(threads):
            classifier.imprint(features, labels, seed=5)
        imprinted.append(classifier.blocks[-1])
    assert all(torch.equal(imprinted[0], other) for other in imprinted[1:])


def test_a_seed_decides_what_is_drawn() -> None:
    def imprinted(each: int, seed: int) -> Tensor:
        classifier = grown(ProxyClassifier(8, proxies=6), 2, 2)
        classifier.imprint(*images(2, each), seed=seed)
        return torch.cat(list(classifier.blocks))

    for each in (60, 3):  # clusters, or repeated images
        assert torch.equal(imprinted(each, 1), imprinted(each, 1))
        assert not torch.equal(imprinted(each, 1), imprinted(each, 2))


@pytest.mark.parametrize("copies", [1, 9])
def test_few_distinct_images_are_repeated_with_noise(copies: int) -> None:
    classifier = grown(ProxyClassifier(8, proxies=10), 2, 1)
    features, _ = images(1, 3)
    features = features.repeat(copies, 1)
    labels = torch.zeros(len(features), dtype=torch.int64)
    classifier.imprint(features, labels, seed=0)
    rows = classifier.blocks[-1].detach().double().numpy() / old_length(classifier)
    apart = np.linalg.norm(rows[:, None] - units(features, labels, 0)[None, :3], axis=2)
    assert 0 < apart.min(1).min() <= apart.min(1).max() < 0.03
    assert sorted(np.bincount(apart.argmin(1))) == [3, 3, 4]
    assert len(np.unique(rows, axis=0)) == 10


def test_a_single_image_is_enough() -> None:
    classifier = ProxyClassifier(8)
    grown(classifier, 2, 1)
    feature = torch.randn(1, 8)
    classifier.imprint(feature, torch.tensor([0]), seed=0)
    assert classifier.scores(feature)[0, 2].item() == pytest.approx(0, abs=1e-3)


def test_impossible_imprints_are_refused() -> None:
    classifier = grown(CosineClassifier(8), 2)
    features, labels = images(3, 2)
    with pytest.raises(ValueError, match="grow by a first task before"):
        classifier.imprint(features, labels, seed=0)
    classifier.grow(3)
    drawn = classifier.blocks[-1].detach().clone()
    for wrong in (labels + 1, labels - 1, labels.clamp(max=1)):
        with pytest.raises(ValueError, match="Each of the 3 new classes needs an image"):
            classifier.imprint(features, wrong, seed=0)
    for shaped in ((features[:, :7], labels), (features[1:], labels), (features, labels[None])):
        with pytest.raises(ValueError, match=r"needs features \[n, 8\] and labels \[n\]"):
            classifier.imprint(*shaped, seed=0)
    assert torch.equal(classifier.blocks[-1], drawn)
