"""The settings of a run: what a user may write, what follows from it, and what it is known by."""

import dataclasses
import difflib
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from densekd.config.defaults import usual
from densekd.config.settings_tree import as_text, given, merge, over, plain, toml_lines
from densekd.data import sources
from densekd.data.memory import Quota, Selection
from densekd.data.scenario import Task
from densekd.jobs.estimate import PhaseWork, workload
from densekd.methods.afc import AfcOptions
from densekd.methods.bic import BicOptions
from densekd.methods.ccil import CcilOptions
from densekd.methods.icarl import IcarlOptions, IcarlSoftmaxOptions
from densekd.methods.method import Method
from densekd.methods.paper import DenseOptions
from densekd.methods.podnet import PodnetOptions
from densekd.methods.registry import HOSTS, make_method
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.ucir import UcirOptions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Checked = TypeVar("Checked", bound="DataclassInstance")

# The descriptions are what a user reads after "must be".
Count = Annotated[int, Field(ge=1, description="a whole number of at least 1")]
Natural = Annotated[int, Field(ge=0, description="a whole number of at least 0")]
# What legacy NumPy takes.
OrderSeed = Annotated[int, Field(ge=0, lt=2**32, description="a seed from 0 to 4294967295")]
EpochShare = Annotated[float, Field(gt=0, description="a share above 0")]
Jitter = Annotated[float, Field(ge=0, lt=1, description="a number from 0 to below 1")]

Preset = Literal["paper", "ccil"]
Accelerator = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "32", "bf16"]


@dataclass(frozen=True)
class DataConfig:
    """Which images; see `densekd.data.sources.SourceOptions`.

    Args:
        source: one of `densekd.data.sources.SOURCES`.
        dir: where CIFAR is or is put.
        image_size: height and width for folders, ImageNet and the hub.
        classes_file: the classes of ImageNet to take, one per line.
        image_column: the images' column in hub data.
        label_column: the labels' column in hub data.
        per_class: at most so many training images of each class, for short runs.
        even: oversample rare classes; see `densekd.data.stratify.oversample_rare`.
    """

    source: str = "digits"
    dir: Path | None = None
    image_size: Count | None = None
    classes_file: Path | None = None
    image_column: str | None = None
    label_column: str | None = None
    per_class: Count | None = None
    even: bool = False

    def __post_init__(self) -> None:
        sources.parse(self.source)


@dataclass(frozen=True)
class ScenarioConfig:
    """Which classes when; see `densekd.data.scenario.Scenario.of`."""

    steps: Natural | None = 5
    base: Count | None = None
    increment: Count | None = None
    equal: bool = False
    order: OrderSeed | Literal["natural", "icarl"] | Path = 1993

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.increment is None):
            raise ValueError("Give either steps or increment, and not both.")
        if self.equal and (self.base is not None or self.steps is None):
            raise ValueError("Equal tasks are given by steps alone: base and increment follow.")


@dataclass(frozen=True)
class AugmentConfig:
    """How training images are varied; see `densekd.data.augment.Augment`."""

    padding: Natural
    flip: bool
    brightness: Jitter = 0.0


@dataclass(frozen=True)
class MemoryConfig:
    """Which exemplars are kept; see `densekd.data.memory`."""

    per_class: int | None = 20
    total: int | None = None
    selection: Selection = "random"

    def __post_init__(self) -> None:
        Quota(self.per_class, self.total)


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """How it is learned.

    Args:
        name: one of `densekd.methods.registry.METHODS`, or a baseline with a distillation, such as
            ``icarl+rdkd``.
        options: of the dense distillation.
        icarl: of iCaRL; these and the following are there for that method alone.
        icarl_softmax: of iCaRL with softmax.
        bic: of BiC.
        ucir: of UCIR.
        podnet: of PODNet.
        ccil: of CCIL.
        afc: of AFC.
    """

    name: str = "rdkd"
    options: DenseOptions
    icarl: IcarlOptions | None = None
    icarl_softmax: IcarlSoftmaxOptions | None = None
    bic: BicOptions | None = None
    ucir: UcirOptions | None = None
    podnet: PodnetOptions | None = None
    ccil: CcilOptions | None = None
    afc: AfcOptions | None = None

    def __post_init__(self) -> None:
        for host in HOSTS:
            if host != self.host and getattr(self, _key(host)) is not None:
                raise ValueError(f"{_key(host)} has no meaning for {self.name}; leave it out.")
        self.make(Schedules(finish=Schedule()))  # which raises if these don't go together

    @property
    def host(self) -> str:
        """The method without the distillation that was put into it."""
        return self.name.partition("+")[0]

    def make(self, schedules: Schedules) -> Method:
        """The method itself."""
        own = getattr(self, _key(self.host)) if self.host in HOSTS else None
        return make_method(self.name, self.options, schedules, own)


