"""Independent, named random streams from one seed.

Drawing from one stream doesn't affect the others: methods with different distillations see the same
batches in the same order, so that they can be compared in pairs.
"""

import contextlib
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

RandomStream = Literal[
    "order",
    "init",
    "batches",
    "augment",
    "groups",
    "memory",
    "split",
    "noise",
    "validation",
    "search",
]


@dataclass(frozen=True)
class Seeds:
    """The streams of one seed at one place, such as a task and a phase.

    Seed, place and stream determine the numbers, so a resume needs no stored state.
    """

    seed: int
    place: tuple[int | str, ...] = ()

    def at(self, *place: int | str) -> "Seeds":
        """The streams of the same seed at a place within this place."""
        return Seeds(self.seed, self.place + place)

    def number(self, stream: RandomStream) -> int:
        """The 63-bit seed of a stream."""
        key = "/".join(map(str, (self.seed, stream, *self.place)))
        return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1

    def generator(self, stream: RandomStream) -> torch.Generator:
        """A CPU generator at the start of a stream."""
        return torch.Generator().manual_seed(self.number(stream))


@contextlib.contextmanager
def fixed_random_state(seed: int = 0) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and torch, and restore them afterwards.

    For custom code, which draws from these.
    """
    before = random.getstate(), np.random.get_state()  # noqa: NPY002 - what others draw from
    with torch.random.fork_rng(devices=[]):
        try:
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            torch.manual_seed(seed)
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002
