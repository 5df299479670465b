"""A pickle can run anything when it is loaded; one that isn't the official file must not."""

import dataclasses
import hashlib
import os
import pickle
import tarfile
from pathlib import Path

import pytest

from densekd.data.cifar import OFFICIAL, load_cifar


class Planted:
    """Makes a folder when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.trace),)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace"


@pytest.fixture
def content(trace: Path) -> bytes:
    """The planted pickle, which works."""
    content = pickle.dumps({"data": Planted(trace)}, protocol=2)
    pickle.loads(content)
    assert trace.is_dir()
    trace.rmdir()
    return content


def plant(data_dir: Path, content: bytes, packed: bool) -> None:
    official = OFFICIAL["cifar100"]
    folder = data_dir / official.folder
    folder.mkdir(parents=True)
    for file in official.md5:
        (folder / file).write_bytes(content)
    if packed:
        with tarfile.open(data_dir / official.archive, "w:gz") as archive:
            archive.add(folder, folder.name)
        (folder / "train").unlink()


def trust(monkeypatch: pytest.MonkeyPatch, archive: Path, content: bytes, files: bool) -> None:
    """Take the planted archive, and its files if told, for the official ones."""
    official = OFFICIAL["cifar100"]
    if archive.is_file():
        md5 = hashlib.md5(archive.read_bytes()).hexdigest()
        official = dataclasses.replace(official, archive_md5=md5)
    if files:
        md5 = hashlib.md5(content).hexdigest()
        official = dataclasses.replace(official, md5=dict.fromkeys(official.md5, md5))
    monkeypatch.setitem(OFFICIAL, "cifar100", official)


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_with_another_md5_is_never_unpickled(
    packed: bool,
    content: bytes,
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(tmp_path, content, packed)

    def unpickled(*args: object) -> None:
        raise AssertionError("it was unpickled")

    monkeypatch.setattr("densekd.data.cifar._unpickle", unpickled)
    with pytest.raises(ValueError, match="is damaged"):
        load_cifar("cifar100", tmp_path)
    trust(monkeypatch, tmp_path / OFFICIAL["cifar100"].archive, content, files=False)
    with pytest.raises(ValueError, match=r"(train|test|meta) is damaged"):
        load_cifar("cifar100", tmp_path)
    assert not trace.exists()


@pytest.mark.parametrize("packed", [False, True])
def test_even_with_the_right_md5_only_data_is_unpickled(
    packed: bool,
    content: bytes,
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(tmp_path, content, packed)
    trust(monkeypatch, tmp_path / OFFICIAL["cifar100"].archive, content, files=True)
    with pytest.raises(ValueError, match=r"(train|test|meta) is refused.*\.mkdir"):
        load_cifar("cifar100", tmp_path)
    assert not trace.exists()
