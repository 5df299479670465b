import itertools

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from densekd import TaskPool


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_counts_are_those_of_the_paper() -> None:
    pool = TaskPool([50, 10, 10])
    assert (pool.tasks, pool.classes, pool.count) == (3, 70, 7)
    assert pool.mean_group_size == 70 * 4 / 7


def test_count_is_exact_for_sixty_tasks() -> None:
    assert TaskPool([1] * 60).count == 1152921504606846975


def test_extend_returns_a_larger_pool_and_keeps_the_old_one() -> None:
    pool = TaskPool([5])
    assert pool.extend(3) == TaskPool([5, 3])
    assert pool.sizes == (5,)
    assert pool.extend(3).count == 2 * pool.count + 1


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_every_lists_each_nonempty_subset_once(tasks: int) -> None:
    listed = {tuple(row) for row in TaskPool([2] * tasks).every().tolist()}
    assert listed == set(itertools.product([False, True], repeat=tasks)) - {(False,) * tasks}
    assert len(TaskPool([2] * tasks).every()) == 2**tasks - 1


def test_every_refuses_a_large_pool_and_names_the_alternative() -> None:
    with pytest.raises(ValueError, match=r"2\^50 - 1 groups.*sample\(\).*DenseDistillation"):
        TaskPool([1] * 50).every()


@pytest.mark.parametrize("tasks", [1, 2, 3, 6])
def test_sample_is_uniform_over_the_nonempty_subsets(tasks: int) -> None:
    masks = TaskPool([1] * tasks).sample(generator(), 20_000)
    numbers = (masks.long() << torch.arange(tasks)).sum(1)
    counts = np.bincount(numbers.numpy(), minlength=2**tasks)
    assert counts[0] == 0
    if tasks > 1:
        assert chisquare(counts[1:]).pvalue > 1e-3


@pytest.mark.parametrize("tasks", [50, 64, 200])
def test_sample_from_a_large_pool_is_a_fair_coin_for_each_task_and_pair(tasks: int) -> None:
    masks = TaskPool([1] * tasks).sample(generator(), 40_000).double()
    # 5 standard errors of a fair coin and of the product of two.
    assert (masks.mean(0) - 0.5).abs().max() < 5 * 0.5 / 200
    pairs = masks.T @ masks / len(masks)
    pairs.fill_diagonal_(0.25)
    assert (pairs - 0.25).abs().max() < 5 * 0.4331 / 200


@pytest.mark.parametrize("sizes", [[1, 1], [1, 3], [1, 2, 1], [1] * 5], ids=str)
def test_without_singles_sample_is_uniform_over_the_other_groups(sizes: list[int]) -> None:
    pool = TaskPool(sizes)
    masks = pool.sample(generator(), 20_000, singles=False)
    numbers = (masks.long() << torch.arange(pool.tasks)).sum(1)
    counts = np.bincount(numbers.numpy(), minlength=2**pool.tasks)[1:]
    single = (pool.every().long() @ torch.tensor(sizes) == 1).numpy()
    assert not counts[single].any()
    if (~single).sum() > 1:
        assert chisquare(counts[~single]).pvalue > 1e-3


def test_without_tasks_of_one_class_nothing_is_redrawn() -> None:
    pool = TaskPool([2, 3, 2])
    first, second = generator(), generator()
    assert torch.equal(pool.sample(first, 50), pool.sample(second, 50, singles=False))
    assert torch.equal(first.get_state(), second.get_state())


def test_same_generator_state_gives_the_same_groups() -> None:
    pool = TaskPool([3, 3, 3, 3])
    first, second = (pool.sample(generator(7), 50) for _ in range(2))
    assert torch.equal(first, second)
    assert pool.sample(generator(), 0).shape == (0, 4)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [([], "empty"), ([3, 0], "Task 1 has 0"), ([-2], "Task 0 has -2")],
)
def test_bad_sizes_are_refused(sizes: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaskPool(sizes)


def test_sizes_must_be_whole_numbers() -> None:
    with pytest.raises(ValueError, match=r"2\.5"):
        TaskPool([2.5])  # type: ignore[list-item]


def test_sizes_must_be_a_sequence() -> None:
    with pytest.raises(ValueError, match=r"sequence such as \[50, 10, 10\], not 6"):
        TaskPool(6)  # type: ignore[arg-type]


def test_bad_draws_are_refused() -> None:
    with pytest.raises(ValueError, match=r"-1 groups"):
        TaskPool([1]).sample(generator(), -1)
    with pytest.raises(ValueError, match=r"torch\.Generator, not None"):
        TaskPool([1]).sample(None, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a single class.*allow singles"):
        TaskPool([1]).sample(generator(), 1, singles=False)
