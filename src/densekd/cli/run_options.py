"""The options that make a configuration, for all commands that take one."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from densekd.config.schema import Config


def _option(help: str, *names: str, panel: str = "What is learned", metavar: str = "") -> Any:
    return typer.Option(
        *names, help=help, rich_help_panel=panel, metavar=metavar or None, show_default=False
    )


_HOW = "How it is learned"
_MORE = "Everything else"


@dataclass(frozen=True)
class RunOptions:
    """What was said on the command line; None is what wasn't."""

    data: Annotated[
        str | None, _option("See `densekd data list`; digits by default.", metavar="SOURCE")
    ] = None
    steps: Annotated[int | None, _option("How many times new classes come; 5 by default.")] = None
    base: Annotated[int | None, _option("The classes learned first; half of them by default.")] = (
        None
    )
    increment: Annotated[
        int | None, _option("The classes that come at a time, instead of --steps.")
    ] = None
    equal: Annotated[bool | None, _option("As many classes first as at each step.", "--equal")] = (
        None
    )
    order: Annotated[
        str | None,
        _option(
            "The order of the classes: a seed (1993 by default), natural, icarl, or a file.",
            metavar="ORDER",
        ),
    ] = None
    data_dir: Annotated[
        Path | None, _option("Where CIFAR is, or is put, if not in DENSEKD_DATA.")
    ] = None
    image_size: Annotated[int | None, _option("Height and width for image files, such as 224.")] = (
        None
    )
    method: Annotated[
        str | None,
        _option("rdkd by default; `densekd methods` lists them all.", panel=_HOW),
    ] = None
    epochs: Annotated[
        str | None,
        _option(
            "Epochs of the base task (10), or a share of the full schedule (0.3, 30%); "
            "later tasks are shortened alike.",
            panel=_HOW,
            metavar="EPOCHS",
        ),
    ] = None
    memory: Annotated[
        int | None, _option("Exemplars kept of each class; 20 by default.", panel=_HOW)
    ] = None
    memory_total: Annotated[
        int | None, _option("Exemplars kept in all, instead of --memory.", panel=_HOW)
    ] = None
    network: Annotated[str | None, _option("Such as resnet32, or hf:NAME_OR_PATH.", panel=_HOW)] = (
        None
    )
    seed: Annotated[int | None, _option("Of all that is drawn; 1993 by default.", panel=_HOW)] = (
        None
    )
    devices: Annotated[
        int | None, _option("Processes that share each batch; 1 by default.", panel=_HOW)
    ] = None
    config: Annotated[
        Path | None,
        _option(
            "A TOML file as `densekd config show` prints it; options count more.",
            panel=_MORE,
            metavar="FILE",
        ),
    ] = None
    override: Annotated[
        list[str] | None,
        _option(
            "Any setting that `densekd config show` shows, such as training.base.lr=0.2; "
            "counts most. Can be repeated.",
            "--override",
            "-o",
            panel=_MORE,
            metavar="KEY=VALUE",
        ),
    ] = None

    def resolve(self) -> "Config":
        """The configuration: of the file, changed by options, changed by overrides."""
        from densekd.config.schema import resolve
        from densekd.config.settings_tree import merge, override, read_toml

        file = {} if self.config is None else read_toml(self.config)
        given: dict[str, Any] = {}
        for name, (*section, key) in _KEYS.items():
            if (value := getattr(self, name)) is not None:
                place = given.setdefault(section[0], {}) if section else given
                place[key] = value
        # A seed or a word, as in an override.
        order = [] if self.order is None else [f"scenario.order={self.order}"]
        return resolve(override(merge(file, given), [*order, *(self.override or [])]))


# What an option is called in a configuration file.
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


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes `RunOptions` first an option for each of their fields."""
    return takes(RunOptions)(command)


def takes(options: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command that takes a dataclass first an option for each of its fields."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        names = [field.name for field in fields(options)]

        def with_options(**given: Any) -> None:
            chosen = options(**{name: given.pop(name) for name in names})
            command(chosen, **given)

        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        ours = inspect.signature(options, eval_str=True).parameters.values()
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*ours, *own)]
        # typer reads what options there are from here.
        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {p.name: p.annotation for p in parameters}
        with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
        return with_options

    return decorate
