import zipfile
from pathlib import Path

import numpy as np
import pytest

from densekd.runs.predictions import (
    Predictions,
    predictions_file,
    read_predictions,
    save_predictions,
)

MADE = Predictions(
    np.array([0, 1, 1]),
    np.array([0, 1, 0]),
    np.array([[2.0, 1.0], [-1.0, 0.5], [0.25, 0.0]], np.float32),
    np.array(["Käse", "toilet paper"]),
)


def test_predictions_are_there_again(tmp_path: Path) -> None:
    save_predictions(tmp_path, 3, MADE)
    file = tmp_path / "predictions" / "003.npz"
    assert predictions_file(tmp_path, 3) == file
    both = zip(read_predictions(file), MADE, strict=True)
    for read, made in ((np.asarray(one), np.asarray(other)) for one, other in both):
        assert read.dtype == made.dtype
        assert (read == made).all()


def test_a_damaged_file(tmp_path: Path) -> None:
    save_predictions(tmp_path, 1, MADE)
    file = predictions_file(tmp_path, 1)
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"001\.npz is damaged"):
        read_predictions(file)


def test_a_planted_pickle_is_not_run(tmp_path: Path) -> None:
    file = predictions_file(tmp_path, 1)
    file.parent.mkdir()
    with file.open("wb") as stream:
        np.savez(stream, **{**MADE._asdict(), "classes": np.array([print], dtype=object)})
    with pytest.raises(ValueError, match=r"can't be read"):
        read_predictions(file)


@pytest.mark.parametrize(
    "header", ["{'a': (", "{[]: 1}", "{1: 2, 'a': 3}", "-" * 3000 + "1", "{'descr': '<i8'}"]
)
def test_a_forged_header_is_a_sentence(header: str, tmp_path: Path) -> None:
    file, text = predictions_file(tmp_path, 1), header.encode().ljust(3100)
    file.parent.mkdir()
    with zipfile.ZipFile(file, "w") as archive:
        for name in Predictions._fields:
            content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
            archive.writestr(f"{name}.npy", content)
    with pytest.raises(ValueError, match=r"001\.npz can't be read as predictions"):
        read_predictions(file)
