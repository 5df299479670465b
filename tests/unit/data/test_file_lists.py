import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from densekd.data.file_lists import FileContents, FolderFiles, all_of, ends_of, join_files


@pytest.fixture
def folder(tmp_path: Path) -> FolderFiles:
    return FolderFiles(tmp_path, ["a.png", "a name.jpg", "\udcff.png"])


def test_a_folder_gives_its_paths(folder: FolderFiles, tmp_path: Path) -> None:
    paths = [tmp_path / "a.png", tmp_path / "a name.jpg", tmp_path / "\udcff.png"]
    assert list(folder) == paths
    assert folder[-1] == paths[2]
    assert folder[::2] == [paths[0], paths[2]]
    assert folder.name(1) == "a name.jpg"
    with pytest.raises(IndexError):
        folder[3]
    assert list(FolderFiles(tmp_path, [])) == []


def test_contents_are_pieces_of_one_buffer() -> None:
    contents = FileContents(np.frombuffer(b"abcdef", np.uint8), ends_of([2, 0, 4]))
    assert list(contents) == [b"ab", b"", b"cdef"]


def test_selections_share_their_lists(folder: FolderFiles) -> None:
    contents = (b"x", b"y")
    every = all_of(folder, contents)
    assert list(every) == [*folder, b"x", b"y"]
    some = every.take(torch.tensor([4, 0]))
    assert list(some) == [b"y", folder[0]]
    assert list(every.take(torch.tensor([True, False, False, True, False]))) == [folder[0], b"x"]
    assert some.lists is every.lists
    joined = join_files([some, contents, every, all_of(folder).take(torch.tensor([1]))])
    assert list(joined) == [*some, *contents, *every, folder[1]]
    assert len(joined.lists) == 2
    assert list(pickle.loads(pickle.dumps(joined))) == list(joined)


def test_a_file_of_a_large_folder_takes_few_bytes(tmp_path: Path) -> None:
    names = [f"n01440764_{i:05}.JPEG" for i in range(1000)]
    assert len(pickle.dumps(all_of(FolderFiles(tmp_path, names)))) < 1000 * (len(names[0]) + 21)
