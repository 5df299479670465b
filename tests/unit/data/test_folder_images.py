from pathlib import Path

import pytest
import torch

from densekd.data.dataset import FileImages, PixelImages
from densekd.data.folder import find_images
from densekd.data.folder_images import divided, folder_dataset, load_folder, read_images

from support.class_folders import fill_folder, image_names


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    for name, count in (("cat", 5), ("ant", 3)):
        fill_folder(tmp_path / name, count)
    return tmp_path


def test_images_are_left_in_their_files_if_asked_for(animals: Path) -> None:
    memory = load_folder(animals, image_size=8)
    files = load_folder(animals, image_size=8, memory_bytes=0)
    assert isinstance(memory.train.images, PixelImages)
    assert isinstance(files.train.images, FileImages)
    assert torch.equal(memory.train.labels, files.train.labels)
    assert torch.equal(memory.test.labels, files.test.labels)


def test_a_table_counts_and_divides_as_the_folder_does(animals: Path) -> None:
    images, table = read_images(find_images(animals), 8, 0, None, check=True)
    assert table.counts() == {"all": {"ant": 3, "cat": 5}}
    parts = divided(table, seed=0)
    assert parts.counts() == {"train": {"ant": 2, "cat": 4}, "test": {"ant": 1, "cat": 1}}
    data = folder_dataset(f"folder:{animals}", images, parts, order=["cat", "ant"])
    assert data.classes == ("cat", "ant")
    assert data.train.labels.tolist() == [1, 1, 0, 0, 0, 0]
    assert {name.partition("/")[0] for name in image_names(data.train)} == {"ant", "cat"}
