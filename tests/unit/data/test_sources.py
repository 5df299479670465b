import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest
from PIL import Image

from densekd.data.dataset import FileImages, PixelImages
from densekd.data.folder import find_images
from densekd.data.imagenet import imagenet100_classes
from densekd.data.pack import PackOptions, pack
from densekd.data.sources import (
    SOURCES,
    SourceOptions,
    count_classes,
    data_dir,
    find_source,
    load,
    parse,
    source_digest,
)

from support.class_folders import fill_folder


def save_images(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for i in range(count):
        Image.new("RGB", (12, 10), (i, 0, 0)).save(folder / f"{i}.png")


def test_digits() -> None:
    dataset = load("digits")
    assert dataset.name == "digits"
    assert len(dataset.train) + len(dataset.test) == 1797


def test_cifar100_is_found_in_the_data_directory(
    real_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DENSEKD_DATA", "nowhere")
    dataset = load("cifar100", SourceOptions(real_dir, download=False))
    assert (len(dataset.train), len(dataset.test)) == (50000, 10000)


def test_cifar_is_not_downloaded_if_not_wanted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"cifar10 is not in {tmp_path}"):
        load("cifar10", SourceOptions(tmp_path, download=False))


def test_folder_takes_size_and_seed(tmp_path: Path) -> None:
    for label in ("ant", "bee"):
        save_images(tmp_path / label, 10)
    steps: list[tuple[int, int | None]] = []
    drawn = []
    for seed in (0, 0, 1):
        dataset = load(
            f"folder:{tmp_path}",
            SourceOptions(image_size=16, seed=seed),
            on_progress=lambda *step: steps.append(step),
        )
        assert isinstance(dataset.test.images, PixelImages)
        assert dataset.test.images.pixels.shape == (4, 3, 16, 16)
        drawn.append(dataset.test.images.pixels[:, 0, 0, 0].tolist())
    assert dataset.classes == ("ant", "bee")
    assert dataset.name == f"folder:{tmp_path}"
    assert drawn[0] == drawn[1] != drawn[2]
    assert max(done for done, _ in steps) == 20


def test_a_tilde_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    save_images(tmp_path / "photos" / "ant", 2)
    dataset = load("folder:~/photos", SourceOptions(image_size=8))
    assert dataset.classes == ("ant",)
    assert dataset.name == "folder:~/photos"


@pytest.mark.parametrize("kind", ["folder", "npz", "packed", "imagenet"])
def test_the_home_of_nobody_is_a_wrong_path(kind: str) -> None:
    with pytest.raises(ValueError, match="~nobody-at-all/photos"):
        load(f"{kind}:~nobody-at-all/photos")
    assert count_classes(f"{kind}:~nobody-at-all/photos") is None


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """An ImageNet of 120 classes."""
    for part in ("train", "val"):
        for i in range(120):
            save_images(tmp_path / part / f"n{i:08}", 1)
    return tmp_path


def test_imagenet_and_its_subsets(imagenet: Path, tmp_path: Path) -> None:
    options = SourceOptions(image_size=8)
    every = load(f"imagenet:{imagenet}", options)
    assert len(every.classes) == 120
    usual = load(f"imagenet100:{imagenet}", options)
    assert list(usual.classes) == imagenet100_classes(every.classes)
    assert usual.name == f"imagenet100:{imagenet}"
    assert (len(usual.train), len(usual.test)) == (100, 100)
    chosen = tmp_path / "classes.txt"
    chosen.write_text("n00000007\nn00000003\n")
    for name in ("imagenet", "imagenet100"):
        dataset = load(f"{name}:{imagenet}", dataclasses.replace(options, classes_file=chosen))
        assert set(dataset.classes) == {"n00000003", "n00000007"}
        assert isinstance(dataset.train.images, PixelImages | FileImages)


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    images = np.zeros((2, 4, 4), np.uint8)
    np.savez(path, train_x=images, train_y=[0, 1], test_x=images, test_y=[1, 0])
    assert load(f"npz:{path}").classes == ("0", "1")


def test_hub(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    columns: dict[str, Any] = {
        "left": (datasets.Image(), [Image.new("RGB", (6, 6), (1, 0, 0))] * 5),
        "right": (datasets.Image(), [Image.new("RGB", (6, 6), (2, 0, 0))] * 5),
        "label": (datasets.ClassLabel(names=["ant"]), [0] * 5),
    }
    features = datasets.Features({name: feature for name, (feature, _) in columns.items()})
    content = {name: values for name, (_, values) in columns.items()}
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(content, features=features).save_to_disk(tmp_path / "set")
    datasets.enable_progress_bars()
    steps: list[tuple[int, int | None]] = []
    dataset = load(
        f"hub:{tmp_path / 'set'}",
        SourceOptions(image_size=4, image_column="right", label_column="label"),
        on_progress=lambda *step: steps.append(step),
    )
    assert isinstance(dataset.train.images, PixelImages)
    assert dataset.train.images.pixels.shape == (4, 3, 4, 4)
    assert dataset.train.images.pixels[:, 0].unique().tolist() == [2]
    assert steps[-1] == (5, 5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "cifar-100",
            r"no source 'cifar-100'; did you mean cifar100\? There are digits, .* hub:NAME\.$",
        ),
        ("CIFAR10", r"no source 'CIFAR10'; did you mean cifar10\?"),
        ("imagnet:/data", r"did you mean imagenet:PATH\?"),
        ("x" * 5000, r"no source 'x+'; choose one of"),
        ("xyzzy", r"no source 'xyzzy'; choose one of digits, .*, hub:NAME\.$"),
        ("set.npz", r"write npz:set\.npz for the file"),
        ("", r"no source ''; choose one of"),
        ("folder", r"write it as folder:PATH\.$"),
        ("npz:", r"write it as npz:FILE\.$"),
        ("digits:8", r"digits takes nothing after its name.*'digits:8'"),
    ],
)
def test_a_wrong_name_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(name)


