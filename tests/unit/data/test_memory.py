import logging
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from PIL import Image

from densekd.data.dataset import FileImages, PixelImages, Split
from densekd.data.memory import ExemplarMemory, Quota
from densekd.data.scenario import Scenario, class_order
from densekd.data.selection import Selection
from densekd.data.stratify import stratified_split

from support.datasets import dataset, split


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def learned(quota: Quota, selection: Selection = "random", steps: int = 2) -> ExemplarMemory:
    memory = ExemplarMemory(quota, selection)
    for task in Scenario.of(dataset(8, 12), steps=steps):
        features = torch.randn(len(task.train), 5, generator=generator())
        memory.learn(task.train, len(task.classes), generator(), features)
    return memory


@pytest.mark.parametrize("selection", ["random", "herding", "greedy"])
def test_a_fixed_number_per_class_is_kept(selection: Selection) -> None:
    kept = learned(Quota(per_class=5), selection).exemplars()
    assert torch.bincount(kept.labels).tolist() == [5] * 8
    order = Scenario.of(dataset(8), steps=2).order
    pixels = cast(PixelImages, kept.images).pixels
    assert pixels[:, 0, 0, 0].tolist() == [order[label] for label in kept.labels.tolist()]
    # Within a class all images differ (their number is in channel 1), none is a test image.
    numbers = {(int(p[0, 0, 0]), int(p[1, 0, 0])) for p in pixels}
    assert len(numbers) == 40
    assert not pixels[:, 2].any()


