"""Options that several commands share, and the decorator that makes a command."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

# The panels of --help that shared options are listed in.
DATA, TRAINING, SETTINGS = "Data", "Training", "Other settings"


def option(help: str, *names: str, panel: str | None = None, **details: Any) -> Any:
    """An option whose default is left out of --help; ``details`` are passed to `typer.Option`."""
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=False, **details)


def argument(help: str, metavar: str | None = None) -> Any:
    """An argument whose default, if it has one, is left out of --help."""
    return typer.Argument(help=help, metavar=metavar, show_default=False)


AsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the result as JSON on stdout, and everything else on stderr."
    ),
]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code", help="Run the code files that the run was made with, if there are any."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Don't show progress.")]
RunsFolder = Annotated[Path, typer.Option(help="Folder for the run folders.", metavar="FOLDER")]
SourceOption = Annotated[
    str | None,
    option(
        "Data set, such as digits or cifar100; `densekd data list` shows all. Or your own, such "
        "as mine.py:flowers.",
        panel=DATA,
        metavar="SOURCE",
    ),
]
DataDir = Annotated[
    Path | None,
    option("Folder with CIFAR. Default: DENSEKD_DATA if set, else your cache folder.", panel=DATA),
]
Seed = Annotated[
    int | None,
    option("Seed of all random choices but the class order. Default: 1993.", panel=TRAINING),
]
Epochs = Annotated[
    str | None,
    option(
        "Epochs of the first task (in compress: of the student), or a share of all epochs, such as "
        "30%, 0.3 or 0.3x. The rest of the schedule shrinks in proportion.",
        panel=TRAINING,
        metavar="EPOCHS",
    ),
]
Override = Annotated[
    list[str] | None,
    option(
        "Change any setting, such as augment.flip=false. Overrides options and files; repeatable.",
        "--override",
        "-o",
        panel=SETTINGS,
        metavar="KEY=VALUE",
    ),
]
ModelFolder = Annotated[Path, argument("Folder of the model.", "MODEL")]
ModelStep = Annotated[int | None, option("Use the model as it was after this step.")]
Refuse = Annotated[
    float,
    typer.Option(
        help="Largest share of the images of known classes that may be called unknown. A larger "
        "share finds more of the unknown images; 0 calls none unknown.",
        min=0,
        max=0.99,
    ),
]


class CliCommand(NamedTuple):
    """A command, and the examples at the end of its --help."""

    name: str
    function: Callable[..., None]
    epilog: str

    def add_to(self, app: typer.Typer, panel: str | None = None) -> None:
        """Register the command."""
        # Terminals may be narrower than the docstring's lines, so each paragraph becomes one line.
        paragraphs = (inspect.getdoc(self.function) or "").split("\n\n")
        help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        app.command(self.name, help=help, epilog=self.epilog, rich_help_panel=panel)(self.function)


def command(
    *examples: str, options: type | None = None, note: str = "", name: str = ""
) -> Callable[[Callable[..., None]], CliCommand]:
    """Make a command of a function called ``NAME_command``.

    Args:
        examples: command lines that show how to call it.
        options: a dataclass. The command gets an option for each field, and the function gets the
            filled dataclass as its first argument.
        note: text below the examples.
        name: the command's name, if it isn't NAME.
    """
    title = "Examples:" if len(examples) > 1 else "Example:"
    epilog = "\n\n".join([title, *examples, *([note] if note else [])])

    def decorate(function: Callable[..., None]) -> CliCommand:
        made = function if options is None else _with_options(function, options)
        return CliCommand(name or function.__name__.removesuffix("_command"), made, epilog)

    return decorate


def _with_options(function: Callable[..., None], options: type) -> Callable[..., None]:
    names = [field.name for field in fields(options)]

    def with_options(**given: Any) -> None:
        chosen = options(**{name: given.pop(name) for name in names})
        function(chosen, **given)

    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    shared = inspect.signature(options, eval_str=True).parameters.values()
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*shared, *own)]
    # typer reads the options from here.
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    with_options.__doc__ = function.__doc__
    return with_options
