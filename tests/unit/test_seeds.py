import torch

from densekd.seeds import Seeds


def test_streams_are_reproducible_and_independent() -> None:
    seeds = Seeds(1993).at(3, "main")
    numbers = {
        Seeds(seed).at(*place).number(stream)
        for seed in (0, 1993)
        for place in ((), (3,), (3, "main"), (31,), (3, 1))
        for stream in ("batches", "augment", "groups")
    }
    assert len(numbers) == 30
    assert seeds.number("batches") == Seeds(1993).at(3).at("main").number("batches")
    drawn = [torch.rand(3, generator=seeds.generator("groups")) for _ in range(2)]
    assert torch.equal(*drawn)


def test_seeds_never_change() -> None:
    """Another number would silently change every result."""
    assert Seeds(1993).at(2, 0).number("batches") == 6028445257925653405