@pytest.mark.parametrize("selection", ["random", "herding", "greedy"])
def test_a_fixed_total_shrinks_each_class_to_a_prefix(selection: Selection) -> None:
    memory = ExemplarMemory(Quota(per_class=None, total=40), selection)
    scenario = Scenario.of(dataset(8, 12), steps=2)
    before: list[torch.Tensor] = []
    for task in scenario:
        features = torch.randn(len(task.train), 5, generator=generator())
        memory.learn(task.train, len(task.classes), generator(), features)
        kept = memory.exemplars()
        pixels = cast(PixelImages, kept.images).pixels
        by_class = [pixels[kept.labels == label] for label in range(memory.classes)]
        assert {len(images) for images in by_class} == {40 // memory.classes}
        for old, new in zip(before, by_class, strict=False):
            assert torch.equal(old[: len(new)], new)
        before = by_class
    assert len(memory) == 40


@pytest.mark.parametrize("quota", [Quota(per_class=3), Quota(per_class=None, total=24)])
def test_rehearsed_images_are_those_that_random_selection_keeps(quota: Quota) -> None:
    memory = ExemplarMemory(quota)
    base, later = Scenario.of(dataset(8, 12), steps=1)
    memory.learn(base.train, 4, generator())
    chosen = torch.cat(memory.choose(later.train, 4, generator()))
    rehearsed = memory.rehearsed(later.train, 4, chosen)
    assert torch.bincount(rehearsed.labels).tolist() == [3] * 8
    memory.learn(later.train, 4, generator())
    kept = memory.exemplars()
    assert torch.equal(rehearsed.labels, kept.labels)
    assert torch.equal(rehearsed.images.state()["pixels"], kept.images.state()["pixels"])


def test_rehearsed_images_have_those_that_are_kept_first() -> None:
    memory = ExemplarMemory(Quota(per_class=5))
    base, later = Scenario.of(dataset(8, 12), steps=1)
    memory.learn(base.train, 4, generator())
    rest, first = stratified_split(later.train, 0.4, seed=1, most=5)
    chosen = torch.cat(memory.choose(rest, 4, generator()))
    rehearsed = memory.rehearsed(rest, 4, chosen, first)
    memory.learn(rest, 4, generator(), first=first)
    kept = memory.exemplars()
    assert torch.equal(rehearsed.labels, kept.labels)
    assert torch.equal(rehearsed.images.state()["pixels"], kept.images.state()["pixels"])


@pytest.mark.parametrize("selection", ["random", "herding", "greedy"])
def test_rehearsing_without_features_draws_new_classes_and_keeps_nothing(
    selection: Selection,
) -> None:
    memory, order = ExemplarMemory(Quota(per_class=5), selection), class_order(dataset(8), 1993)
    base, later = Scenario.of(dataset(8, 12), steps=1)
    memory.learn(base.train, 4, generator(), torch.rand(48, 3, generator=generator()))
    before = memory.state_dict()
    chosen = torch.cat(memory.choose(later.train, 4, generator()))
    rehearsed = memory.rehearsed(later.train, 4, chosen)
    assert torch.bincount(rehearsed.labels).tolist() == [5] * 8
    pixels = cast(PixelImages, rehearsed.images).pixels
    assert torch.equal(pixels[:20], before["pixels"])
    assert pixels[:, 0, 0, 0].tolist() == [order[label] for label in rehearsed.labels.tolist()]
    assert len({(int(p[0, 0, 0]), int(p[1, 0, 0])) for p in pixels}) == 40
    others = memory.choose(later.train, 4, torch.Generator().manual_seed(1))
    assert not torch.equal(torch.cat(others), chosen)
    assert memory.classes == 4
    assert all(torch.equal(memory.state_dict()[name], t) for name, t in before.items())


@pytest.mark.parametrize("selection", ["random", "herding", "greedy"])
def test_chosen_images_are_those_that_are_kept(selection: Selection) -> None:
    memory = ExemplarMemory(Quota(per_class=5), selection)
    base, later = Scenario.of(dataset(8, 12), steps=1)
    features = torch.randn(48, 3, generator=generator())
    memory.learn(base.train, 4, generator(), features)
    chosen = torch.cat(memory.choose(later.train, 4, generator(), features))
    rehearsed = memory.rehearsed(later.train, 4, chosen)
    memory.learn(later.train, 4, generator(), features)
    kept = memory.exemplars()
    assert torch.equal(rehearsed.labels, kept.labels)
    assert torch.equal(rehearsed.images.state()["pixels"], kept.images.state()["pixels"])


@pytest.mark.parametrize("selection", ["random", "greedy"])
def test_images_that_come_first_are_kept_before_those_chosen(selection: Selection) -> None:
    memory = ExemplarMemory(Quota(per_class=5), selection)
    train, first = split(2, 12).take(torch.arange(4, 24)), split(2, 12).take(torch.arange(4))
    features = torch.randn(20, 3, generator=generator())
    chosen = memory.choose(train, 2, generator(), features)
    memory.learn(train, 2, generator(), features, first)
    kept = memory.exemplars()
    assert torch.bincount(kept.labels).tolist() == [5, 5]
    numbers = cast(PixelImages, train.images).pixels[:, 1, 0, 0]
    for rank, own in enumerate(cast(PixelImages, kept.images).pixels[:, 1, 0, 0].split(5)):
        assert own.tolist() == [0, 1, *numbers[chosen[rank][:3]].tolist()]


def test_an_empty_memory_rehearses_nothing_old() -> None:
    memory = ExemplarMemory(Quota(per_class=0))
    memory.learn(split(2, 3), 2, generator())
    later = Split(split(2, 3).images, split(2, 3).labels + 2)
    chosen = torch.cat(memory.choose(later, 2, generator()))
    assert len(memory.rehearsed(later, 2, chosen)) == 0


def test_a_small_class_keeps_all_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    memory = ExemplarMemory(Quota(per_class=5))
    with caplog.at_level(logging.WARNING, "densekd"):
        memory.learn(split(2, 3), 2, generator())
    assert len(memory) == 6
    assert (
        "2 of the 2 new classes have fewer images than the 5 exemplars that a class may keep"
        in caplog.text
    )


def test_random_selection_is_without_replacement_and_by_seed() -> None:
    kept = [learned(Quota(per_class=6)).exemplars().images.state()["pixels"] for _ in range(2)]
    assert torch.equal(*kept)


def test_kept_pixels_are_copies() -> None:
    memory, restored = learned(Quota(per_class=3)), ExemplarMemory(Quota(per_class=3))
    restored.load_state_dict({name: t.clone() for name, t in memory.state_dict().items()})
    assert restored.classes == 8
    assert torch.equal(restored.exemplars().labels, memory.exemplars().labels)
    for name, tensor in memory.state_dict().items():
        assert torch.equal(restored.state_dict()[name], tensor)
    restored.load_state_dict(ExemplarMemory(Quota()).state_dict())
    assert restored.classes == 0


def test_files_are_kept_by_content_so_that_they_may_be_deleted(tmp_path: Path) -> None:
    paths = []
    for i in range(4):
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(np.full((9, 9, 3), i, np.uint8)).save(paths[-1])
    train = Split(FileImages(tuple(paths), 8), torch.tensor([0, 1, 0, 1]))
    memory = ExemplarMemory(Quota(per_class=1))
    memory.learn(train, 2, generator())
    state = memory.state_dict()
    contents = [
        cast(Path, f).read_bytes() for f in cast(FileImages, memory.exemplars().images).files
    ]
    for path in paths:
        path.unlink()
    restored = ExemplarMemory(Quota(per_class=1))
    restored.load_state_dict(state)
    images = cast(FileImages, restored.exemplars().images)
    assert list(images.files) == contents
    assert images.size == 8


def test_images_that_could_not_be_kept_together_are_refused_before_anything_changes() -> None:
    memory = learned(Quota(per_class=2))
    before = memory.state_dict()
    other = Split(FileImages((b"x",), 8), torch.tensor([8]))
    larger = Split(PixelImages(torch.zeros(1, 3, 9, 9, dtype=torch.uint8)), torch.tensor([8]))
    for data in (other, larger):
        with pytest.raises(ValueError, match="can't be joined"):
            memory.learn(data, 1, generator())
    assert memory.classes == 8
    assert all(torch.equal(memory.state_dict()[name], t) for name, t in before.items())


def test_a_memory_smaller_than_the_classes_keeps_nothing_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory = ExemplarMemory(Quota(per_class=None, total=1))
    files = Split(FileImages((b"x", b"y"), 8), torch.tensor([0, 1]))
    memory.learn(files, 2, generator())
    assert "No class keeps an exemplar" in caplog.text
    restored = ExemplarMemory(Quota(1))
    restored.load_state_dict(memory.state_dict())
    assert (restored.classes, len(restored)) == (2, 0)


def test_a_damaged_state_changes_nothing() -> None:
    memory = learned(Quota(per_class=2))
    state = memory.state_dict()
    with pytest.raises(ValueError, match="16 exemplars, but counts of 17"):
        memory.load_state_dict({**state, "counts": state["counts"] + torch.eye(8)[0].long()})
    assert memory.classes == 8


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match="either per_class or total"):
        Quota(per_class=20, total=2000)
    with pytest.raises(ValueError, match="Can't keep -1"):
        Quota(per_class=-1)
    with pytest.raises(ValueError, match="selection='best'"):
        ExemplarMemory(Quota(), cast(Selection, "best"))
    with pytest.raises(ValueError, match="needs the images' features"):
        ExemplarMemory(Quota(), "herding").learn(split(2, 3), 2, generator())
    with pytest.raises(ValueError, match="6 images have 5 rows"):
        ExemplarMemory(Quota(1), "herding").learn(split(2, 3), 2, generator(), torch.ones(5, 2))
    with pytest.raises(ValueError, match="must be 0 to 0"):
        ExemplarMemory(Quota(1)).learn(split(2, 3), 1, generator())
    with pytest.raises(ValueError, match="No class has been learned"):
        ExemplarMemory(Quota()).exemplars()


