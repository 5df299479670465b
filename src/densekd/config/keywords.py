"""The settings with short names: options of commands, and keywords in Python."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_args, get_type_hints

from densekd.config.own_parts import LISTED, is_plain, refer_each
from densekd.config.schema import Config, MethodConfig, as_tree, resolve
from densekd.config.settings_tree import (
    given,
    is_complete,
    merge,
    nested,
    override,
    read_toml,
    with_epochs_as_text,
)
from densekd.files import expand_home
from densekd.methods.paper import DISTILLATIONS
from densekd.methods.registry import is_own_method, split_name
from densekd.methods.schedule import Schedule, Schedules
from densekd.parts import refer

logger = logging.getLogger(__name__)

# A name, a reference such as ``mine.py:eeil``, or a Python value as a custom part.
OwnPart = Any
# What `make_config` makes a run's settings from.
ConfigSource = Config | Mapping[str, Any] | Path | str | None
# Settings by dotted key, or texts such as ``memory.per_class=10``.
Overrides = Mapping[str, Any] | Sequence[str]


class RunKeywords(TypedDict, total=False):
    """The keywords of `densekd.run` and options of ``densekd run``, with the setting of each.

    None means the same as leaving the keyword out.
    """

    data: Annotated[OwnPart, "data.source"]
    data_dir: Annotated[Path | str | None, "data.dir"]
    image_size: Annotated[int | None, "data.image_size"]
    validation: Annotated[float | None, "data.validation"]
    test_per_class: Annotated[int | None, "data.test_per_class"]
    steps: Annotated[int | None, "scenario.steps"]
    base: Annotated[int | None, "scenario.base"]
    increment: Annotated[int | None, "scenario.increment"]
    equal: Annotated[bool | None, "scenario.equal"]
    order: Annotated[OwnPart, "scenario.order"]
    tasks: Annotated[Sequence[Any] | str | None, "scenario.tasks"]
    method: Annotated[OwnPart, "method.name"]
    epochs: Annotated[int | float | str | None, "epochs"]
    memory: Annotated[int | None, "memory.per_class"]
    memory_total: Annotated[int | None, "memory.total"]
    network: Annotated[OwnPart, "network"]
    metrics: Annotated[OwnPart, "metrics"]
    loggers: Annotated[OwnPart, "loggers"]
    seed: Annotated[int | None, "seed"]
    devices: Annotated[int | None, "engine.devices"]
    nodes: Annotated[int | None, "engine.nodes"]
    keep_steps: Annotated[bool | None, "keep_steps"]
    start: Annotated[str | None, "start"]


class SweepKeywords(RunKeywords, total=False):
    """The keywords of `densekd.sweep`: those of `densekd.run`, and more."""

    override: Overrides
    pick: Sequence[str]
    pick_tasks: int | None
    engine: Literal["local", "ray"]
    address: str | None


RUN_KEYS: dict[str, str] = {
    name: get_args(kind)[1]
    for name, kind in get_type_hints(RunKeywords, include_extras=True).items()
}


# The setting that each keyword stands for in a compression.
COMPRESSION_KEYS = {**RUN_KEYS, "method": "method", "order": "order"}


def settings_of(keywords: Mapping[str, Any], keys: Mapping[str, str] = RUN_KEYS) -> dict[str, Any]:
    """The settings that keywords stand for, as a tree; ``keys`` maps keywords to settings."""
    for name in keywords:
        if name not in keys:
            raise TypeError(f"{name!r} is not a keyword; there are {', '.join(keys)}.")
    values = {keys[name]: value for name, value in keywords.items() if value is not None}
    return nested({key: as_setting(key, value) for key, value in values.items()})


def as_setting(key: str, value: Any) -> Any:
    """Convert a value to what a setting can hold: a custom part becomes a reference."""
    if key in LISTED:
        return refer_each(key, value if isinstance(value, list | tuple) else [value])
    if key == "data.source" and isinstance(value, Path):
        return f"folder:{value}"
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()  # a NumPy or torch scalar
    if isinstance(value, str | Path) or (is_plain(value) and key != "data.source"):
        return value
    return refer(value, "arrays" if isinstance(value, list | tuple) else "")


def make_config(
    config: ConfigSource = None,
    keywords: Mapping[str, Any] | None = None,
    changes: Overrides = (),
    *,
    trust_code: bool = False,
) -> Config:
    """Make a `Config` from a file, a mapping or another; apply keywords, then ``changes``."""
    if isinstance(config, Path | str):
        tree: Mapping[str, Any] = read_toml(expand_home(config))
        _check_epochs(tree, config)
    elif isinstance(config, Config):
        tree = as_tree(config)
    else:
        tree = config or {}
    asked = with_epochs_as_text(with_overrides(settings_of(keywords or {}), changes))
    made = resolve(merge(tree, asked), trust_code=trust_code)
    # A complete tree, as `as_toml` writes it, also has settings that the user never gave.
    _warn_of_unused(made.method, asked if is_complete(tree) else merge(tree, asked))
    return made


def _check_epochs(tree: Mapping[str, Any], file: Path | str) -> None:
    """Refuse ``epochs = 10.0`` in a complete file: earlier versions stored shares in this form."""
    epochs = tree.get("epochs")
    if isinstance(epochs, float) and epochs > 1 and epochs.is_integer() and is_complete(tree):
        raise ValueError(
            f"epochs = {epochs} in {file} may be a number of epochs or of whole schedules; write "
            f'{int(epochs)} for epochs, or "{epochs}x" for schedules.'
        )


def _warn_of_unused(method: MethodConfig, asked: Mapping[str, Any]) -> None:
    """Warn of settings that have no effect on a built-in method.

    They aren't refused: settings name the run folder, and an existing one must be found again.
    """
    first, kd = split_name(method.name)
    if is_own_method(first):
        return
    options = given(asked, "method", "options") or ()
    unused = [f"method.options.{name}" for name in options if _is_unused(name, first, kd)]
    if given(asked, "training", "finish"):
        one, two = (method.make(Schedules(finish=Schedule(epochs))) for epochs in (1, 2))
        if (one.base, one.increment) == (two.base, two.increment):
            unused.append("training.finish")
    for key in unused:
        logger.warning("%s has no effect on %s.", key, method.name)


def _is_unused(option: str, first: str, kd: str) -> bool:
    """Whether an option has no effect on ``first``, or on its combination with ``kd``."""
    if not kd and first not in DISTILLATIONS:
        used = {"finetune": ("head", "streams"), "joint": ("head",)}.get(first, ())
        return option not in used
    if kd and option in ("head", "streams"):  # the baseline decides these
        return True
    if (kd or first).endswith("-adaptive"):
        return option == "lambda_exponent"
    return option in ("similarity", "size_ratio", "vectors")


def with_overrides(tree: Mapping[str, Any], changes: Overrides) -> dict[str, Any]:
    """Override settings by dotted keys, or by texts such as ``memory.per_class=10``."""
    if isinstance(changes, Mapping):
        return merge(tree, nested(changes))
    return override(tree, [changes] if isinstance(changes, str) else changes)