@dataclass(frozen=True)
class TrainingConfig:
    """How long and how fast the tasks are trained, before `Config.epochs` shortens it.

    Args:
        base: the schedule of the base task.
        increment: the schedule of each later task.
        finish: the schedule of what a method adds to it: balanced fine-tuning, a bias stage.
        preset: where the schedules come from, where they aren't given: the ``paper``, or
            ``ccil``'s released code, which trains CIFAR longer.
    """

    base: Schedule
    increment: Schedule
    finish: Schedule | None = None
    preset: Preset = "paper"

    @property
    def schedules(self) -> Schedules:
        """The three schedules."""
        return Schedules(self.base, self.increment, self.finish)


@dataclass(frozen=True)
class EngineConfig:
    """What it runs on.

    Args:
        accelerator: the kind of device; ``auto`` takes the best there is.
        devices: how many of them.
        precision: ``32`` bits, ``bf16`` autocast, or what the device gains by.
        workers: processes that decode images which don't fit into memory.
    """

    accelerator: Accelerator = "auto"
    devices: Count = 1
    precision: Precision = "auto"
    workers: Natural = 0


class CommonConfig(Protocol):
    """The settings that a run and a compression share."""

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

    Args:
        seed: of everything that is drawn, but for the order of the classes.
        epochs: the epochs of the base task, or, as a float, the share of all epochs to train;
            other schedules are shortened in proportion. None leaves them as they are.
        network: the name of the backbone.
        data: which images.
        scenario: which classes when.
        augment: how training images are varied.
        memory: which exemplars are kept.
        method: how it is learned.
        training: how long and how fast.
        engine: what it runs on.
    """

    seed: int = 1993
    epochs: Count | EpochShare | None = None
    network: str
    data: DataConfig = DataConfig()
    scenario: ScenarioConfig = ScenarioConfig()
    augment: AugmentConfig
    memory: MemoryConfig = MemoryConfig()
    method: MethodConfig
    training: TrainingConfig
    engine: EngineConfig = EngineConfig()

    def schedules(self) -> Schedules:
        """The schedules to train by: those of ``training``, shortened by ``epochs``."""
        share = 1.0 if self.epochs is None else self.epochs
        if isinstance(self.epochs, int):
            share = self.epochs / self.training.base.epochs
        return self.training.schedules.scaled(share)

    def workload(self, tasks: Sequence[Task]) -> list[PhaseWork]:
        """All phases of all tasks, to estimate the time that is left."""
        quota = Quota(self.memory.per_class, self.memory.total)
        return workload(self.method.make(self.schedules()), tasks, quota)


def resolve(tree: Mapping[str, Any]) -> Config:
    """All settings, from those that a user gave and what is usual for such data.

    Args:
        tree: sections as nested mappings; anything may be left out.

    Raises:
        ValueError: with one sentence that names the setting and what it may be.
    """
    tree = uniform(tree)
    return checked(Config, merge(usual(tree), tree))


def checked(kind: type[Checked], tree: Mapping[str, Any]) -> Checked:
    """Settings as the frozen dataclass that says what they may be.

    Args:
        kind: the dataclass, whose sections are dataclasses too.
        tree: sections as nested mappings; what has no default must be there.

    Raises:
        ValueError: with one sentence that names the setting and what it may be.
    """
    try:
        # Strict JSON is what fits TOML: a list is a tuple and text a path, but "5" is no number.
        made: Checked = _adapter(kind).validate_json(json.dumps(tree, default=as_text))
    except ValidationError as error:
        raise ValueError(_sentence(error, tree, kind)) from None
    return made


@functools.cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    strict = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return TypeAdapter(with_config(strict)(kind))


def as_tree(config: "DataclassInstance") -> dict[str, Any]:
    """All settings as JSON has them: paths are text, and what is unset is None."""
    return plain(dataclasses.asdict(config))


def as_toml(config: "DataclassInstance") -> str:
    """All settings as TOML without those unset, from which `resolve` makes the same again."""
    return "\n".join(toml_lines(as_tree(config))) + "\n"


def influential(config: "DataclassInstance") -> dict[str, Any]:
    """The settings without those that can't change a result, which are of data and engine."""
    tree = as_tree(config)
    del tree["data"]["dir"], tree["engine"]["workers"]
    if not tree["data"]["even"]:
        del tree["data"]["even"]  # so that runs from before it was a setting are found
    return tree