def numbers(split: Split, label: int) -> list[int]:
    """Return the numbers of a class's images (see `support.datasets.split`) in a split."""
    assert isinstance(split.images, PixelImages)
    return split.images.pixels[split.labels == label][:, 1, 0, 0].tolist()


def add_images(memory: ExemplarMemory, rank: int, first: int, count: int) -> Split:
    """Add images of a learned class to a memory, numbered from ``first``."""
    pixels = torch.zeros(count, 3, 8, 8, dtype=torch.uint8)
    pixels[:, 1] = torch.arange(first, first + count).view(-1, 1, 1)
    more = Split(PixelImages(pixels), torch.full((count,), rank))
    memory.add(more)
    return more


def test_added_images_are_exemplars_beyond_the_quota() -> None:
    memory, task = learned(Quota(3)), split(2, 5)
    before = [numbers(memory.exemplars(), label) for label in range(8)]
    add_images(memory, 2, first=100, count=6)
    new = Split(task.images, task.labels + 8)
    chosen = torch.cat(memory.choose(new, 2, generator()))
    for seen in (memory.exemplars(), memory.rehearsed(new, 2, chosen)):
        assert numbers(seen, 2) == [*before[2], *range(100, 106)]
        assert numbers(seen, 1) == before[1]


def test_added_images_may_be_kept() -> None:
    memory, task = learned(Quota(3)), split(2, 5)
    before = [numbers(memory.exemplars(), label) for label in range(8)]
    add_images(memory, 2, first=100, count=60)
    memory.learn(Split(task.images, task.labels + 8), 2, generator())
    kept = memory.exemplars()
    assert len(kept) == 10 * 3
    assert set(numbers(kept, 2)) <= {*before[2], *range(100, 160)}
    assert set(numbers(kept, 2)) & {*range(100, 160)}
    assert [numbers(kept, label) for label in (0, 1, 3)] == [before[0], before[1], before[3]]
    # The other added images are gone after one task.
    assert memory.state_dict()["counts"].tolist() == [3] * 10


