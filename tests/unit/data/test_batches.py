import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from densekd.data.augment import Augment, Crop, Strength
from densekd.data.batches import (
    Batch,
    Batches,
    Blend,
    Mixup,
    RankShare,
    _Reader,
    default_workers,
    in_order,
    one_ahead,
    pairs,
)
from densekd.data.crops import CropDataset
from densekd.data.dataset import FileImages, PixelImages, Split
from densekd.data.decode import UnreadableImage, decode_all
from densekd.seeds import Seeds

from support.datasets import split

AUGMENT = Augment((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), padding=1)
RESIZED = Augment((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), crop="resized")
SEEDS = Seeds(7).at(0, "main")


def numbered(n: int = 50) -> Split:
    """Image i has the value i in every pixel, and i for a label."""
    pixels = torch.arange(n, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 4, 4)
    return Split(PixelImages(pixels.clone()), torch.arange(n))


def same(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels)
        for a, b in zip(first, second, strict=True)
    )


def test_an_epoch_has_every_image_once_in_batches_of_nearly_equal_size() -> None:
    batches = Batches(numbered(), 16, AUGMENT, SEEDS)
    epoch = list(batches.epoch(0))
    assert len(epoch) == len(batches) == 4
    assert [len(batch.labels) for batch in epoch] == [13, 13, 12, 12]
    assert sorted(torch.cat([batch.labels for batch in epoch]).tolist()) == list(range(50))
    for batch in epoch:  # the crop's border is black, the middle is the image
        assert torch.equal((batch.images[:, 0, 1:3, 1:3] * 255).round().amax((1, 2)), batch.labels)


def test_the_same_seed_gives_the_same_batches_and_each_epoch_others() -> None:
    batches = Batches(numbered(), 16, AUGMENT, SEEDS)
    assert same(list(batches.epoch(3)), list(Batches(numbered(), 16, AUGMENT, SEEDS).epoch(3)))
    assert not same(list(batches.epoch(3)), list(batches.epoch(4)))
    other = Batches(numbered(), 16, AUGMENT, Seeds(8).at(0, "main"))
    assert not same(list(batches.epoch(3)), list(other.epoch(3)))


def test_an_epoch_does_not_depend_on_those_before() -> None:
    resumed = Batches(numbered(), 16, AUGMENT, SEEDS)
    whole = Batches(numbered(), 16, AUGMENT, SEEDS)
    epochs = [list(whole.epoch(number)) for number in range(5)]
    assert same(epochs[4], list(resumed.epoch(4)))


def by_label(batches: list[Batch]) -> torch.Tensor:
    labels = torch.cat([batch.labels for batch in batches])
    return torch.cat([batch.images for batch in batches])[labels.argsort()]


def test_each_epoch_augments_anew() -> None:
    batches = Batches(numbered(), 16, AUGMENT, SEEDS)
    first, second = (by_label(list(batches.epoch(number))) for number in (0, 1))
    changed = (first != second).flatten(1).any(1)
    assert changed[1:].double().mean() > 0.5  # image 0 is black in any crop


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_ranks_share_each_batch_without_overlap_or_loss(world: int) -> None:
    alone = list(Batches(numbered(), 16, AUGMENT, SEEDS).epoch(2))
    ranks = [
        list(Batches(numbered(), 16, AUGMENT, SEEDS, RankShare(rank, world)).epoch(2))
        for rank in range(world)
    ]
    assert {len(batches) for batches in ranks} == {len(alone)}
    joined = [
        Batch(torch.cat([b.images for b in parts]), torch.cat([b.labels for b in parts]))
        for parts in zip(*ranks, strict=True)
    ]
    assert same(alone, joined)  # the augmentation too


def test_new_images_are_paired_with_as_many_batches_of_exemplars() -> None:
    new = Batches(numbered(50), 16, AUGMENT, SEEDS.at("new"))
    exemplars = Batches(numbered(10), 4, AUGMENT, SEEDS.at("exemplars"))
    stream = list(pairs(new, exemplars, 1))
    assert same([first for first, _ in stream], list(new.epoch(1)))
    labels = [second.labels.tolist() for _, second in stream]
    assert len(labels) == 4
    # All ten exemplars, in three batches, are used before any is repeated.
    assert sorted(itertools.chain(*labels[:3])) == list(range(10))
    assert same(
        [second for _, second in pairs(new, exemplars, 1)], [second for _, second in stream]
    )


