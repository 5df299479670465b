"""The settings of a run: what a user may write, and how it becomes a `Config`."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from densekd.config.defaults import default_settings
from densekd.config.errors import check_sizes, error_sentence
from densekd.config.own_parts import Loggers, OwnMetrics, OwnSelection, with_references
from densekd.config.settings_tree import as_text, given, merge, plain, settle_spelling, toml_lines
from densekd.data import sources
from densekd.data.augment import Crop
from densekd.data.memory import Quota
from densekd.data.scenario import Task, check_division
from densekd.data.selection import Selection
from densekd.jobs.estimate import PhaseWork, workload
from densekd.methods.defaults import Preset
from densekd.methods.method import Method
from densekd.methods.own import shortened
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import (
    BASELINES,
    baseline_of,
    check_method,
    is_own_method,
    make_method,
    split_name,
)
from densekd.methods.schedule import Schedule, Schedules
from densekd.parts import find
from densekd.precision import Compile, Precision

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Checked = TypeVar("Checked", bound="DataclassInstance")

# Error messages put the description after "must be".
Count = Annotated[int, Field(ge=1, description="a whole number of at least 1")]
PixelCount = Annotated[int, Field(ge=1, le=4096, description="a whole number from 1 to 4096")]
PaddingPixels = Annotated[int, Field(ge=0, le=256, description="a whole number from 0 to 256")]
Processes = Annotated[int, Field(ge=1, le=1024, description="a whole number from 1 to 1024")]
WorkerCount = Annotated[int, Field(ge=0, le=1024, description="a whole number from 0 to 1024")]
AnySeed = Annotated[int, Field(ge=-(2**63), lt=2**64, description="a whole number of 64 bits")]
Natural = Annotated[int, Field(ge=0, description="a whole number of at least 0")]
# The seeds that legacy NumPy takes.
OrderSeed = Annotated[int, Field(ge=0, lt=2**32, description="a seed from 0 to 4294967295")]
EpochShare = Annotated[float, Field(gt=0, le=1000, description="a share above 0")]
Share = Annotated[float, Field(ge=0, lt=1, description="a number from 0 to below 1")]
MethodParams = Annotated[
    dict[str, bool | int | float | str],
    Field(description="a table of numbers and texts, such as { alpha = 0.5 }"),
]

Accelerator = Literal["auto", "cpu", "cuda", "mps"]


@dataclass(frozen=True)
class DataConfig:
    """The images; see `densekd.data.sources.SourceOptions`."""

    source: str = "digits"  # one of `densekd.data.sources.SOURCES`
    dir: Path | None = None  # the folder of downloaded data
    image_size: PixelCount | None = None
    classes_file: Path | None = None
    image_column: str | None = None
    label_column: str | None = None
    per_class: Count | None = None  # the most training images of a class, for short runs
    test_per_class: Count | None = None  # the most test images of a class
    oversample_rare: bool = False  # see `densekd.data.stratify.oversample_rare`
    validation: Share = 0.0  # the share of training images held out to choose settings

    def __post_init__(self) -> None:
        sources.parse(self.source)


@dataclass(frozen=True)
class ScenarioConfig:
    """The division into tasks; see `of` and `of_tasks` of `densekd.data.scenario.Scenario`."""

    steps: Natural | None = 5
    base: Count | None = None
    increment: Count | None = None
    equal: bool = False
    order: OrderSeed | Literal["natural", "icarl"] | Path = 1993
    first: Count | None = None  # learn only the first tasks
    tasks: tuple[int, ...] | tuple[tuple[str, ...], ...] | Path | None = None

    def __post_init__(self) -> None:
        if self.tasks is not None:
            if (self.steps, self.base, self.increment, self.equal) != (None, None, None, False):
                raise ValueError("tasks goes alone: leave out steps, base, increment and equal.")
        else:
            check_division(
                steps=self.steps, base=self.base, increment=self.increment, equal=self.equal
            )
        if self.first is not None and self.steps is not None and self.first > self.steps + 1:
            raise ValueError(f"The first {self.first} of {self.steps + 1} tasks can't be learned.")


@dataclass(frozen=True)
class AugmentConfig:
    """The augmentation of training images; see `densekd.data.augment.Augment`."""

    padding: PaddingPixels
    flip: bool
    brightness: Share = 0.0
    crop: Crop = "padded"


@dataclass(frozen=True)
class MemoryConfig:
    """The exemplars to keep; see `densekd.data.memory`."""

    per_class: int | None = 20
    total: int | None = None
    selection: Selection | OwnSelection = "random"

    def __post_init__(self) -> None:
        Quota(self.per_class, self.total)


@dataclass(frozen=True, kw_only=True)
class _MethodConfig:
    """The method and its options."""

    name: str = "rdkd"  # as `densekd.methods.registry.make_method` takes it
    options: DenseOptions  # of the dense distillation
    params: MethodParams | None = None  # of a custom method

    def __post_init__(self) -> None:
        for spec in BASELINES.values():
            if spec is not baseline_of(self.name) and getattr(self, spec.key) is not None:
                raise ValueError(f"{spec.key} has no meaning for {self.name}; leave it out.")
        if is_own_method(self.name):
            check_method(self.name)
            return  # don't run its code: the settings may come from somebody else's run folder
        if self.params is not None:
            raise ValueError(f"params have no meaning for {self.name}; leave them out.")
        self.make(Schedules(finish=Schedule()))  # raises if the options don't go together

    @property
    def is_value(self) -> bool:
        """Whether the method is a custom `Method` object, which has its own schedules."""
        first, _ = split_name(self.name)
        return is_own_method(self.name) and isinstance(find(first), Method)

    @property
    def own(self) -> Any:
        """The options of the baseline; None for the paper's methods."""
        baseline = baseline_of(self.name)
        return None if baseline is None else getattr(self, baseline.key)

    def make(self, schedules: Schedules) -> Method:
        """Make the method itself."""
        return make_method(self.name, self.options, schedules, self.own, self.params)


