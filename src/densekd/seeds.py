"""Named streams of random numbers from one seed.

What draws from one stream can't move another: changing the distillation leaves the order of the
images as it was, so that two methods are compared on the same batches.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

import torch

RandomStream = Literal["order", "init", "batches", "augment", "groups", "memory", "split", "noise"]


@dataclass(frozen=True)
class Seeds:
    """The streams of one seed, at one place such as a task and a phase.

    The same seed, place and name always give the same numbers, so there is nothing to store for
    a resume.
    """

    seed: int
    place: tuple[int | str, ...] = ()

    def at(self, *place: int | str) -> "Seeds":
        """The streams of the same seed at a place within this one."""
        return Seeds(self.seed, self.place + place)

    def number(self, stream: RandomStream) -> int:
        """A seed of 63 bits for one stream."""
        key = "/".join(map(str, (self.seed, stream, *self.place)))
        return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1

    def generator(self, stream: RandomStream) -> torch.Generator:
        """A CPU generator at the start of one stream."""
        return torch.Generator().manual_seed(self.number(stream))
