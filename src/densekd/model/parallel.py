"""Decode and compute batches in several threads."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from densekd.data.decode import UnreadableImage, muted

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def map_batches(work: Callable[[_In], _Out], batches: Sequence[_In]) -> Generator[_Out]:
    """Map ``work`` over batches in threads; the results are in order.

    Each thread gets its own cores: otherwise a thread that decodes would make the others wait in
    every layer of the network.
    """
    if not batches:
        return
    threads = torch.get_num_threads()
    workers = min(threads, len(batches))
    waiting: deque[Future[_Out]] = deque()
    pool = ThreadPoolExecutor(
        workers, initializer=torch.set_num_threads, initargs=(threads // workers,)
    )
    try:
        with muted, pool:
            try:
                for batch in batches:
                    waiting.append(pool.submit(work, batch))
                    if len(waiting) > 2 * workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:  # a caller that stops early needn't wait for the rest
                for future in waiting:
                    future.cancel()
    finally:
        torch.set_num_threads(threads)  # later threads get the number that was set last


def compute_readable(
    files: Sequence[_In],
    crop: Callable[[_In], Tensor],
    compute: Callable[[Tensor], Sequence[_Out]],
) -> list[_Out | str]:
    """Compute the results of all readable files in one batch; other files get the reason."""

    def crop_or_reason(file: _In) -> Tensor | str:
        try:
            return crop(file)
        except UnreadableImage as error:
            return str(error)

    read = [crop_or_reason(file) for file in files]
    pixels = [each for each in read if isinstance(each, Tensor)]
    found = iter(compute(torch.stack(pixels)) if pixels else ())
    return [each if isinstance(each, str) else next(found) for each in read]
