import threading

import pytest
import torch

from densekd.model.parallel import map_batches


@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
def test_results_come_in_order(count: int) -> None:
    doubled = map_batches(lambda i: 2 * i, range(count))
    assert list(doubled) == [2 * i for i in range(count)]


def test_an_error_reaches_the_caller_and_the_threads_are_as_before() -> None:
    def work(batch: int) -> int:
        raise ValueError("broken")

    threads = torch.get_num_threads()
    with pytest.raises(ValueError, match="broken"):
        list(map_batches(work, range(10)))
    assert torch.get_num_threads() == threads


def test_a_caller_that_stops_early_waits_for_little() -> None:
    done: list[int] = []
    lock = threading.Lock()

    def work(batch: int) -> int:
        with lock:
            done.append(batch)
        return batch

    results = map_batches(work, range(10_000))
    assert next(results) == 0
    results.close()
    assert len(done) < 1000
