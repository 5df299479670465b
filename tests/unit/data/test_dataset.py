import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from densekd.data.dataset import (
    Dataset,
    FileImages,
    PixelImages,
    Split,
    channel_statistics,
    fingerprint,
    images_from_state,
    join_images,
    join_splits,
)
from densekd.data.file_lists import FileContents, FolderFiles, ends_of

from support.datasets import dataset, split


def pixels(n: int, value: int = 0) -> PixelImages:
    return PixelImages(torch.full((n, 3, 2, 2), value, dtype=torch.uint8))


def test_joined_images_follow_one_another() -> None:
    joined = join_images([pixels(2, 1), pixels(1, 9)])
    assert joined.state()["pixels"][:, 0, 0, 0].tolist() == [1, 1, 9]
    files = join_images([FileImages((b"a",), 8), FileImages((b"b", b"c"), 8)])
    assert isinstance(files, FileImages)
    assert list(files.files) == [b"a", b"b", b"c"]


def test_images_of_different_kinds_are_not_joined() -> None:
    with pytest.raises(ValueError, match="can't be joined"):
        join_images([pixels(1), FileImages((b"a",), 8)])
    with pytest.raises(ValueError, match="can't be joined"):
        join_images([FileImages((b"a",), 8), FileImages((b"a",), 9)])
    with pytest.raises(ValueError, match="can't be joined"):
        join_images([pixels(1), PixelImages(torch.zeros(1, 3, 4, 4, dtype=torch.uint8))])


def test_new_images_and_exemplars_merge_into_one_split() -> None:
    merged = join_splits([split(2, 3), Split(split(1, 2).images, torch.tensor([7, 8]))])
    assert merged.labels.tolist() == [0, 1, 0, 1, 0, 1, 7, 8]
    assert len(merged.images) == 8


def test_no_files_have_an_empty_content() -> None:
    restored = images_from_state(FileImages((), 8).state())
    assert isinstance(restored, FileImages)
    assert (len(restored), restored.size) == (0, 8)


def test_a_channel_without_variation_can_be_divided_by() -> None:
    mean, std = channel_statistics(torch.full((2, 3, 2, 2), 51, dtype=torch.uint8))
    assert mean == (0.2, 0.2, 0.2)
    assert std == (1.0, 1.0, 1.0)


def test_the_content_of_files_comes_back_byte_by_byte() -> None:
    images = FileImages((b"\x00\xff", b"", b"abc"), 16)
    restored = images_from_state(images.state())
    assert isinstance(restored, FileImages)
    assert [*restored.files] == [*images.files]
    assert [*images.take(torch.tensor([2, 0])).files] == [b"abc", b"\x00\xff"]


@pytest.mark.parametrize(
    "wrong", [torch.zeros(1, 3, 2, 2), torch.zeros(1, 1, 2, 2).byte(), torch.zeros(3, 2, 2).byte()]
)
def test_pixels_are_bytes_of_three_channels(wrong: Tensor) -> None:
    with pytest.raises(ValueError, match=r"uint8 of shape \[n, 3, H, W\]"):
        PixelImages(wrong)


def test_labels_and_names_must_fit() -> None:
    with pytest.raises(ValueError, match=r"2 images.* shape \[3\]"):
        Split(pixels(2), torch.zeros(3).long())
    made = dataset(3)
    with pytest.raises(ValueError, match="6 training labels, such as 2, are not of the 2 classes"):
        Dataset("x", ("a", "b"), made.train, split(2, 1), made.mean, made.std)
    with pytest.raises(ValueError, match="two classes are called 'a'"):
        Dataset("x", ("a", "a", "b"), made.train, made.test, made.mean, made.std)


def test_channel_statistics_are_those_of_all_pixels() -> None:
    source = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (20, 3, 5, 5), dtype=torch.uint8, generator=source)
    mean, std = channel_statistics(x)
    values = x.double() / 255
    torch.testing.assert_close(torch.tensor(mean, dtype=torch.float64), values.mean((0, 2, 3)))
    expected = values.transpose(0, 1).flatten(1).std(1, unbiased=False)
    torch.testing.assert_close(torch.tensor(std, dtype=torch.float64), expected)


def test_the_fingerprint_of_files_whose_names_are_not_utf_8(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xe4.png")  # in Latin-1
    (tmp_path / name).write_bytes(b"abc")
    labels = torch.zeros(1).long()
    lists: list[Sequence[Path]] = [FolderFiles(tmp_path, [name]), (tmp_path / name,)]
    first, second = (fingerprint(Split(FileImages(files, 8), labels)) for files in lists)
    assert first == second
    (tmp_path / name).write_bytes(b"abcd")
    assert fingerprint(Split(FileImages(lists[0], 8), labels)) != first


def test_the_fingerprint_of_packed_images_is_made_of_their_checksums() -> None:
    content, labels = np.zeros(6, np.uint8), torch.zeros(2).long()

    def of(*checksums: int) -> str:
        contents = FileContents(content, ends_of([2, 4]), np.array(checksums, np.uint32))
        return fingerprint(Split(FileImages(contents, 8), labels))

    assert of(2**32 - 1, 7) == of(2**32 - 1, 7)
    assert len({of(2**32 - 1, 7), of(7, 2**32 - 1), of(1, 7)}) == 3


def test_the_bytes_of_a_state_are_known_without_reading_files(tmp_path: Path) -> None:
    for name, content in (("a", b"12"), ("b", b"345"), ("c", b"6")):
        (tmp_path / name).write_bytes(content)
    paths = [tmp_path / name for name in "abc"]
    packed = FileContents(np.frombuffer(b"123456", np.uint8), ends_of([2, 3, 1]))
    for files in (paths, FolderFiles(tmp_path, "abc"), packed, [b"12", b"345", b"6"]):
        images = FileImages(files, 8)
        assert images.state_bytes() == len(images.state()["bytes"]) == 6
        assert images.take(torch.tensor([1, 2])).state_bytes() == 4
    assert split(2, 1).images.state_bytes() == 2 * 3 * 8 * 8
