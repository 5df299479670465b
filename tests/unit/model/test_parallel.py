import threading
from collections.abc import Sequence

import pytest
import torch

from densekd.model.parallel import map_batches


@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
def test_results_come_in_order(count: int) -> None:
    doubled = map_batches(lambda batch: [2 * i for i in batch], range(count), 8)
    assert list(doubled) == [2 * i for i in range(count)]


def test_batches_have_at_most_the_given_size() -> None:
    sizes = list(map_batches(lambda batch: [len(batch)] * len(batch), range(50), 8))
    assert max(sizes) == 8


def test_an_error_reaches_the_caller_and_the_threads_are_as_before() -> None:
    def work(batch: Sequence[int]) -> Sequence[int]:
        raise ValueError("broken")

    threads = torch.get_num_threads()
    with pytest.raises(ValueError, match="broken"):
        list(map_batches(work, range(10), 2))
    assert torch.get_num_threads() == threads


def test_a_caller_that_stops_early_waits_for_little() -> None:
    done: list[int] = []
    lock = threading.Lock()

    def work(batch: Sequence[int]) -> Sequence[int]:
        with lock:
            done.extend(batch)
        return batch

    results = map_batches(work, range(10_000), 1)
    assert next(results) == 0
    results.close()
    assert len(done) < 1000
