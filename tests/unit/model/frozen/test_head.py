import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from densekd.model.frozen.head import few_threads, fit_head


def clusters(counts: list[int], spread: float = 0.05, width: int = 32) -> tuple[Tensor, Tensor]:
    """Features around one random direction per class."""
    generator = torch.Generator().manual_seed(0)
    means = normalize(torch.randn(len(counts), width, generator=generator).abs(), dim=1)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    noise = torch.randn(len(labels), width, generator=generator)
    return normalize(means[labels] + spread * noise, dim=1), labels


def test_it_separates_what_can_be_separated() -> None:
    features, labels = clusters([20, 20, 20])
    scores = fit_head(features, labels, 3).scores(features)
    assert scores.shape == (60, 3)
    assert bool((scores.argmax(1) == labels).all())


@pytest.mark.parametrize("counts", [[1, 1], [1, 300, 5], [3000, 5]])
def test_rare_classes_are_not_crowded_out(counts: list[int]) -> None:
    features, labels = clusters([count + 50 for count in counts], spread=0.1)
    ranks = torch.cat([torch.arange(count + 50) for count in counts])
    new = ranks < 50
    guesses = fit_head(features[~new], labels[~new], len(counts)).scores(features).argmax(1)
    for rank in range(len(counts)):
        own = new & (labels == rank)
        assert float((guesses[own] == rank).float().mean()) > 0.8


def test_a_constant_added_to_all_features_changes_nothing() -> None:
    features, labels = clusters([10, 20])
    plain, shifted = (fit_head(each, labels, 2) for each in (features, features + 3))
    assert torch.allclose(plain.scores(features), shifted.scores(features + 3), atol=1e-2)


def test_copies_of_photos_change_little() -> None:
    features, labels = clusters([10, 10, 10], spread=0.15)
    once = fit_head(features, labels, 3).scores(features)
    again = fit_head(features.repeat(3, 1), labels.repeat(3), 3).scores(features)
    assert torch.allclose(once, again, atol=1e-2)


def test_copies_of_the_photos_of_one_class_change_little() -> None:
    features, labels = clusters([10, 10, 10], spread=0.15)
    own = labels == 1
    copied, twice = (
        torch.cat([features, *[features[own]] * 8]),
        torch.cat([labels, *[labels[own]] * 8]),
    )
    once, again = fit_head(features, labels, 3), fit_head(copied, twice, 3)
    assert torch.allclose(once.scores(features), again.scores(features), atol=1e-2)


def test_a_large_class_keeps_its_photos_beside_similar_rare_ones() -> None:
    features, labels = clusters([3000, 5, 5, 5, 5], spread=0.4, width=256)
    right = fit_head(features, labels, 5).scores(features).argmax(1) == labels
    assert float(right[:3000].float().mean()) > 0.9
    assert float(right[3000:].float().mean()) > 0.9


def test_one_class_and_equal_features_are_no_error() -> None:
    same = torch.ones(4, 8) / 8**0.5
    for labels, classes in (
        (torch.zeros(4, dtype=torch.int64), 1),
        (torch.tensor([0, 0, 1, 1]), 2),
    ):
        assert bool(fit_head(same, labels, classes).scores(same).isfinite().all())


@pytest.mark.parametrize(("photos", "threads"), [(100, 1), (100_000, 2)])
def test_small_fits_take_one_thread(photos: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with few_threads(torch.empty(photos, 128), 10):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_head_does_not_depend_on_the_number_of_threads() -> None:
    features, labels = clusters([40, 30, 50])
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(fit_head(features, labels, 3))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0].weight, found[1].weight)
    assert torch.equal(found[0].bias, found[1].bias)
