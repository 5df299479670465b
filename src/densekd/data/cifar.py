"""CIFAR-10 and CIFAR-100 from the official files, whose md5 is checked before unpickling."""

import hashlib
import io
import pickle
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from densekd.checks import check_choice
from densekd.data.dataset import Channels, Dataset, OnProgress, PixelImages, Split

CifarName = Literal["cifar10", "cifar100"]


@dataclass(frozen=True)
class OfficialFiles:
    """The official files of a data set."""

    name: CifarName
    folder: str
    archive: str
    url: str
    archive_md5: str
    md5: Mapping[str, str]  # of the training files, the test file and the class names, in order
    prefix: str  # of the files' keys for labels and class names
    mean: Channels
    std: Channels


OFFICIAL: dict[CifarName, OfficialFiles] = {
    "cifar10": OfficialFiles(
        name="cifar10",
        folder="cifar-10-batches-py",
        archive="cifar-10-python.tar.gz",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        archive_md5="c58f30108f718f92721af3b95e74349a",
        md5={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
        prefix="",
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
    "cifar100": OfficialFiles(
        name="cifar100",
        folder="cifar-100-python",
        archive="cifar-100-python.tar.gz",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
        md5={
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "7973b15100ade9c7d40fb424638fde48",
        },
        prefix="fine_",
        mean=(0.5071, 0.4866, 0.4409),
        # The mean of the images' deviations, as in the protocol's original code. Over all pixels
        # together, it would be .2673 .2564 .2762.
        std=(0.2009, 0.1984, 0.2023),
    ),
}


@dataclass(frozen=True)
class FileStatus:
    """Whether a file is intact; ``found`` is its md5, or empty if the file is missing."""

    path: Path
    status: Literal["intact", "damaged", "missing"]
    expected: str
    found: str


def load_cifar(
    name: CifarName, data_dir: Path, *, download: bool = True, on_progress: OnProgress | None = None
) -> Dataset:
    """Load CIFAR-10, or CIFAR-100 with its 100 fine classes, into memory.

    Reads the extracted folder in ``data_dir`` if it is complete, else the official archive there,
    without extracting it. If neither is there, ``download`` fetches the archive; ``on_progress``
    is called with the bytes received and their total.
    """
    official = _official(name)
    place = find_cifar(name, data_dir)
    if place is None:
        if not download:
            raise ValueError(f"{name} is not in {data_dir}; {_way_out(official, data_dir)}.")
        place = download_cifar(name, data_dir, on_progress=on_progress)
    contents = {}
    for path, content in _read(official, place):
        _check(official, path, hashlib.md5(content).hexdigest(), official.md5[path.name])
        contents[path.name] = _unpickle(path, content)
    *batches, meta = (contents[file] for file in official.md5)
    classes, labels = tuple(meta[f"{official.prefix}label_names"]), f"{official.prefix}labels"
    train, test = (_split(part, labels) for part in (batches[:-1], batches[-1:]))
    return Dataset(name, classes, train, test, official.mean, official.std)


def find_cifar(name: CifarName, data_dir: Path) -> Path | None:
    """Find the folder or archive that `load_cifar` reads, perhaps damaged; None without one."""
    official = _official(name)
    folder, archive = data_dir / official.folder, data_dir / official.archive
    if all((folder / file).is_file() for file in official.md5):
        return folder
    return archive if archive.is_file() else None


def check_cifar(name: CifarName, data_dir: Path) -> list[FileStatus]:
    """Return the status of what would be read: the archive, or each file of the folder."""
    official = _official(name)
    folder, archive = data_dir / official.folder, data_dir / official.archive
    if find_cifar(name, data_dir) == archive:
        return [_status(archive, official.archive_md5)]
    return [_status(folder / file, expected) for file, expected in official.md5.items()]


def download_cifar(
    name: CifarName, data_dir: Path, *, on_progress: OnProgress | None = None
) -> Path:
    """Download the official archive into ``data_dir``, unless an intact one is there.

    ``on_progress`` is called with the bytes received and their total. Returns the archive's path.
    """
    # Imported here, since they are slow to import and only needed for a download.
    import pooch  # type: ignore[import-untyped]
    import requests

    official = _official(name)
    way_out = _way_out(official, data_dir)
    pooch.get_logger().setLevel("WARNING")  # it prints messages otherwise
    try:
        pooch.retrieve(
            official.url,
            known_hash=f"md5:{official.archive_md5}",
            fname=official.archive,
            path=data_dir,
            downloader=lambda url, file, _: _fetch(url, Path(file), on_progress),
        )
    except requests.RequestException as error:
        status = "no answer" if error.response is None else f"status {error.response.status_code}"
        raise ValueError(f"{name}: {status} from the server; {way_out}.") from error
    except OSError as error:
        raise ValueError(
            f"{name} can't be stored in {data_dir} ({error.strerror or error}); choose "
            "another folder with --data-dir or DENSEKD_DATA."
        ) from error
    except ValueError as error:  # the md5 differs
        raise ValueError(f"{name}: the download is not the official file; {way_out}.") from error
    return data_dir / official.archive


def _fetch(url: str, file: Path, on_progress: OnProgress | None) -> None:
    import requests

    with requests.get(url, stream=True, timeout=30) as answer, file.open("wb") as target:
        answer.raise_for_status()
        total = int(answer.headers.get("content-length", 0))
        for chunk in answer.iter_content(1 << 18):
            target.write(chunk)
            if on_progress is not None:
                on_progress(min(target.tell(), total), total)


# The names in the official pickles. NumPy has moved the first, and warns if its old place is used.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Unpickler(pickle.Unpickler):
    """Builds arrays and plain values, and refuses all other names in a pickle."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ALLOWED[module, name]


def _unpickle(path: Path, content: bytes) -> dict[str, Any]:
    try:
        loaded: dict[str, Any] = _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} is refused since it holds more than data: {error}.") from error
    return loaded


def _split(batches: list[dict[str, Any]], labels: str) -> Split:
    rows = np.concatenate([batch["data"] for batch in batches])  # red, green and blue planes
    targets = [label for batch in batches for label in batch[labels]]
    return Split(PixelImages(torch.from_numpy(rows.reshape(-1, 3, 32, 32))), torch.tensor(targets))


def _read(official: OfficialFiles, place: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the path and content of each official file, in the archive as ``archive/file``."""
    if place.name == official.folder:
        for file in official.md5:
            yield place / file, (place / file).read_bytes()
        return
    _check(official, place, _md5(place), official.archive_md5)
    with tarfile.open(place, "r|gz") as members:
        for member in members:
            folder, _, file = member.name.rpartition("/")
            wanted = folder == official.folder and file in official.md5
            if wanted and (content := members.extractfile(member)) is not None:
                yield place / file, content.read()


def _check(official: OfficialFiles, path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise ValueError(
            f"{path} is damaged: its md5 is {found} and should be {expected}; delete it and fetch "
            f"it again with `densekd data get {official.name}`."
        )


def _status(path: Path, expected: str) -> FileStatus:
    if not path.is_file():
        return FileStatus(path, "missing", expected, "")
    found = _md5(path)
    return FileStatus(path, "intact" if found == expected else "damaged", expected, found)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _way_out(official: OfficialFiles, data_dir: Path) -> str:
    return f"download {official.url} by other means and put it into {data_dir}"


def _official(name: CifarName) -> OfficialFiles:
    check_choice("name", name, tuple(OFFICIAL))
    return OFFICIAL[name]