if TYPE_CHECKING:
    MethodConfig = _MethodConfig
else:
    # Has an optional section for each baseline, such as [method.podnet].
    MethodConfig = dataclasses.make_dataclass(
        "MethodConfig",
        [(spec.key, spec.options | None, None) for spec in BASELINES.values()],
        bases=(_MethodConfig,),
        namespace={"__module__": __name__},
        frozen=True,
        kw_only=True,
    )


@dataclass(frozen=True)
class TrainingConfig(Schedules):
    """How long and how fast the tasks are trained, before `Config.epochs` shortens it."""

    # The default schedules: the paper's, the paper's with CCIL's weight decay, or those of CCIL's
    # released code, which trains CIFAR longer. Baselines have their own, and refuse a preset.
    preset: Preset = "paper"


@dataclass(frozen=True)
class EngineConfig:
    """The devices to train on; see `densekd.training.engine.Engine`."""

    accelerator: Accelerator = "auto"
    devices: Processes = 1  # of each machine
    precision: Precision = "auto"
    # Processes that decode images in files; chosen by the number of processors if unset.
    workers: WorkerCount | None = None
    nodes: Processes = 1  # machines
    compile: Compile = "auto"

    @property
    def ranks(self) -> int:
        """How many processes share each batch."""
        return self.devices * self.nodes


@dataclass(frozen=True)
class StartConfig:
    """The step of another run, the parent, to go on from; see `densekd.config.branching`."""

    run: Path  # the parent's folder
    after: Count  # the last of the parent's steps to keep; 1 is the base task
    settings: str  # the digest of the parent's settings


