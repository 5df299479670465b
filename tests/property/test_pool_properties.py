import torch
from hypothesis import given
from hypothesis import strategies as st

from densekd import TaskPool

sizes_ = st.lists(st.integers(1, 9), min_size=1, max_size=70)


@given(sizes_, st.integers(0, 2**32 - 1), st.integers(0, 200))
def test_a_drawn_group_is_never_empty(sizes: list[int], seed: int, n: int) -> None:
    masks = TaskPool(sizes).sample(torch.Generator().manual_seed(seed), n)
    assert masks.shape == (n, len(sizes))
    assert masks.dtype == torch.bool
    assert masks.any(1).all()


@given(sizes_.filter(lambda sizes: sum(sizes) > 1), st.integers(0, 2**32 - 1))
def test_a_drawn_group_has_more_than_one_class_if_asked(sizes: list[int], seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    masks = TaskPool(sizes).sample(source, 100, singles=False)
    assert masks.shape == (100, len(sizes))
    assert (masks.long() @ torch.tensor(sizes) > 1).all()


@given(sizes_)
def test_growing_task_by_task_gives_the_same_pool(sizes: list[int]) -> None:
    pool = TaskPool(sizes[:1])
    for size in sizes[1:]:
        grown = pool.extend(size)
        assert grown.count == 2 * pool.count + 1
        pool = grown
    assert pool == TaskPool(sizes)
    assert hash(pool) == hash(TaskPool(sizes))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_the_mean_group_size_is_that_of_the_listed_groups(sizes: list[int]) -> None:
    pool = TaskPool(sizes)
    listed = pool.every().double() @ torch.tensor(sizes, dtype=torch.float64)
    assert abs(pool.mean_group_size - listed.mean().item()) < 1e-9
