from pathlib import Path

import numpy as np
import pytest

from densekd.data.dataset import IMAGENET_MEAN, IMAGENET_STD, PixelImages
from densekd.data.imagenet import Subset, imagenet100_classes, load_imagenet, paper_classes
from densekd.data.scenario import seeded_order

from support.class_folders import fill_folder, image_names


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    for i in range(4):
        fill_folder(tmp_path / "in" / "train" / f"n0{i}", 3, "JPEG")
        fill_folder(tmp_path / "in" / "val" / f"n0{i}", 2, "JPEG")
    return tmp_path / "in"


def test_imagenet_is_read_by_its_folders(imagenet: Path) -> None:
    # ImageNet's files aren't opened when it is loaded, so a fault shows when decoding.
    (imagenet / "train" / "n01" / "000.JPEG").write_text("text")
    data = load_imagenet(imagenet, image_size=8, memory_bytes=0)
    assert data.name == f"imagenet:{imagenet}"
    assert data.classes == ("n00", "n01", "n02", "n03")
    assert (len(data.train), len(data.test)) == (12, 8)
    assert image_names(data.train)[3:5] == ["n01/000.JPEG", "n01/001.JPEG"]
    assert (data.mean, data.std) == (IMAGENET_MEAN, IMAGENET_STD)


def test_a_small_imagenet_is_decoded(imagenet: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad = imagenet / "train" / "n01" / "000.JPEG"
    bad.write_text("text")
    data = load_imagenet(imagenet, image_size=8)
    assert isinstance(data.train.images, PixelImages)
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3]
    assert f"Left out '{bad}': not an image" in caplog.text


def test_files_left_out_for_one_reason_are_one_warning(
    imagenet: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        (imagenet / "train" / "n01" / f"{number}.xml").write_text("box")
    load_imagenet(imagenet, image_size=8)
    (told,) = [message for message in caplog.messages if ".xml" in message]
    first = imagenet / "train" / "n01" / "0.xml"
    assert told.startswith(f"Left out '{first}' and 2 more: '.xml' is not the ending of")


def test_imagenet_is_restricted_to_classes(imagenet: Path) -> None:
    classes = imagenet.parent / "classes.txt"
    classes.write_text("n03\nn01\n")
    data = load_imagenet(imagenet, image_size=8, classes_file=classes)
    assert data.classes == ("n01", "n03")
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test.labels.tolist() == [0, 0, 1, 1]
    (imagenet / "train" / "n07").mkdir()
    classes.write_text("n08\nn01\nn07\n")
    with pytest.raises(ValueError, match=r"no images of the class 'n08'.*lacks 2 of the 3 classes"):
        load_imagenet(imagenet, classes_file=classes)


def test_imagenet_without_class_folders_in_val_says_so(imagenet: Path) -> None:
    for file in (imagenet / "val").glob("*/*"):
        file.rename(imagenet / "val" / f"{file.parent.name}_{file.name}")
    for folder in (imagenet / "val").glob("n0?"):
        folder.rmdir()
    with pytest.raises(ValueError, match=r"val has images directly in it"):
        load_imagenet(imagenet)


@pytest.mark.parametrize("part", ["train", "val"])
def test_imagenet_needs_train_and_val(imagenet: Path, part: str) -> None:
    (imagenet / part).rename(imagenet / "other")
    with pytest.raises(ValueError, match=rf"no folder '{part}'.*val/<WordNet id>/"):
        load_imagenet(imagenet)


def test_the_100_classes_are_those_of_the_legacy_draw() -> None:
    ids = [f"n{i:08}" for i in range(1000)]
    np.random.seed(1993)  # noqa: NPY002 - as the protocol's origin has it
    origin = np.random.choice(np.array(ids), 100, replace=False)  # noqa: NPY002
    drawn = imagenet100_classes(ids[::-1])
    assert drawn == sorted(origin.tolist())
    assert len(set(drawn)) == 100
    assert all(type(name) is str for name in drawn)


def test_too_few_ids_for_100_classes_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match=r"there are 99; take them all"):
        imagenet100_classes([str(i) for i in range(99)])
    hundred = [f"{i:03}" for i in range(100)]
    assert imagenet100_classes(hundred) == hundred
    assert caplog.messages == []
    assert len(imagenet100_classes([str(i) for i in range(200)])) == 100
    assert "drawn from 200 classes instead of 1000" in caplog.text


def test_the_three_class_sets_of_papers_begin_and_overlap_as_they_should() -> None:
    names: tuple[Subset, ...] = ("ccil", "ucir", "podnet")
    ccil, ucir, podnet = (paper_classes(name) for name in names)
    assert all(len(set(ids)) == 100 for ids in (ccil, ucir, podnet))
    assert [ccil[i] for i in seeded_order(100, 1993)[:5]] == [
        "n02129604",
        "n04517823",
        "n04152593",
        "n03977966",
        "n03976467",
    ]
    # The first three that UCIR draws, and the first of all ids.
    assert {"n01729322", "n01514668", "n04550184"} < set(ucir)
    assert podnet[:2] == ["n01440764", "n01443537"]
    assert ucir == sorted(ucir)
    assert podnet == sorted(podnet)
    sets = set(ccil), set(ucir), set(podnet)
    assert [len(sets[a] & sets[b]) for a, b in ((0, 1), (0, 2), (1, 2))] == [12, 15, 9]


def test_a_class_set_is_read_in_its_own_order(tmp_path: Path) -> None:
    ids = paper_classes("ccil")
    for part in ("train", "val"):
        for wnid in (*ids, "n00000000"):
            fill_folder(tmp_path / part / wnid, 1, "JPEG")
    data = load_imagenet(tmp_path, subset="ccil", image_size=8)
    assert data.classes == tuple(ids)
    assert len(data.train) == len(data.test) == 100
    with pytest.raises(ValueError, match=r"no images of the class .*of the 100 classes"):
        load_imagenet(tmp_path, subset="podnet", image_size=8)