class CommonConfig(Protocol):
    """The settings that a run and a compression share."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def seed(self) -> int: ...  # noqa: D102
    @property
    def data(self) -> DataConfig: ...  # noqa: D102
    @property
    def augment(self) -> AugmentConfig: ...  # noqa: D102
    @property
    def engine(self) -> EngineConfig: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run; `resolve` makes them from what a user wrote.

    ``seed`` seeds all random streams but the order of the classes. ``epochs`` is the number of
    epochs of the base task, or, as a float, a share of its epochs; the other schedules are
    shortened in proportion. None leaves all schedules as they are. ``keep_steps`` keeps the learner
    and the test predictions of every step.
    """

    seed: AnySeed = 1993
    epochs: Count | EpochShare | None = None
    keep_steps: bool = False
    network: str
    data: DataConfig = DataConfig()
    scenario: ScenarioConfig = ScenarioConfig()
    augment: AugmentConfig
    memory: MemoryConfig = MemoryConfig()
    method: MethodConfig
    training: TrainingConfig
    engine: EngineConfig = EngineConfig()
    metrics: OwnMetrics | None = None  # see `densekd.training.own_metrics`
    loggers: Loggers | None = None  # see `densekd.runs.trackers`; TensorBoard by default
    start: StartConfig | None = None

    def schedules(self) -> Schedules:
        """The schedules to train by: those of ``training``, shortened by ``epochs``."""
        return self.training.scaled(epoch_share(self.epochs, self.training.base))

    def make_method(self) -> Method:
        """Make the method; ``epochs`` also shortens the phases of a custom `Method` object."""
        method = self.method.make(self.schedules())
        if self.epochs is None or not self.method.is_value:
            return method
        return shortened(method, epoch_share(self.epochs, method.base[0].schedule))

    def workload(self, tasks: Sequence[Task]) -> list[PhaseWork]:
        """All phases of all tasks, to estimate the time that is left."""
        quota = Quota(self.memory.per_class, self.memory.total)
        return workload(self.make_method(), tasks, quota)


def epoch_share(epochs: float | None, schedule: Schedule) -> float:
    """The share of all epochs to train; an int ``epochs`` is the number for ``schedule``."""
    if epochs is None:
        return 1.0
    return epochs / schedule.epochs if isinstance(epochs, int) else epochs


def resolve(tree: Mapping[str, Any], *, trust_code: bool = False) -> Config:
    """Complete a user's settings with the defaults for their data and method.

    Anything may be left out; custom parts may be Python values. With ``trust_code``, a run that
    goes on from another one may use code files that only that one's settings name. Raises
    ValueError as `checked` does.
    """
    tree = settle_spelling(with_references(tree))
    if given(tree, "start") is not None:
        from densekd.config.branching import complete_branch  # imported late: it imports `resolve`

        tree = complete_branch(tree, trust_code=trust_code)
    _check_preset(tree)
    return checked(Config, merge(default_settings(tree), tree))


def _check_preset(tree: Mapping[str, Any]) -> None:
    """Refuse a preset without effect. Files by `as_toml` give all schedules and may have one."""
    name = str(given(tree, "method", "name"))
    schedules = [given(tree, "training", part, "epochs") for part in ("base", "increment")]
    if given(tree, "training", "preset") and baseline_of(name) and None in schedules:
        raise ValueError(
            f"training.preset has no effect on {name}, which has its own published schedules; "
            "leave it out, or give training.base and training.increment."
        )


def checked(kind: type[Checked], tree: Mapping[str, Any]) -> Checked:
    """Check settings, and turn them into a ``kind``, a dataclass with dataclasses as sections.

    Raises ValueError with one sentence that names the setting and what it may be.
    """
    check_sizes(tree)
    try:
        # Strict JSON mode fits TOML: lists become tuples and texts paths, but "5" stays text.
        made: Checked = _adapter(kind).validate_json(json.dumps(tree, default=as_text))
    except ValidationError as error:
        raise ValueError(error_sentence(error, tree, kind)) from None
    return made


@functools.cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    strict = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return TypeAdapter(with_config(strict)(kind))


def as_tree(config: "DataclassInstance") -> dict[str, Any]:
    """All settings as JSON: paths become text, and unset settings are None."""
    return plain(dataclasses.asdict(config))


def as_toml(config: "DataclassInstance", *, unset: bool = False) -> str:
    """All settings as TOML that `resolve` reads back; with ``unset``, unset ones as comments."""
    tree = as_tree(config)
    if isinstance(tree.get("epochs"), float) and tree["epochs"] >= 1:
        tree["epochs"] = f"{tree['epochs']!r}x"  # without the x, a number of epochs
    return "\n".join(toml_lines(tree, unset=unset)) + "\n"
