"""Properties of scenarios, memories and batches for any data."""

from typing import cast

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from densekd.data.augment import Augment
from densekd.data.batches import Batches, RankShare
from densekd.data.dataset import PixelImages, Split
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario, seeded_order, task_sizes
from densekd.data.selection import Selection
from densekd.data.stratify import held_out
from densekd.seeds import Seeds

from support.datasets import dataset

counts = st.integers(1, 12)


@given(st.integers(2, 200), st.integers(1, 60), st.one_of(st.none(), st.integers(1, 200)))
def test_a_protocol_divides_the_classes_or_proposes_one_that_does(
    classes: int, steps: int, base: int | None
) -> None:
    try:
        sizes = task_sizes(classes, steps=steps, base=base)
    except ValueError as error:
        words = str(error).replace(".", "").split("possible are ")
        assume(len(words) == 2 and words[1][0].isdigit())
        for proposed in (int(word) for word in words[1].split() if word.isdigit()):
            assert sum(task_sizes(classes, steps=proposed, base=base)) == classes
    else:
        assert sum(sizes) == classes
        assert len(sizes) == steps + 1
        assert len(set(sizes[1:])) == 1


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(0, 2**31))
def test_tasks_partition_classes_and_images(sizes: list[int], seed: int) -> None:
    classes = sum(sizes)
    scenario = Scenario(dataset(classes, 2, 1), seeded_order(classes, seed), sizes)
    names = [name for task in scenario for name in task.classes]
    assert sorted(names) == sorted(scenario.dataset.classes)
    assert sum(len(task.train) for task in scenario) == 2 * classes
    assert sum(len(task.test) for task in scenario) == classes


@given(
    st.sampled_from(["random", "herding", "greedy"]),
    st.integers(1, 9),
    st.integers(0, 12),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_no_test_image_in_any_memory_and_no_image_twice(
    selection: Selection, per_class: int, amount: int, fixed: bool, seed: int
) -> None:
    quota = Quota(per_class=amount) if fixed else Quota(per_class=None, total=6 * amount)
    memory = ExemplarMemory(quota, selection)
    for task in Scenario.of(dataset(6, per_class), steps=3, order=seed):
        generator = Seeds(seed).at(task.number).generator("memory")
        features = torch.rand(len(task.train), 3, generator=generator) + 0.1
        memory.learn(task.train, len(task.classes), generator, features)
        kept = memory.exemplars()
        pixels = cast(PixelImages, kept.images).pixels
        assert not (pixels[:, 2] == 255).any()
        assert len(pixels[:, :2, 0, 0].unique(dim=0)) == len(pixels)
        expected = min(per_class, quota.of(memory.classes))
        assert (
            torch.bincount(kept.labels, minlength=memory.classes).tolist()
            == [expected] * memory.classes
        )


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=8),
    st.floats(0.01, 0.99),
    st.integers(0, 2**31),
)
def test_every_class_keeps_training_images_when_some_are_held_out(
    sizes: list[int], share: float, seed: int
) -> None:
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    chosen = held_out(labels, share, seed, stream="validation")
    for label, size in enumerate(sizes):
        own = [bool(held) for held, other in zip(chosen, labels, strict=True) if other == label]
        assert sum(own) < size or not size
        assert any(own) == (size >= 2)
        # Each class is drawn by itself.
        assert held_out([label] * size, share, seed, stream="validation").tolist() == own


@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 9), st.integers(0, 2**31))
def test_the_same_seed_gives_the_same_batches(n: int, size: int, epoch: int, seed: int) -> None:
    source = torch.Generator().manual_seed(n)
    pixels = torch.randint(0, 256, (n, 3, 5, 5), dtype=torch.uint8, generator=source)
    data = Split(PixelImages(pixels), torch.arange(n))
    augment = Augment((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), padding=1, brightness=0.2)
    first, second = (list(Batches(data, size, augment, Seeds(seed)).epoch(epoch)) for _ in range(2))
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.images, b.images)


@given(st.integers(1, 90), st.integers(1, 40), st.integers(1, 5), st.integers(0, 9), counts)
def test_shares_partition_an_epoch(n: int, size: int, world: int, epoch: int, seed: int) -> None:
    assume(n >= world and size >= world)
    images = PixelImages(torch.zeros(n, 3, 2, 2, dtype=torch.uint8))
    data = Split(images, torch.arange(n))
    augment = Augment((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), padding=0)
    ranks = [
        [
            b.labels
            for b in Batches(data, size, augment, Seeds(seed), RankShare(r, world)).epoch(epoch)
        ]
        for r in range(world)
    ]
    assert sorted(int(i) for batches in ranks for batch in batches for i in batch) == list(range(n))
    assert len({len(batches) for batches in ranks}) == 1
