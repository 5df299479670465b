"""One value per method: its name, its options, how to build it, and its published settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from densekd.data.memory import Selection
from densekd.methods.method import Method
from densekd.methods.schedule import Schedules

DataKind = Literal["digits", "small", "imagenet100", "imagenet"]

_Options = TypeVar("_Options")


@dataclass(frozen=True)
class Published(Generic[_Options]):
    """The settings that a method was published with for one kind of data.

    Args:
        options: the method's own.
        schedules: how long and how fast it is trained.
        network: the backbone; None for the usual one for such data.
        selection: how exemplars are chosen.
        brightness: how much brighter or darker images are made at random.
        lambda_factor: multiplies lambda of a distillation that is combined with the method.
    """

    options: _Options
    schedules: Schedules
    network: str | None = None
    selection: Selection = "herding"
    brightness: float = 0.0
    lambda_factor: float = 1.0


@dataclass(frozen=True)
class MethodSpec(Generic[_Options]):
    """All there is to say about a method; `densekd.methods.registry` lists the specs.

    Args:
        name: such as ``icarl-softmax``.
        summary: one line for ``densekd methods``.
        options: the dataclass of its options, each with a default.
        build: makes the method from options and schedules.
        published: the settings of a baseline by kind of data, at least ``small``, which also
            serves the kinds that are missing. The paper's own methods have none.
        network_prefix: how the names of the backbones begin that the method is meant for.
        network_reason: what is wrong with other backbones, for a warning.
    """

    name: str
    summary: str
    options: type[_Options]
    build: Callable[[_Options, Schedules], Method]
    published: Mapping[DataKind, Published[_Options]] = field(default_factory=dict)
    network_prefix: str = ""
    network_reason: str = ""

    @property
    def key(self) -> str:
        """The section of its options in a configuration: ``icarl_softmax`` of [method]."""
        return self.name.replace("-", "_")

    def published_for(self, kind: DataKind) -> Published[_Options]:
        """The published settings for a kind of data, or for the kind most like it."""
        if kind == "imagenet100" and kind not in self.published:
            kind = "imagenet"
        return self.published.get(kind, self.published["small"])

    def make(self, options: object | None, schedules: Schedules) -> Method:
        """Build the method; None stands for the default options."""
        if options is None:
            options = self.options()
        if not isinstance(options, self.options):
            raise ValueError(f"{type(options).__name__} are not the options of {self.name}.")
        return self.build(options, schedules)
