"""The test predictions after each step of a run, in ``predictions/NNN.npz``; 001 is the base task.

The arrays of a file are those of `Predictions`. NumPy reads them without pickle.
"""

import io
import math
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from densekd.files import DamagedFile, read_sealed_zip, write_sealed_zip

_MOST_BYTES = 4 << 30


class Predictions(NamedTuple):
    """What a learner predicted for the test images of all classes that it had learned.

    The images are in the order of the tasks, and within a task in the order of the data set.
    ``scores`` are the logits, or the cosines with the class means if the method predicts by those.
    The predicted class has the highest score.
    """

    labels: NDArray[np.int64]  # [n], positions in ``classes``
    predicted: NDArray[np.int64]  # [n]
    scores: NDArray[np.float32]  # [n, classes]
    classes: NDArray[np.str_]  # the names, in the order they were learned


def save_predictions(folder: Path, step: int, predictions: Predictions) -> None:
    """Write the predictions of a step of the run in ``folder``, atomically."""
    content = io.BytesIO()
    np.savez(content, **predictions._asdict())
    write_sealed_zip(predictions_file(folder, step), content.getvalue())


def read_predictions(file: Path) -> Predictions:
    """Read a file that `save_predictions` wrote; raises `DamagedFile` if it was changed."""
    content = read_sealed_zip(file, _MOST_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            arrays = [_read_array(archive, name) for name in Predictions._fields]
        read = Predictions(*arrays)
        images, classes = len(read.labels), len(read.classes)
        shapes = [array.shape for array in read]
        if shapes != [(images,), (images,), (images, classes), (classes,)]:
            raise ValueError(f"arrays of the shapes {shapes}")
    except Exception as error:  # zipfile and NumPy raise errors of many kinds
        raise DamagedFile(f"{file} can't be read as predictions ({error}).") from None
    return read


def _read_array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """Read an array of an ``npz``; NumPy alone would allocate whatever its header asks for."""
    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    stream = io.BytesIO(archive.read(entry))
    npy = np.lib.format
    read_header = {
        (1, 0): npy.read_array_header_1_0,
        (2, 0): npy.read_array_header_2_0,
    }.get(npy.read_magic(stream))
    if read_header is None:
        raise ValueError(f"{name} is in another format")
    shape, _, dtype = read_header(stream)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != entry.file_size - stream.tell():
        raise ValueError(f"{name} isn't as long as it says")
    stream.seek(0)
    array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return array


def predictions_file(folder: Path, step: int) -> Path:
    """The path of the predictions of a step."""
    return folder / "predictions" / f"{step:03d}.npz"
