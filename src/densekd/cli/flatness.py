"""``densekd flatness``: what noise on the weights of a run does to its loss."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import typer

from densekd.cli import output
from densekd.cli.signals import resumable

EXAMPLES = """Examples:

densekd flatness runs/digits-rdkd-0123456789ab

densekd flatness runs/cifar100-gkd-0123456789ab --images 100 --sigmas 0:0.01:0.002

What was stopped goes on when the same command is given again."""


def flatness(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", show_default=False)],
    sigmas: Annotated[
        str,
        typer.Option(help="The deviations of the noise, FIRST:LAST:STEP or a list such as 0,0.01."),
    ] = "0:0.02:0.001",
    draws: Annotated[int, typer.Option(help="How often each noise is drawn.")] = 5,
    images: Annotated[
        int | None,
        typer.Option(help="Training images of each class; all by default.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the noise; runs are compared with the same.")] = (
        1993
    ),
) -> None:
    """See how flat a run's minimum is: the loss on its training images as its weights are moved.

    Writes flatness.json and flatness.png to the folder of the run.
    """
    from densekd.analysis.flatness import Noise, measure_flatness, plot_flatness
    from densekd.runs.load_run import read_config
    from densekd.training.callbacks import Stopped

    if images is not None and images < 1:
        raise ValueError(f"--images must be at least 1, not {images}.")
    noise = Noise(deviations(sigmas), draws, seed)
    config = read_config(run)
    with (
        resumable() as interrupts,
        output.progress(f"Moving the weights of {output.safe(run)}", "images") as on_progress,
    ):

        def seen(done: int, total: int) -> None:
            if interrupts.received is not None:
                raise Stopped
            on_progress(done, total)

        result = measure_flatness(run, noise, per_class=images, on_progress=seen)
    picture = run / "flatness.png"
    plot_flatness(result, f"{config.method.name} on {config.data.source}", picture)
    _show(result, picture)


def deviations(text: str) -> tuple[float, ...]:
    """The sigmas of a grid ``FIRST:LAST:STEP`` or of a list; 0 is put among them.

    Raises:
        ValueError: it is neither.
    """
    try:
        if ":" in text:
            first, last, step = map(float, text.split(":"))
            # Rounded, for 3 steps of 0.1 are a little more than 0.3.
            found = [round(first + k * step, 12) for k in range(round((last - first) / step) + 1)]
        else:
            found = [float(part) for part in text.split(",")]
        if not found or min(found) < 0:
            raise ValueError
    except (ValueError, ArithmeticError):
        raise ValueError(
            f"Sigmas are written as 0:0.02:0.001 or as a list such as 0,0.005,0.01, not {text!r}."
        ) from None
    return tuple(sorted({0.0, *found}))


def _show(result: Mapping[str, Any], picture: Path) -> None:
    table = output.table("sigma", numbers=("loss", "± over draws", "more than without noise"))
    losses: Sequence[Sequence[float | None]] = result["losses"]
    for sigma, row in zip(result["sigmas"], losses, strict=True):
        table.add_row(f"{sigma:g}", *_numbers(row, losses[0]))
    console = output.console()
    console.print(table)
    images = output.number(result["images"])
    console.print(
        f"The cross-entropy over all classes, the mean of {images} training images and of "
        f"{result['draws']} draws of noise on all weights."
    )
    file, drawn = picture.with_name("flatness.json"), output.safe(picture)
    console.print(f"All of it is in {output.safe(file)}, drawn in {drawn}.", soft_wrap=True)


def _numbers(row: Sequence[float | None], without: Sequence[float | None]) -> list[str]:
    """The mean, the deviation and the difference; dashes where a loss isn't finite."""
    known = [loss for loss in row if loss is not None]
    if len(known) < len(row) or without[0] is None:
        return ["-", "-", "-"]
    spread = f"{stdev(known):.4f}" if len(known) > 1 else "-"
    return [f"{fmean(known):.4f}", spread, f"{fmean(known) - without[0]:+.4f}"]