def base_settings(config: Config, base_classes: int) -> dict[str, Any]:
    """What the base task's result depends on, so that runs which agree in it can share it.

    Args:
        config: the run's settings.
        base_classes: the number of classes of the base task.
    """
    tree = influential(config)
    method = config.method.make(config.schedules())
    own = config.method.host if config.method.host in HOSTS else None
    # Such as CCIL's generations, which have a schedule of their own.
    further = {p.name: plain(dataclasses.asdict(p.schedule)) for p in method.base[1:]}
    return {
        **{name: tree[name] for name in ("seed", "network", "data", "augment", "engine")},
        "order": tree["scenario"]["order"],
        "classes": base_classes,
        "head": method.head,
        # Batches of the two kinds are drawn from streams of different names.
        "streams": method.streams,
        # Finetuning and the paper's methods learn the base alike, baselines each in their own way.
        "method": own and {own: tree["method"][_key(own)], **further},
        # How many images are held out of training follows from how many are kept.
        **({"memory": tree["memory"]} if method.held_out else {}),
        "schedule": plain(dataclasses.asdict(config.schedules().base)),
    }


def uniform(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write in one way what may be written in several: ``epochs = "30%"``, ``precision = 32``."""
    if isinstance(tree.get("epochs"), str):
        tree = {**tree, "epochs": _epochs(tree["epochs"])}
    precision = given(tree, "engine", "precision")
    if type(precision) is int:
        tree = over(tree, {"engine": {"precision": str(precision)}})
    return tree


def _epochs(text: str) -> int | float:
    number = text.strip()
    try:
        if number.endswith("%"):
            return float(number[:-1]) / 100
        return int(number) if number.lstrip("+-").isdigit() else float(number)
    except ValueError:
        raise ValueError(
            f"epochs must be a number such as 10, or a share such as 0.3 or 30%, not {text!r}."
        ) from None


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    NoneType: "none",
    tuple[int, ...]: "a list of whole numbers",
}


def _choices(kind: Any) -> list[str]:
    """What a setting of a type may be."""
    origin = get_origin(kind)
    if origin is Annotated:
        return [str(get_args(kind)[1].description)]
    if origin is Literal:
        return [repr(choice) for choice in get_args(kind)]
    if origin in (Union, UnionType):
        return [choice for member in get_args(kind) for choice in _choices(member)]
    if dataclasses.is_dataclass(kind):
        return [f"a section with {', '.join(get_type_hints(kind))}"]
    return [_WORDS[kind]]


def _key(host: str) -> str:
    return host.replace("-", "_")


def _settings(section: type, prefix: str = "") -> dict[str, Any]:
    """The types of all settings and sections, by dotted key."""
    settings: dict[str, Any] = {}
    for name, kind in get_type_hints(section, include_extras=True).items():
        settings[prefix + name] = kind
        for member in get_args(kind) or (kind,):  # a section, or one that may be missing
            if isinstance(member, type) and dataclasses.is_dataclass(member):
                settings |= _settings(member, f"{prefix}{name}.")
    return settings


def _sentence(error: ValidationError, tree: Mapping[str, Any], kind: type) -> str:
    """What is wrong first of all; a misspelt key comes before what follows from it."""
    errors = error.errors(include_url=False)
    unknown = [each for each in errors if each["type"] == "unexpected_keyword_argument"]
    first = (unknown or errors)[0]
    path = [str(part) for part in first["loc"]]
    settings = _settings(kind)
    if unknown:
        host = str(given(tree, "method", "name")).partition("+")[0]
        foreign = tuple(f"method.{_key(other)}." for other in HOSTS if other != host)
        near = {key: own for key, own in settings.items() if not key.startswith(foreign)}
        return _no_setting(path, near, kind)
    if first["type"] == "json_invalid":
        return "A setting has bytes in it that are no text; rename what it names."
    while ".".join(path) not in settings:
        path.pop()  # the item of a list, or the member of a union
    key = ".".join(path)
    if first["type"] == "value_error":
        return f"{key}: {first['ctx']['error']}"
    *others, last = _choices(settings[key])
    expected = f"{', '.join(others)} or {last}" if others else last
    return f"{key} must be {expected}, not {given(tree, *path)!r}."


def _no_setting(path: Sequence[str], settings: Mapping[str, Any], root: type) -> str:
    key = ".".join(path)

    def likeness(known: str) -> tuple[float, float]:
        leaf = difflib.SequenceMatcher(None, path[-1], known.rpartition(".")[2]).ratio()
        return leaf, difflib.SequenceMatcher(None, key, known).ratio()

    # By the last part first, for what precedes it exists, if perhaps elsewhere.
    near = max(settings, key=likeness)
    if likeness(near)[0] >= 0.6:
        return f"{key} is not a setting; did you mean {near}?"
    section = settings[".".join(path[:-1])] if path[1:] else root
    return f"{key} is not a setting; there are {', '.join(get_type_hints(section))}."
