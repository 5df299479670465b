import dataclasses
import hashlib
import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from densekd.data import cifar
from densekd.data.cifar import OFFICIAL, CifarName, check_cifar, download_cifar, load_cifar
from densekd.data.dataset import Dataset, PixelImages, channel_statistics

CLOSED = "http://127.0.0.1:9/cifar.tar.gz"


def pixels(dataset: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    assert isinstance(dataset.train.images, PixelImages)
    assert isinstance(dataset.test.images, PixelImages)
    return dataset.train.images.pixels, dataset.test.images.pixels


def old_pickle(value: object) -> bytes:
    """Pickle as the official files do: under NumPy's old module name."""
    new, old = b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"
    content = pickle.dumps(value, protocol=3)
    assert b"numpy" not in content or new in content
    return content.replace(new, old)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Write a CIFAR-10 of two images per file in the official layout; return the files' values."""
    rng = np.random.default_rng(0)
    official = OFFICIAL["cifar10"]
    *batches, meta = official.md5
    values: dict[str, Any] = {
        file: {"labels": [i, 9 - i], "data": rng.integers(0, 256, (2, 3072), dtype=np.uint8)}
        for i, file in enumerate(batches)
    }
    values[meta] = {"label_names": [f"name {i}" for i in range(10)]}
    contents = {file: old_pickle(value) for file, value in values.items()}
    (tmp_path / official.folder).mkdir()
    for file, content in contents.items():
        (tmp_path / official.folder / file).write_bytes(content)
    patched = dataclasses.replace(
        official, md5={file: hashlib.md5(content).hexdigest() for file, content in contents.items()}
    )
    monkeypatch.setitem(OFFICIAL, "cifar10", patched)
    return values


def pack(folder: Path, archive: Path, name: CifarName, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack the folder, uncompressed for speed, and make the archive's md5 the official one."""
    with tarfile.open(archive, "w:gz", compresslevel=0) as file:
        file.add(folder, folder.name)
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    monkeypatch.setitem(OFFICIAL, name, dataclasses.replace(OFFICIAL[name], archive_md5=md5))


def test_real_images_are_counted_and_named(cifar100: Dataset) -> None:
    assert cifar100.train.labels.bincount().tolist() == [500] * 100
    assert cifar100.test.labels.bincount().tolist() == [100] * 100
    assert len(cifar100.classes) == 100
    assert (cifar100.classes[0], cifar100.classes[99]) == ("apple", "worm")
    assert cifar100.name == "cifar100"


def test_real_channels_are_in_order(cifar100: Dataset) -> None:
    train, test = pixels(cifar100)
    assert train.shape == (50000, 3, 32, 32)
    assert test.shape == (10000, 3, 32, 32)
    mean, _ = channel_statistics(train)
    assert [round(channel, 5) for channel in mean] == [0.50708, 0.48655, 0.44092]
    assert mean == pytest.approx(cifar100.mean, abs=6e-5)
    own = torch.cat([(part.float() / 255).flatten(2).std(2) for part in train.split(5000)])
    assert [round(channel, 4) for channel in own.mean(0).tolist()] == list(cifar100.std)


def test_real_images_lie_upright(cifar100: Dataset) -> None:
    """Neighbouring pixels are similar, as in any photograph."""
    images = pixels(cifar100)[1].float()
    across = (images[..., 1:] - images[..., :-1]).abs().mean()
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
    assert max(across, down) < 0.3 * (images - images.flip(0)).abs().mean()


@pytest.mark.slow
def test_the_real_archive_gives_the_same(
    real_dir: Path, cifar100: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    official = OFFICIAL["cifar100"]
    archive = tmp_path / official.archive
    pack(real_dir / official.folder, archive, "cifar100", monkeypatch)
    given = load_cifar("cifar100", tmp_path, download=False)
    assert [file.name for file in tmp_path.iterdir()] == [official.archive]
    archive.unlink()  # too large to leave behind
    assert given.classes == cifar100.classes
    for mine, theirs in ((given.train, cifar100.train), (given.test, cifar100.test)):
        assert torch.equal(mine.labels, theirs.labels)
    for mine_, theirs_ in zip(pixels(given), pixels(cifar100), strict=True):
        assert torch.equal(mine_, theirs_)


def test_the_real_files_are_intact(real_dir: Path) -> None:
    states = check_cifar("cifar100", real_dir)
    assert {state.status for state in states} == {"intact"}


@pytest.mark.parametrize("packed", [False, True])
def test_five_batches_are_joined_in_order(
    small: dict[str, Any], packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    official = OFFICIAL["cifar10"]
    folder = tmp_path / official.folder
    if packed:
        pack(folder, tmp_path / official.archive, "cifar10", monkeypatch)
        folder.rename(tmp_path / "elsewhere")
    dataset = load_cifar("cifar10", tmp_path, download=False)
    assert dataset.classes == tuple(f"name {i}" for i in range(10))
    assert dataset.train.labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert dataset.test.labels.tolist() == [5, 4]
    train, test = pixels(dataset)
    fourth = small["data_batch_2"]["data"][1]
    assert train[3, 0, 0].tolist() == fourth[:32].tolist()
    assert train[3, 2, 31].tolist() == fourth[-32:].tolist()
    assert test.flatten(1).tolist() == small["test_batch"]["data"].tolist()
    assert check_cifar("cifar10", tmp_path)[0].status == "intact"


def test_a_truncated_file_is_named_with_both_md5s(small: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(path.read_bytes()[:-1])
    found = hashlib.md5(path.read_bytes()).hexdigest()
    expected = OFFICIAL["cifar10"].md5["data_batch_3"]
    with pytest.raises(ValueError, match="damaged") as caught:
        load_cifar("cifar10", tmp_path)
    for part in (str(path), found, expected, "densekd data get cifar10"):
        assert part in str(caught.value)
    states = {state.path.name: state.status for state in check_cifar("cifar10", tmp_path)}
    assert states.pop("data_batch_3") == "damaged"
    assert set(states.values()) == {"intact"}


def test_a_truncated_archive_is_named(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    official = OFFICIAL["cifar10"]
    archive = tmp_path / official.archive
    pack(tmp_path / official.folder, archive, "cifar10", monkeypatch)
    archive.write_bytes(archive.read_bytes()[:1000])
    (tmp_path / official.folder / "test_batch").unlink()
    with pytest.raises(ValueError, match=rf"{archive} is damaged.*data get cifar10"):
        load_cifar("cifar10", tmp_path)
    assert [state.status for state in check_cifar("cifar10", tmp_path)] == ["damaged"]


def test_missing_files_are_listed(tmp_path: Path) -> None:
    states = check_cifar("cifar100", tmp_path)
    assert [(state.path.name, state.status) for state in states] == [
        ("train", "missing"),
        ("test", "missing"),
        ("meta", "missing"),
    ]


@pytest.mark.parametrize("download", [False, True])
def test_a_failed_download_says_how_to_get_the_file(
    download: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    patched = dataclasses.replace(OFFICIAL["cifar100"], url=CLOSED)
    monkeypatch.setitem(OFFICIAL, "cifar100", patched)
    with pytest.raises(ValueError, match=f"download {CLOSED} .* into {tmp_path}") as caught:
        load_cifar("cifar100", tmp_path, download=download)
    assert str(caught.value).count("\n") == 0
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"can't be stored in .*file.*--data-dir"):
        download_cifar("cifar100", tmp_path / "file")


def test_missing_data_is_downloaded_once(
    small: dict[str, Any],
    server: tuple[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    url, served = server
    official = OFFICIAL["cifar10"]
    archive = served / official.archive
    pack(tmp_path / official.folder, archive, "cifar10", monkeypatch)
    patched = dataclasses.replace(OFFICIAL["cifar10"], url=f"{url}/{official.archive}")
    monkeypatch.setitem(OFFICIAL, "cifar10", patched)
    steps: list[tuple[int, int]] = []
    target = tmp_path / "new" / "folder"
    for _ in range(2):
        dataset = load_cifar("cifar10", target, on_progress=lambda *step: steps.append(step))
    size = archive.stat().st_size
    assert steps == [(size, size)]  # one chunk
    assert dataset.train.labels.tolist()[:2] == [0, 9]
    assert [file.name for file in target.iterdir()] == [official.archive]
    assert capfd.readouterr() == ("", "")


def test_a_wrong_archive_is_not_kept(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, served = server
    (served / "cifar.tar.gz").write_bytes(b"a page that asks for a login")
    for file, message in (("cifar.tar.gz", "not the official"), ("no.tar.gz", "status 404")):
        patched = dataclasses.replace(OFFICIAL["cifar100"], url=f"{url}/{file}")
        monkeypatch.setitem(OFFICIAL, "cifar100", patched)
        with pytest.raises(ValueError, match=f"{message}.*by other means"):
            load_cifar("cifar100", tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    name: Any = "cifar20"
    with pytest.raises(ValueError, match=r"'cifar20'.*'cifar10', 'cifar100'"):
        load_cifar(name, tmp_path)


def test_only_arrays_and_plain_values_are_unpickled() -> None:
    value = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2]}
    given = cifar._Unpickler(io.BytesIO(old_pickle(value)), encoding="latin1").load()
    assert given["data"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert given["labels"] == [1, 2]
    for name in (np.load, np.float64, os.getcwd, getattr, pickle.loads):
        with pytest.raises(pickle.UnpicklingError, match="it asks for"):
            cifar._Unpickler(io.BytesIO(pickle.dumps(name)), encoding="latin1").load()
