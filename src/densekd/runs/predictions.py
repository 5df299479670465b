"""The test predictions after each step of a run, in ``predictions/NNN.npz``; 001 is the base task.

The arrays of a file are those of `Predictions`. NumPy reads them without pickle.
"""

import io
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from densekd.files import write_atomically


class Predictions(NamedTuple):
    """What a learner predicted for the test images of all classes that it had learned.

    The images are in the order of the tasks, within a task in that of the data set. ``scores`` are
    the logits, or cosines with the class means where the method predicts by those; the predicted
    class has the highest.
    """

    labels: NDArray[np.int64]  # [n], positions in ``classes``
    predicted: NDArray[np.int64]  # [n]
    scores: NDArray[np.float32]  # [n, classes]
    classes: NDArray[np.str_]  # the names, in the order they were learned


def save_predictions(folder: Path, step: int, predictions: Predictions) -> None:
    """Write the predictions of a step of the run in ``folder``, atomically."""
    content = io.BytesIO()
    np.savez(content, **predictions._asdict())
    write_atomically(predictions_file(folder, step), content.getvalue())


def load_predictions(folder: Path, step: int) -> Predictions:
    """Read the predictions of a step of the run in ``folder``.

    Raises:
        ValueError: they were not kept, or the file is damaged.
    """
    file = predictions_file(folder, step)
    if not file.is_file():
        raise ValueError(
            f"{folder} has no predictions of step {step}; a run with --keep-steps writes them."
        )
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return Predictions(*(arrays[name] for name in Predictions._fields))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file} can't be read as predictions ({error}).") from None


def predictions_file(folder: Path, step: int) -> Path:
    """Where the predictions of a step are."""
    return folder / "predictions" / f"{step:03d}.npz"
