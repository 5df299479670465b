"""Flatness of a minimum: how noise on the weights changes the training loss."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from densekd.data.batches import in_order
from densekd.data.dataset import OnProgress, Split, join_splits
from densekd.data.stratify import first_of_each
from densekd.files import read_sealed_json, write_sealed_json
from densekd.json_checks import is_measure, list_of
from densekd.nn.network import Network
from densekd.precision import working_dtype
from densekd.runs.loaded import LoadedRun, load_run
from densekd.runs.stored import FLATNESS_FILE, check_entries, load_flatness, read_or_warn
from densekd.seeds import Seeds
from densekd.training.learner import Learner
from densekd.training.phases import frozen_copy

OnBatch = Callable[[int], None]

_UNFINISHED = "flatness-unfinished.json"
_READ_AT_ONCE = 256
# DER's grid for images of a similar size: 0 to 0.02.
_SIGMAS = tuple(round(0.001 * k, 3) for k in range(21))


@dataclass(frozen=True)
class Noise:
    """The noise to add to the weights.

    Each draw is scaled by every sigma, so that curves are smooth. It is the same for all runs with
    the same network and seed, so that runs can be paired.
    """

    sigmas: tuple[float, ...] = _SIGMAS  # standard deviations; the first is 0, for comparison
    draws: int = 5
    seed: int = 1993

    def __post_init__(self) -> None:
        growing = list(self.sigmas) == sorted(set(self.sigmas))
        if not growing or not all(map(math.isfinite, self.sigmas)) or self.sigmas[:1] != (0.0,):
            raise ValueError(f"Sigmas must begin with 0 and increase, not be {list(self.sigmas)}.")
        if self.draws < 1:
            raise ValueError(f"Noise must be drawn at least once, not {self.draws} times.")

    @property
    def count(self) -> int:
        """The number of losses: one without noise, then one for each draw and further sigma."""
        return 1 + self.draws * (len(self.sigmas) - 1)


def flatness(
    learner: Learner, train: Split, noise: Noise, on_progress: OnProgress | None = None
) -> list[list[float]]:
    """Measure the mean loss per image, for each sigma and each draw of noise on the weights.

    Each learnable parameter gets noise from N(0, sigma^2); batch-norm statistics stay. The loss is
    the cross-entropy over all logits on images that are not augmented. The learner stays as it is.

    Args:
        learner: the trained learner.
        train: the images, with ranks as labels.
        noise: the noise.
        on_progress: called after each batch with the images done and in total.
    """
    return _by_sigma(list(_losses(learner, train, noise, 0, on_progress)), noise)


def measure_flatness(
    folder: Path,
    noise: Noise | None = None,
    *,
    per_class: int | None = None,
    on_progress: OnProgress | None = None,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Measure the flatness of a finished run and write it to ``flatness.json`` in its folder.

    If there is a file with the same settings, it is only read. Resumes an interrupted measurement.

    Args:
        folder: the folder of the run.
        noise: the noise.
        per_class: the most training images of each class to use; by default all.
        on_progress: called after each batch with the images done and in total.
        trust_code: run the custom code files that the run was made with, if there are any.

    Returns:
        The content of ``flatness.json``: ``sigmas``, ``draws``, ``seed``, ``per_class``,
        ``images``, and the ``losses`` as `flatness` gives them.
    """
    noise = noise or Noise()
    run = load_run(folder, trust_code=trust_code)
    known = measured_flatness(folder, noise, per_class)
    if known is not None:
        return known
    asked = _asked(noise, per_class)
    train = _training_images(folder, run, per_class)
    begun = _made_with(asked, _read_losses, folder / _UNFINISHED)
    losses: list[float] = [] if begun is None else begun["losses"][: noise.count]
    for loss in _losses(run.learner(), train, noise, len(losses), on_progress):
        losses.append(loss)
        write_sealed_json(folder / _UNFINISHED, {**asked, "losses": losses})
    result = {**asked, "images": len(train), "losses": _by_sigma(losses, noise)}
    write_sealed_json(folder / FLATNESS_FILE, result)
    (folder / _UNFINISHED).unlink(missing_ok=True)
    return load_flatness(folder)


def measured_flatness(
    folder: Path, noise: Noise | None = None, per_class: int | None = None
) -> dict[str, Any] | None:
    """The content of a folder's ``flatness.json``; None unless measured with these settings."""
    return _made_with(_asked(noise or Noise(), per_class), load_flatness, folder)


