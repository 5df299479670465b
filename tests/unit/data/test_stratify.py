import pytest
import torch

from densekd.data.dataset import PixelImages, Split
from densekd.data.stratify import oversample_rare, oversampling_counts, stratified_split

from support.datasets import split as images_of


@pytest.mark.parametrize(
    ("count", "fraction", "tested"),
    [(1, 0.5, 0), (2, 0.01, 1), (2, 0.99, 1), (10, 0.25, 2), (10, 0.99, 9), (10, 0.0, 0)],
)
def test_each_class_keeps_images_to_train_on(count: int, fraction: float, tested: int) -> None:
    train, test = stratified_split(images_of(3, count), fraction, seed=0)
    assert torch.bincount(train.labels).tolist() == [count - tested] * 3
    assert torch.bincount(test.labels, minlength=3).tolist() == [tested] * 3


@pytest.mark.parametrize(
    ("counts", "often"),
    [
        ([5, 5], [1, 1]),
        ([100, 30], [1, 1]),  # more than a quarter is enough
        ([100, 10, 5], [1, 2, 5]),  # 2.5 is rounded to the even number
        ([3000, 60, 1], [1, 12, 16]),  # one image is not shown 750 times
        ([0, 40, 0, 5], [1, 1, 1, 2]),  # classes without images are those of other tasks
    ],
)
def test_images_of_rare_classes_are_shown_more_often(counts: list[int], often: list[int]) -> None:
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    assert oversampling_counts(labels).tolist() == [
        times for times, count in zip(often, counts, strict=True) for _ in range(count)
    ]


def test_oversampling_repeats_images_with_their_labels() -> None:
    labels = torch.tensor([0] * 40 + [1] * 4)
    images = PixelImages(torch.arange(44).byte()[:, None, None, None].expand(44, 3, 1, 1))
    split = oversample_rare(Split(images, labels))
    assert torch.bincount(split.labels).tolist() == [40, 8]
    assert isinstance(split.images, PixelImages)
    shown = split.images.pixels[:, 0, 0, 0].tolist()
    assert shown == [*range(40), *(each for each in range(40, 44) for _ in range(2))]