def test_images_that_are_added_later_do_not_replace_earlier_ones() -> None:
    memory = learned(Quota(3))
    before = numbers(memory.exemplars(), 2)
    add_images(memory, 2, first=100, count=2)
    add_images(memory, 2, first=110, count=1)
    assert numbers(memory.exemplars(), 2) == [*before, 100, 101, 110]


def test_added_images_are_saved_and_drawn_from_as_before() -> None:
    memory, restored = learned(Quota(3)), ExemplarMemory(Quota(3))
    plain = memory.state_dict()
    assert sorted(plain) == ["counts", "pixels"]  # as earlier versions wrote it
    for rank, first in ((5, 100), (2, 110), (5, 120)):
        add_images(memory, rank, first=first, count=4)
    restored.load_state_dict(memory.state_dict())
    task = split(2, 5)
    for each in (memory, restored):
        assert len(each.exemplars()) == 8 * 3 + 12
        assert numbers(each.exemplars(), 5)[3:] == [*range(100, 104), *range(120, 124)]
        each.learn(Split(task.images, task.labels + 8), 2, generator())
    for name, tensor in memory.state_dict().items():
        assert torch.equal(restored.state_dict()[name], tensor)
    restored.load_state_dict(plain)
    assert len(restored.exemplars()) == 8 * 3


def test_added_images_of_classes_that_are_not_there_are_refused() -> None:
    memory = learned(Quota(3))
    add_images(memory, 2, first=100, count=2)
    forged = {**memory.state_dict(), "added": torch.tensor([2, 8])}
    with pytest.raises(ValueError, match="others than the 8 classes"):
        memory.load_state_dict(forged)


def test_images_of_unknown_classes_cannot_be_added() -> None:
    memory = learned(Quota(3))
    with pytest.raises(ValueError, match="the 8 learned classes"):
        add_images(memory, 8, first=0, count=1)
    with pytest.raises(ValueError, match="can't be joined"):
        memory.add(Split(PixelImages(torch.zeros(1, 3, 9, 9).byte()), torch.tensor([0])))