def plot_flatness(result: dict[str, Any], title: str, file: Path) -> None:
    """Plot the loss by sigma, and its increase over the loss without noise."""
    # Imported here because it takes a second.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    sigmas, losses = result["sigmas"], np.array(result["losses"], dtype=float)
    titles = "Loss per training image", "Increase of the loss by the noise"
    for panel, name, values in zip(panels, titles, (losses, losses - losses[0]), strict=True):
        panel.fill_between(sigmas, values.min(1), values.max(1), alpha=0.2, linewidth=0)
        panel.plot(sigmas, values.mean(1), marker=".")
        panel.set_title(name)
        panel.set_xlabel(r"$\sigma$ of the noise on each weight")
        panel.locator_params(axis="x", nbins=5)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("cross-entropy")
    # Not as a formula: a path may have dollar signs.
    figure.suptitle(f"{title}: mean and range of {result['draws']} draws", parse_math=False)
    figure.savefig(file, dpi=150)


def _losses(
    learner: Learner, train: Split, noise: Noise, known: int, on_progress: OnProgress | None
) -> Iterator[float]:
    """The loss without noise, then for each draw at each sigma; skips the first ``known``."""
    seen = 0
    total = noise.count * len(train)
    noisy = frozen_copy(learner.network)

    def on_batch(images: int) -> None:
        nonlocal seen
        seen += images
        if on_progress is not None:
            on_progress(seen, total)

    for draw in range(noise.draws):
        directions = _directions(learner.network, noise.seed, draw)
        for sigma in noise.sigmas[0 if draw == 0 else 1 :]:
            if seen < known * len(train):
                on_batch(len(train))
                continue
            moved = zip(noisy.parameters(), learner.network.parameters(), directions, strict=True)
            with torch.no_grad():
                for copy, parameter, direction in moved:
                    copy.copy_(parameter + sigma * direction)
            yield _mean_loss(noisy, learner, train, on_batch)


def _directions(network: Network, seed: int, draw: int) -> list[Tensor]:
    """Standard normal noise for each learnable parameter."""
    generator = Seeds(seed).at("flatness", draw).generator("noise")
    return [torch.randn(p.shape, generator=generator).to(p) for p in network.parameters()]


def _mean_loss(network: Network, learner: Learner, data: Split, on_batch: OnBatch) -> float:
    settings, total = learner.settings, 0.0
    for batch in in_order(data, _READ_AT_ONCE, settings.augment, workers=settings.workers):
        with torch.inference_mode(), settings.engine.autocast():
            logits = network(settings.engine.lay_out(batch.images)).logits
        wide = logits.to(working_dtype(logits.device))
        total += float(cross_entropy(wide, batch.labels, reduction="sum"))
        on_batch(len(batch.labels))
    return total / len(data)


def _by_sigma(losses: list[float], noise: Noise) -> list[list[float]]:
    """Arrange the losses from `_losses` as a row of draws for each sigma."""
    draws = np.reshape(losses[1:], (noise.draws, -1))
    return [[losses[0]] * noise.draws, *draws.T.tolist()]


def _training_images(folder: Path, run: LoadedRun, per_class: int | None) -> Split:
    done, tasks = len(run.steps), len(run.scenario)
    if done < tasks:
        raise ValueError(
            f"{folder} has learned {done} of {tasks} tasks; repeat its `densekd run` first."
        )
    train = join_splits([task.train for task in run.scenario])
    return train if per_class is None else first_of_each(train, per_class)


def _asked(noise: Noise, per_class: int | None) -> dict[str, Any]:
    return {**asdict(noise), "sigmas": list(noise.sigmas), "per_class": per_class}


def _made_with(
    asked: dict[str, Any], read: Callable[[Path], dict[str, Any]], path: Path
) -> dict[str, Any] | None:
    """What ``read`` gives if made with the same settings; None otherwise, or if it is damaged."""
    held = read_or_warn(read, path, "It is measured again.")
    return held if held and all(held.get(k) == v for k, v in asked.items()) else None


def _read_losses(file: Path) -> dict[str, Any]:
    content = read_sealed_json(file, unsealed=True)
    check_entries(file, content, {"losses": list_of(is_measure)})
    return content
