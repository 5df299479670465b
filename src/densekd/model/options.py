"""The options of an update."""

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, TypedDict, get_args

from densekd.checks import check_choice
from densekd.nn.registry import is_pretrained

# What to do with folders named like a known class.
OnKnownClass = Literal["refuse", "replay", "add"]


class TeachKeywords(TypedDict, total=False):
    """The fields of `TeachOptions` as keywords of `densekd.teach`."""

    image_size: int | None
    network: str | None
    method: str | None
    epochs: int | None
    budget: float | None
    known: OnKnownClass
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class TeachOptions:
    """The user's choices for an update; the rest is chosen to suit the images.

    The digest of these fields identifies an update on disk, so don't rename them.
    """

    image_size: int | None = None  # this and the next two are for a new model only
    network: str | None = None
    method: str | None = None
    epochs: int | None = None
    budget: float | None = None  # minutes for the whole update, instead of epochs
    known: OnKnownClass = "refuse"  # what to do with folders named like a known class
    overrides: tuple[str, ...] = ()  # such as training.increment.lr=0.05

    def __post_init__(self) -> None:
        if self.epochs is not None and self.budget is not None:
            raise ValueError("Give either epochs or a budget, not both.")
        for name, value in (("epochs", self.epochs), ("image size", self.image_size)):
            if value is not None and not (isinstance(value, Integral) and value >= 1):
                raise ValueError(f"The {name} must be a whole number of at least 1, not {value!r}.")
        check_budget(self.budget)
        # Otherwise any other word would act as "add".
        check_choice("known", self.known, get_args(OnKnownClass))

    @property
    def trains(self) -> bool:
        """Whether these options need a trained network instead of a frozen pretrained one."""
        own_network = self.network is not None and not is_pretrained(self.network)
        settings = (self.method, self.image_size, self.epochs, *self.overrides)
        return own_network or any(setting is not None for setting in settings)


def check_budget(minutes: float | None) -> None:
    """Raise ValueError unless ``minutes`` is a finite number above 0, or None."""
    if minutes is not None and not (isinstance(minutes, int | float) and 0 < minutes < math.inf):
        raise ValueError(f"The budget must be a number of minutes above 0, not {minutes!r}.")
