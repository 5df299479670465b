"""``densekd flatness``: how noise on the weights of a run changes its loss."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import typer

from densekd.cli import options
from densekd.cli.options import argument, command, option
from densekd.cli.signals import resumable
from densekd.display import output

_MOST_SIGMAS = 1000  # each takes a pass over all images for every draw


@command(
    "densekd flatness runs/digits-rdkd-0123456789ab",
    "densekd flatness runs/cifar100-gkd-0123456789ab --images 100 --sigmas 0:0.01:0.002",
    note="Repeat the same command to resume a measurement that was stopped.",
)
def flatness_command(
    run: Annotated[Path, argument("Folder of a finished run.", "RUN")],
    sigmas: Annotated[
        str,
        typer.Option(
            help="Standard deviations of the noise: FIRST:LAST:STEP, or a list such as 0,0.01."
        ),
    ] = "0:0.02:0.001",
    draws: Annotated[int, typer.Option(help="Random draws for each standard deviation.")] = 5,
    images: Annotated[int | None, option("Training images to use per class. Default: all.")] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the noise; use the same to compare runs.")
    ] = 1993,
    trust_code: options.TrustCode = False,
) -> None:
    """Measure how flat a run's minimum is: the training loss with noise on the weights.

    Writes flatness.json and flatness.png to the run folder.
    """
    from densekd.analysis.flatness import Noise, measure_flatness, plot_flatness
    from densekd.config.branching import read_config
    from densekd.training.callbacks import Stopped

    if images is not None and images < 1:
        raise ValueError(f"--images must be at least 1, not {images}.")
    noise = Noise(parse_sigmas(sigmas), draws, seed)
    config = read_config(run)
    with (
        resumable() as interrupts,
        output.show_progress(f"Adding noise to {output.safe(run)}", "images") as show,
    ):

        def on_progress(done: int, total: int) -> None:
            if interrupts.received is not None:
                raise Stopped
            show(done, total)

        result = measure_flatness(
            run, noise, per_class=images, on_progress=on_progress, trust_code=trust_code
        )
    picture = run / "flatness.png"
    plot_flatness(result, f"{config.method.name} on {config.data.source}", picture)
    _show_result(result, picture)


def parse_sigmas(text: str) -> tuple[float, ...]:
    """The sigmas of ``FIRST:LAST:STEP`` or of a list, with 0 added.

    Raises:
        ValueError: it is neither, or it has too many or negative sigmas.
    """
    try:
        if ":" in text:
            first, last, step = map(float, text.split(":"))
            steps = min(round((last - first) / step), _MOST_SIGMAS)
            # Rounded, because 3 steps of 0.1 are a little more than 0.3.
            found = [round(first + k * step, 12) for k in range(steps + 1)]
        else:
            found = [float(part) for part in text.split(",")]
        if not 0 < len(found) <= _MOST_SIGMAS or min(found) < 0:
            raise ValueError
    except (ValueError, ArithmeticError):
        raise ValueError(
            "Write sigmas as 0:0.02:0.001 or as a list such as 0,0.005,0.01, at most "
            f"{_MOST_SIGMAS:,} of them, not {text!r}."
        ) from None
    return tuple(sorted({0.0, *found}))


def _show_result(result: Mapping[str, Any], picture: Path) -> None:
    table = output.table(
        "sigma", numbers=("loss", "± over draws", "rise over the loss without noise")
    )
    without = result["losses"][0][0]
    for sigma, row in zip(result["sigmas"], result["losses"], strict=True):
        numbers = ["-", "-", "-"]
        if None not in (*row, without):  # None: a loss that isn't finite
            spread = f"{stdev(row):.4f}" if len(row) > 1 else "-"
            numbers = [f"{fmean(row):.4f}", spread, f"{fmean(row) - without:+.4f}"]
        table.add_row(f"{sigma:g}", *numbers)
    console = output.console()
    console.print(table)
    console.print(
        "Loss: cross-entropy over all classes, the mean of "
        f"{output.number(result['images'])} training images and {result['draws']} draws of noise "
        "on all weights."
    )
    file, drawn = picture.with_name("flatness.json"), output.safe(picture)
    console.print(f"Results are in {output.safe(file)}, and drawn in {drawn}.", soft_wrap=True)