def test_a_few_exemplars_still_make_batches() -> None:
    exemplars = Batches(numbered(3), 128, AUGMENT, SEEDS)
    stream = exemplars.endless(0)
    assert [len(next(stream).labels) for _ in range(3)] == [3, 3, 3]


@pytest.mark.parametrize("world", [1, 2])
def test_an_epoch_can_be_resumed_after_any_batch(world: int) -> None:
    shares = [RankShare(rank, world) for rank in range(world)]
    for batches in (Batches(numbered(), 16, AUGMENT, SEEDS, share) for share in shares):
        whole = list(batches.epoch(3))
        for skip in range(5):
            assert same(list(batches.epoch(3, skip=skip)), whole[skip:])


def test_an_endless_stream_can_be_resumed_in_any_of_its_epochs() -> None:
    batches = Batches(numbered(10), 4, AUGMENT, SEEDS)
    whole = list(itertools.islice(batches.endless(1), 12))
    assert not same(whole[:3], whole[3:6])
    for skip in range(9):  # three epochs of three batches
        assert same(
            list(itertools.islice(batches.endless(1, skip=skip), 3)), whole[skip : skip + 3]
        )


def test_pairs_can_be_resumed_after_any_pair() -> None:
    new = Batches(numbered(50), 8, AUGMENT, SEEDS.at("new"))
    exemplars = Batches(numbered(10), 4, AUGMENT, SEEDS.at("exemplars"))
    whole = list(pairs(new, exemplars, 2))
    assert len(whole) == 7  # more than two epochs of exemplars
    for skip in range(8):
        left = list(pairs(new, exemplars, 2, skip=skip))
        for side in (0, 1):
            assert same([pair[side] for pair in left], [pair[side] for pair in whole[skip:]])


def test_in_order_neither_shuffles_nor_augments() -> None:
    batches = list(in_order(numbered(), 16, AUGMENT))
    assert [len(batch.labels) for batch in batches] == [16, 16, 16, 2]
    images = torch.cat([batch.images for batch in batches])
    assert torch.equal((images * 255).round().mean((1, 2, 3)), torch.arange(50.0))


@pytest.fixture
def files(tmp_path: Path) -> Split:
    paths = []
    for i in range(12):
        paths.append(tmp_path / f"{i:02}.png")
        pixels = np.random.default_rng(i).integers(0, 256, (20, 24, 3), np.uint8)
        Image.fromarray(pixels).save(paths[-1])
    return Split(FileImages(tuple(paths), 8), torch.arange(12))


@pytest.mark.parametrize("crop", ["padded", "resized"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"padding": 0}, {"padding": 3}, {"flip": False}, {"brightness": 0.4}, {"heavy": True}],
)
def test_images_in_files_and_in_memory_are_augmented_alike(
    tmp_path: Path, crop: Crop, settings: dict[str, Any]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 8, 3), np.uint8)
    paths = [tmp_path / f"{i}.png" for i in range(len(pixels))]
    for path, image in zip(paths, pixels, strict=True):
        Image.fromarray(image).save(path)
    settings = dict(settings)
    strength: Strength = "heavy" if settings.pop("heavy", False) else "usual"
    augment = Augment((0.1,) * 3, (0.3,) * 3, crop=crop, **settings).of(strength)
    labels = torch.arange(len(pixels))
    kept = decode_all(paths, 8)[0] if crop == "padded" else _planes(pixels)
    memory = Batches(Split(PixelImages(kept), labels), 4, augment, SEEDS)
    files = Batches(Split(FileImages(paths, 8), labels), 4, augment, SEEDS)
    assert same(list(memory.epoch(0)), list(files.epoch(0)))
    assert not same(list(memory.epoch(0)), list(files.epoch(1)))
    plain = Augment((0.1,) * 3, (0.3,) * 3, crop=crop, padding=0, flip=False)
    usual = Batches(Split(FileImages(paths, 8), labels), 4, plain, SEEDS)
    ignored = crop == "resized" and not settings.get("flip", True)
    assert same(list(usual.epoch(0)), list(files.epoch(0))) == ignored


