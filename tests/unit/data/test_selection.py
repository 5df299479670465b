from typing import Any

import pytest
import torch
from torch import Tensor

from densekd.data.dataset import PixelImages, Split
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.selection import Selection, greedy, herding, selection_of
from densekd.parts import OwnPartError, refer

import reference
from support.datasets import split


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def clouds(counts: list[int], dimensions: int = 6) -> list[torch.Tensor]:
    """Features as after a ReLU, of classes with different means."""
    source = torch.Generator().manual_seed(len(counts))
    return [
        (torch.randn(n, dimensions, generator=source) + torch.randn(dimensions, generator=source))
        .relu()
        .add(0.01)
        for n in counts
    ]


@pytest.mark.parametrize("count", [1, 5, 20])
def test_herding_of_many_classes_equals_the_definition_class_by_class(count: int) -> None:
    features = clouds([30, 7, 50, 1])
    for given, rows in zip(herding(features, count), features, strict=True):
        expected = reference.herding(rows.double().numpy(), count)
        assert given.tolist()[: len(expected)] == expected
        assert len(set(given.tolist())) == len(given) == min(count, len(rows))


def test_images_never_picked_follow_by_similarity() -> None:
    rows = torch.ones(5, 2) + 1e-9 * torch.arange(10).view(5, 2)
    (given,) = herding([rows], 5)
    assert sorted(given.tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [1, 5, 20])
def test_greedy_of_many_classes_equals_the_definition_class_by_class(count: int) -> None:
    features = clouds([30, 7, 50, 1])
    for given, rows in zip(greedy(features, count), features, strict=True):
        assert given.tolist() == reference.greedy(rows.double().numpy(), count)


def test_herding_of_equal_images_ends() -> None:
    alike, others = torch.ones(30, 4), clouds([40, 40], 4)
    given = herding([others[0], alike, others[1]], 20)
    assert len(set(given[1].tolist())) == 20
    for i, rows in ((0, others[0]), (2, others[1])):
        assert given[i].tolist() == reference.herding(rows.double().numpy(), 20)
    assert [len(order) for order in herding([torch.ones(0, 4)], 3)] == [0]
    assert [len(order) for order in greedy([torch.ones(0, 4)], 3)] == [0]


def smallest_first(features: Tensor, count: int) -> Tensor:
    return features[:, 0].argsort()[:count]


def test_a_selection_of_ones_own_gets_each_class_and_keeps_its_order() -> None:
    train = split(2, 5)
    features = torch.tensor([[4.0 - i // 2] for i in range(10)])
    memory = ExemplarMemory(Quota(3), smallest_first)
    chosen = memory.choose(train, 2, torch.Generator(), features)
    assert [index.tolist() for index in chosen] == [[8, 6, 4], [9, 7, 5]]
    small = ExemplarMemory(Quota(2), smallest_first)
    assert [i.tolist() for i in small.choose(train, 2, torch.Generator(), features)] == [
        [8, 6],
        [9, 7],
    ]


def test_a_selection_of_ones_own_draws_from_the_memorys_seed() -> None:
    def drawn(features: Tensor, count: int) -> Tensor:
        return torch.randperm(len(features))[:count]

    memory, train, features = ExemplarMemory(Quota(2), drawn), split(2, 5), torch.zeros(10, 1)
    first, again, other = (
        memory.choose(train, 2, torch.Generator().manual_seed(seed), features) for seed in (1, 1, 2)
    )
    assert [x.tolist() for x in first] == [x.tolist() for x in again]
    assert [x.tolist() for x in first] != [x.tolist() for x in other]


@pytest.mark.parametrize(
    ("positions", "sentence"),
    [
        ([0], "must return 2 positions of 5 images .* returned 1 positions"),
        ([0.0, 1.0], "as whole numbers"),
        ([True, False], "as whole numbers"),
        (None, "returned NoneType"),
        ([0, 0], "different positions from 0 to 4"),
        ([0, 5], "different positions from 0 to 4"),
    ],
)
def test_a_wrong_selection_of_ones_own_is_refused(positions: Any, sentence: str) -> None:
    memory = ExemplarMemory(Quota(2), lambda features, count: positions)
    with pytest.raises(OwnPartError, match=sentence):
        memory.choose(split(2, 5), 2, torch.Generator(), torch.zeros(10, 1))


def test_a_setting_names_a_selection() -> None:
    assert selection_of("greedy") == "greedy"
    assert selection_of(refer(smallest_first)) is smallest_first
    with pytest.raises(OwnPartError, match="must be a function that selects images"):
        selection_of(refer(3))


@pytest.mark.parametrize("selection", ["herding", "greedy"])
def test_many_classes_are_selected_from_in_parts(
    selection: Selection, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = torch.randn(60, 8, generator=generator())
    train = Split(PixelImages(torch.zeros(60, 3, 2, 2).byte()), torch.arange(60) % 7)
    memory = ExemplarMemory(Quota(per_class=3), selection)
    whole = memory.choose(train, 7, generator(), features)
    monkeypatch.setattr("densekd.data.selection._MOST_NUMBERS", 2 * 9 * 8)
    parts = memory.choose(train, 7, generator(), features)
    assert [order.tolist() for order in parts] == [order.tolist() for order in whole]
