"""Independent, named random streams from one seed.

Drawing from one stream doesn't affect the others: methods with different distillations see the same
batches in the same order, so that they can be compared in pairs.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

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