def _planes(pixels: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def test_the_number_of_workers_suits_images_and_processors(
    files: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6), raising=False)
    many = FileImages((b"",) * 5000, 8)
    assert default_workers(many) == 6
    assert default_workers(many, ranks=4) == 1
    assert default_workers(FileImages((b"",) * 1200, 8)) == 2
    assert default_workers(files.images) == default_workers(numbered().images) == 0


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_files_give_the_same_batches_with_any_number_of_workers(files: Split, workers: int) -> None:
    batches = Batches(files, 5, RESIZED, SEEDS, workers=workers)
    epoch = list(batches.epoch(0))
    assert [len(batch.labels) for batch in epoch] == [4, 4, 4]
    assert sorted(torch.cat([batch.labels for batch in epoch]).tolist()) == list(range(12))
    assert epoch[0].images.shape == (4, 3, 8, 8)
    alone = Batches(files, 5, RESIZED, SEEDS)
    assert same(epoch, list(alone.epoch(0)))
    next(batches.endless(1))  # left in the middle
    assert same(list(batches.epoch(2)), list(alone.epoch(2)))
    assert (by_label(epoch) != by_label(list(batches.epoch(1)))).flatten(1).any(1).all()
    ranks = [Batches(files, 5, RESIZED, SEEDS, RankShare(r, 2)).epoch(0) for r in (0, 1)]
    joined = [torch.cat([a.images, b.images]) for a, b in zip(*ranks, strict=True)]
    assert all(torch.equal(a, b.images) for a, b in zip(joined, epoch, strict=True))
    plain = [batch.images for batch in in_order(files, 5, RESIZED, workers=workers)]
    assert all(torch.equal(a, b.images) for a, b in zip(plain, in_order(files, 5, RESIZED)))  # noqa: B905


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_batch_of_a_worker_lasts_while_it_is_used(files: Split, workers: int) -> None:
    many = Split(files.images.take(torch.arange(12).repeat(6)), torch.arange(72))
    reader = _Reader(many, RESIZED, workers)
    for sizes in ([4] * 18, [2] * 36, [12] * 6):  # later batches fit into earlier memory, or don't
        parts = list(torch.arange(72).split(sizes))
        expected = CropDataset(many.images)
        for part, (pixels, _) in zip(parts, reader._loaded(parts, 3), strict=True):
            time.sleep(0.02)  # the workers go ahead as far as they may
            assert torch.equal(pixels, expected.__getitems__([(i, 3) for i in part.tolist()]))


def test_two_epochs_of_the_same_files_can_be_read_in_turn_but_not_at_once(files: Split) -> None:
    batches = Batches(files, 5, AUGMENT, SEEDS)
    first, second = batches.epoch(0), batches.epoch(1)
    next(first)
    assert same(list(second), list(Batches(files, 5, AUGMENT, SEEDS).epoch(1)))
    with pytest.raises(RuntimeError, match="before this one ended"):
        next(first)


def test_no_images_make_no_batches() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    for images in (FileImages((), 8), PixelImages(torch.zeros(0, 3, 8, 8, dtype=torch.uint8))):
        assert list(in_order(Split(images, nothing), 4, AUGMENT)) == []


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_epoch_of_files_can_be_resumed(files: Split, workers: int) -> None:
    batches = Batches(files, 5, AUGMENT, SEEDS, workers=workers)
    whole, stream = list(batches.epoch(1)), list(itertools.islice(batches.endless(1), 5))
    for skip in range(4):
        assert same(list(batches.epoch(1, skip=skip)), whole[skip:])
        assert same(list(itertools.islice(batches.endless(1, skip=skip), 2)), stream[skip:][:2])


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_damaged_file_is_named_in_one_sentence(files: Split, workers: int) -> None:
    assert isinstance(files.images, FileImages)
    damaged = files.images.files[3]
    assert isinstance(damaged, Path)
    damaged.write_bytes(damaged.read_bytes()[:60])
    with pytest.raises(UnreadableImage) as caught:
        list(in_order(files, 5, AUGMENT, workers=workers))
    assert str(caught.value).startswith(f"'{damaged}' can't be read (")
    assert "\n" not in str(caught.value)


def test_wrong_shares_are_refused() -> None:
    with pytest.raises(ValueError, match="no rank 2 among 2"):
        RankShare(2, 2)
    with pytest.raises(ValueError, match=r"4 ranks.*3 images in batches of 16"):
        Batches(split(3, 1), 16, AUGMENT, SEEDS, RankShare(0, 4))


