import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from densekd.model.frozen.head import fit_head
from densekd.model.frozen.unknown import UnknownRule, cross_scores, fit_unknown


def around(means: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features of length 1 around each mean."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(means)).repeat_interleave(count)
    noise = 0.04 * torch.randn(len(labels), means.shape[1], generator=generator)
    return normalize(means[labels] + noise, dim=1), labels


def directions(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(count, 64, generator=generator).abs(), dim=1)


TAUGHT = directions(4, 0)


def fitted(features: Tensor, labels: Tensor, classes: int) -> UnknownRule:
    return fit_unknown(features, labels, classes, cross_scores(features, labels, classes))


@pytest.fixture(scope="module")
def rule() -> UnknownRule:
    return fitted(*around(TAUGHT, 100, 1), 4)


def unknown(rule: UnknownRule, features: Tensor, refused: float) -> float:
    head = fit_head(*around(TAUGHT, 100, 1), 4)
    familiar = rule.familiarity(features, head.scores(features))
    return float((familiar < rule.threshold(refused)).float().mean())


def test_other_things_are_unknown_and_known_ones_seldom(rule: UnknownRule) -> None:
    known, _ = around(TAUGHT, 200, 2)
    other, _ = around(directions(4, 3), 200, 4)
    assert unknown(rule, known, 0.05) < 0.07
    assert unknown(rule, other, 0.05) > 0.9


def test_the_share_can_be_set(rule: UnknownRule) -> None:
    known, _ = around(TAUGHT, 200, 2)
    shares = [unknown(rule, known, refused) for refused in (0.0, 0.02, 0.1, 0.4)]
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert 0.2 < shares[-1] < 0.5
    with pytest.raises(ValueError, match="from 0 to below 1"):
        rule.threshold(1.0)


def test_at_most_the_share_of_its_own_scores_is_refused(rule: UnknownRule) -> None:
    for refused in (0.01, 0.05, 0.2):
        assert float((rule.scores < rule.threshold(refused)).float().mean()) <= refused


@pytest.mark.parametrize("count", [1, 2])
def test_few_photos(count: int) -> None:
    rule = fitted(*around(TAUGHT[:3], count, 1), 3)
    assert len(rule.scores) == (0 if count == 1 else 6)
    assert rule.threshold() == -math.inf
    assert math.isfinite(float(rule.cosine_weight))


def test_copies_do_not_raise_the_threshold(rule: UnknownRule) -> None:
    features, labels = around(TAUGHT, 100, 1)
    copied = fitted(features.repeat(2, 1), labels.repeat(2), 4)
    assert torch.allclose(copied.scores[::2], rule.scores, atol=0.1)


def test_a_class_of_nothing_but_copies_has_no_score() -> None:
    features, labels = around(TAUGHT[:2], 20, 1)
    features[:20] = features[0]
    places = cross_scores(features, labels, 2).places
    assert sorted(places.tolist()) == list(range(20, 40))


def test_one_class_alone() -> None:
    features, labels = around(TAUGHT[:1], 50, 1)
    rule = fitted(features, labels, 1)
    other, _ = around(directions(1, 3), 50, 4)
    head = fit_head(features, labels, 1)
    familiar = rule.familiarity(other, head.scores(other))
    assert float((familiar < rule.threshold()).float().mean()) > 0.9


def test_each_photo_is_scored_by_the_others() -> None:
    features, labels = around(TAUGHT, 25, 1)
    wrong = labels.clone()
    wrong[0] = 3  # a photo of class 0, said to be of class 3
    found = cross_scores(features, wrong, 4)
    assert sorted(found.places.tolist()) == list(range(100))
    guesses = found.logits.argmax(1)[found.places.argsort()]
    assert guesses.tolist() == labels.tolist()