def test_a_bare_folder_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"write folder:{tmp_path} for the folder"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digits", SourceOptions(image_size=32), "image_size has no meaning for digits"),
        ("npz:a.npz", SourceOptions(label_column="y"), "label_column has no meaning for npz"),
        ("folder:a", SourceOptions(classes_file=Path("b")), "classes_file has no meaning"),
    ],
)
def test_an_option_without_effect_is_refused(
    name: str, options: SourceOptions, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(name, options)


def test_names_are_parsed() -> None:
    assert parse("folder:C:\\photos") == ("folder", "C:\\photos")
    assert parse("hub:owner/name") == ("hub", "owner/name")
    assert parse("digits") == ("digits", "")
    for kind, source in SOURCES.items():
        assert parse(source.usage)[0] == kind


def test_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DENSEKD_DATA", "~/sets")
    assert data_dir(tmp_path) == tmp_path
    assert data_dir() == Path.home() / "sets"
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("DENSEKD_DATA")
        else:
            monkeypatch.setenv("DENSEKD_DATA", unset)
        assert data_dir() == platformdirs.user_cache_path("densekd")


def test_classes_are_counted_without_reading_images(imagenet: Path, tmp_path: Path) -> None:
    for source, classes in (("digits", 10), ("cifar100", 100), ("imagenet100-ccil:x", 100)):
        assert count_classes(source) == classes
    for name in ("ant", "bee", "cow"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "1.png").write_bytes(b"not even an image")
    (tmp_path / "photos" / "empty").mkdir()
    assert count_classes(f"folder:{tmp_path / 'photos'}") == 3
    assert count_classes(f"imagenet:{imagenet}") == len(list((imagenet / "train").iterdir()))
    names = tmp_path / "names.txt"
    names.write_text("one\ntwo\n")
    assert count_classes("imagenet:x", names) == 2
    for unknown in ("hub:mine", "folder:nowhere", "npz:nowhere.npz", "imagenet:nowhere"):
        assert count_classes(unknown) is None


def test_a_folder_is_not_packed_or_checked_whole_if_classes_are_chosen(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="classes_file has no meaning for folder"):
        find_source(f"folder:{tmp_path}", tmp_path / "names.txt")


@pytest.mark.parametrize("source", ["folder:pets", "packed:pets.packed", "npz:pets.npz"])
def test_a_digest_tells_whether_files_have_changed(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def make(count: int) -> None:
        for name in ("cat", "dog"):
            fill_folder(Path("pets", name), count)
        Path("pets.packed").unlink(missing_ok=True)
        pack(find_images(Path("pets")).table(), Path("pets.packed"), PackOptions(), 0)
        np.savez("pets.npz", train_x=np.full(3, count))

    make(2)
    before = source_digest(source)
    assert before is not None
    assert source_digest(source) == before
    make(3)
    assert source_digest(source) not in (before, None)


@pytest.mark.parametrize("source", ["digits", "hub:x/y", "folder:gone", "npz:gone.npz", "npz:."])
def test_what_has_no_files_has_no_digest(source: str) -> None:
    assert source_digest(source) is None