def blends(batches: list[Batch]) -> list[Blend]:
    return [cast(Blend, batch.blend) for batch in batches]


def test_mixup_blends_each_batch_with_itself_and_changes_nothing_else() -> None:
    plain = list(Batches(numbered(), 16, AUGMENT, SEEDS).epoch(3))
    mixed = list(Batches(numbered(), 16, AUGMENT.of("usual", 0.5), SEEDS).epoch(3))
    assert all(batch.blend is None for batch in plain)
    for before, after, blend in zip(plain, mixed, blends(mixed), strict=True):
        assert torch.equal(before.labels, after.labels)
        assert sorted(blend.labels.tolist()) == sorted(before.labels.tolist())
        assert not torch.equal(blend.labels, before.labels)
        place = {int(label): at for at, label in enumerate(before.labels)}
        other = before.images[[place[int(label)] for label in blend.labels]]
        wanted = blend.share * before.images + (1 - blend.share) * other
        torch.testing.assert_close(after.images, wanted)
    assert len({blend.share for blend in blends(mixed)}) == len(mixed)


def test_blended_batches_can_be_resumed_and_differ_by_epoch() -> None:
    batches = Batches(numbered(), 8, AUGMENT.of("heavy", 0.5), SEEDS)
    whole = list(batches.epoch(3))
    rest = list(Batches(numbered(), 8, AUGMENT.of("heavy", 0.5), SEEDS).epoch(3, skip=2))
    assert same(whole[2:], rest)
    assert [b.share for b in blends(whole[2:])] == [b.share for b in blends(rest)]
    assert [b.share for b in blends(whole)] != [b.share for b in blends(list(batches.epoch(4)))]


def test_shares_are_those_of_the_beta_distribution() -> None:
    shares = torch.tensor(
        [Mixup.draw(1, RankShare(), 0.1, SEEDS.at(number)).share for number in range(2000)]
    )
    # Beta(0.1, 0.1) has a mean of 1/2 and a variance of 1 / (4 * 1.2).
    assert abs(shares.mean() - 0.5) < 0.05
    assert abs(shares.var() - 1 / 4.8) < 0.02


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("kind", ["memory", "files"])
def test_ranks_blend_as_one_process_does(files: Split, kind: str, world: int) -> None:
    data, augment = {"memory": numbered(), "files": files}[kind], AUGMENT.of("heavy", 0.5)
    alone = list(Batches(data, 7, augment, SEEDS).epoch(2))
    ranks = [
        list(Batches(data, 7, augment, SEEDS, RankShare(rank, world)).epoch(2))
        for rank in range(world)
    ]
    for whole, *parts in zip(alone, *ranks, strict=True):
        assert torch.equal(whole.images, torch.cat([part.images for part in parts]))
        assert torch.equal(whole.labels, torch.cat([part.labels for part in parts]))
        blend, own = blends([whole])[0], blends(parts)
        assert torch.equal(blend.labels, torch.cat([part.labels for part in own]))
        assert {part.share for part in own} == {blend.share}


def test_mixup_draws_what_it_always_drew() -> None:
    mix = Mixup.draw(6, RankShare(), 0.5, SEEDS.at("mixup").at(0))
    generator = np.random.default_rng(SEEDS.at("mixup").at(0).number("augment"))
    assert mix.share == generator.beta(0.5, 0.5)
    assert mix.others.tolist() == generator.permutation(6).tolist()
    assert mix.needed.tolist() == mix.own.tolist() == list(range(6))


def test_files_are_augmented_heavily_too(files: Split) -> None:
    usual = list(Batches(files, 4, AUGMENT, SEEDS).epoch(0))
    heavy = list(Batches(files, 4, AUGMENT.of("heavy"), SEEDS).epoch(0))
    assert all(torch.equal(a.labels, b.labels) for a, b in zip(usual, heavy, strict=True))
    assert not same(usual, heavy)
    assert same(heavy[1:], list(Batches(files, 4, AUGMENT.of("heavy"), SEEDS).epoch(0, skip=1)))


def test_the_next_batch_is_asked_for_before_this_one_is_used() -> None:
    asked: list[int] = []

    def count(n: int) -> Iterator[int]:
        for i in range(n):
            asked.append(i)
            yield i

    assert [(i, len(asked)) for i in one_ahead(count(3))] == [(0, 2), (1, 3), (2, 3)]
    assert list(one_ahead(count(0))) == []
