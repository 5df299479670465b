"""The options of a benchmark run, and how they become a configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from densekd.cli.options import (
    DATA,
    SETTINGS,
    TRAINING,
    DataDir,
    Epochs,
    Override,
    Seed,
    SourceOption,
    option,
)

if TYPE_CHECKING:
    from densekd.config.schema import Config

_TASKS = "Tasks"


@dataclass(frozen=True)
class RunOptions:
    """The options of a run; None if not given."""

    data: SourceOption = None
    data_dir: DataDir = None
    image_size: Annotated[
        int | None, option("Height and width for image files, such as 224.", panel=DATA)
    ] = None
    steps: Annotated[
        int | None, option("Number of tasks after the first. Default: 5.", panel=_TASKS)
    ] = None
    base: Annotated[
        int | None, option("Classes in the first task. Default: half of them.", panel=_TASKS)
    ] = None
    increment: Annotated[
        int | None, option("Classes in each later task, instead of --steps.", panel=_TASKS)
    ] = None
    equal: Annotated[
        bool | None,
        option("Give the first task as many classes as the others.", "--equal", panel=_TASKS),
    ] = None
    order: Annotated[
        str | None,
        option(
            "Class order: a seed, natural, icarl, or a file. Default: 1993.",
            metavar="ORDER",
            panel=_TASKS,
        ),
    ] = None
    method: Annotated[
        str | None, option("Method; `densekd methods` lists all. Default: rdkd.", panel=TRAINING)
    ] = None
    epochs: Epochs = None
    memory: Annotated[
        int | None, option("Exemplars kept per class. Default: 20.", panel=TRAINING)
    ] = None
    memory_total: Annotated[
        int | None, option("Exemplars kept in all, instead of --memory.", panel=TRAINING)
    ] = None
    network: Annotated[
        str | None, option("Backbone, such as resnet32 or hf:NAME_OR_PATH.", panel=TRAINING)
    ] = None
    seed: Seed = None
    devices: Annotated[
        int | None, option("Processes that share each batch. Default: 1.", panel=TRAINING)
    ] = None
    config: Annotated[
        Path | None,
        option(
            "TOML file of settings, as `densekd config show` prints it. Options win over it.",
            panel=SETTINGS,
            metavar="FILE",
        ),
    ] = None
    override: Override = None

    def resolve(self) -> "Config":
        """The configuration: the file, changed by the options, changed by the overrides."""
        from densekd.config.schema import resolve
        from densekd.config.settings_tree import merge, override, read_toml

        file = {} if self.config is None else read_toml(self.config)
        given: dict[str, Any] = {}
        for name, (*section, key) in _KEYS.items():
            if (value := getattr(self, name)) is not None:
                place = given.setdefault(section[0], {}) if section else given
                place[key] = value
        # Parsed like an override, because it may be a number or a word.
        order = [] if self.order is None else [f"scenario.order={self.order}"]
        return resolve(override(merge(file, given), [*order, *(self.override or [])]))


# The setting that each option stands for.
_KEYS = {
    "data": ("data", "source"),
    "data_dir": ("data", "dir"),
    "image_size": ("data", "image_size"),
    "steps": ("scenario", "steps"),
    "base": ("scenario", "base"),
    "increment": ("scenario", "increment"),
    "equal": ("scenario", "equal"),
    "method": ("method", "name"),
    "memory": ("memory", "per_class"),
    "memory_total": ("memory", "total"),
    "network": ("network",),
    "epochs": ("epochs",),
    "seed": ("seed",),
    "devices": ("engine", "devices"),
}
