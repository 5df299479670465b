import io
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image
from torch import Tensor
from torch.utils.data import DataLoader

from densekd.data.crops import (
    CropDataset,
    draw_box,
    prepare_crop,
    random_resized_crop,
    resample,
)
from densekd.data.dataset import FileImages, PixelImages
from densekd.data.decode import UnreadableImage, centre_crop, open_rgb

Array = NDArray[Any]


def noise(width: int, height: int, seed: int = 0) -> Array:
    levels: Array = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return levels


def positions(width: int, height: int) -> Array:
    """Red counts the columns from 0 to 255, green the rows."""
    y, x = np.mgrid[:height, :width]
    levels = np.stack([x * 255 / (width - 1), y * 255 / (height - 1), 0 * x], -1)
    rounded: Array = np.rint(levels).astype(np.uint8)
    return rounded


def extent(crop: Tensor, side: int) -> tuple[float, float]:
    """Width and height, as shares of the image, of a crop of `positions`."""
    middle, last = side // 2, side - 1
    across = float(crop[0, middle, last]) - float(crop[0, middle, 0])
    down = float(crop[1, last, middle]) - float(crop[1, 0, middle])
    # From the first pixel's centre to the last's it is one pixel less than the whole.
    return across / 255 * side / last, down / 255 * side / last


def test_training_crops_have_the_areas_and_ratios_of_the_definition() -> None:
    image, source = positions(400, 300), np.random.default_rng(3)
    crops = [extent(random_resized_crop(image, (64, 64), source), 64) for _ in range(600)]
    areas = np.array([width * height for width, height in crops])
    ratios = np.array([width * 400 / (height * 300) for width, height in crops])
    assert 0.07 < areas.min() < 0.12
    assert 0.9 < areas.max() < 1.02
    assert 0.7 < ratios.min() < 0.8
    assert 1.25 < ratios.max() < 1.42
    # As often wider as higher where both fit, which a uniform ratio would not be.
    assert 0.41 < (ratios[areas < 0.5] > 1).mean() < 0.59


def test_crops_lie_anywhere_in_the_image() -> None:
    image, source = positions(256, 256), np.random.default_rng(0)
    centres = np.stack(
        [
            random_resized_crop(image, (16, 16), source)[:2].float().mean((1, 2)).numpy()
            for _ in range(400)
        ]
    )
    assert (centres.min(0) < 60).all()
    assert (centres.max(0) > 195).all()
    assert np.abs(centres.mean(0) - 127.5).max() < 8


def test_a_shape_that_no_crop_fits_gives_its_centre() -> None:
    crop = random_resized_crop(positions(10, 1000), (16, 16), np.random.default_rng(0))
    # 10 x 13 pixels of 1000 around the middle row, in steps of 255 / 999.
    assert 125 <= crop[1].min() <= crop[1].max() <= 130
    assert crop[0].min() < 10
    assert crop[0].max() > 245


def test_one_generator_gives_one_crop() -> None:
    image = noise(50, 40)
    first, again, other = (
        random_resized_crop(image, (16, 16), np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{i}.png" for i in range(7)]
    for i, path in enumerate(paths):
        Image.fromarray(noise(40 + i, 30, seed=i)).save(path)
    return paths


def loader(images: FileImages, seed: int | None, workers: int) -> DataLoader[torch.Tensor]:
    batches = [[(i, seed) for i in part.tolist()] for part in torch.arange(len(images)).split(3)]
    return DataLoader(
        CropDataset(images), batch_sampler=batches, num_workers=workers, collate_fn=lambda x: x
    )


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_training_crops_do_not_depend_on_the_workers(files: list[Path]) -> None:
    images = FileImages((*files, files[0].read_bytes()), 16)
    epochs = [
        torch.cat(list(loader(images, seed, workers)))
        for seed, workers in ((5, 0), (5, 1), (5, 2), (6, 0))
    ]
    assert epochs[0].shape == (8, 3, 16, 16)
    assert torch.equal(epochs[0], epochs[1])
    assert torch.equal(epochs[0], epochs[2])
    assert not torch.equal(epochs[0], epochs[3])
    # The same file at two places is cropped in two ways.
    assert not torch.equal(epochs[0][0], epochs[0][7])


def test_without_a_seed_there_are_test_crops(files: list[Path]) -> None:
    crops = CropDataset(FileImages(tuple(files), 16))
    assert len(crops) == 7
    for i in range(7):
        assert torch.equal(crops[i, None], centre_crop(open_rgb(files[i]), 16))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_file_is_named_with_the_command_that_lists_all(
    files: list[Path], workers: int
) -> None:
    files[6].write_bytes(files[6].read_bytes()[:500])
    message = ""
    # Not pytest.raises, which keeps the worker alive with the error.
    try:
        list(loader(FileImages(tuple(files), 16), None, workers))
    except UnreadableImage as error:
        message = str(error)
    assert re.search(r"6\.png' can't be read \(.*truncated.*\); `densekd data check`", message)


def test_the_file_that_cannot_be_decoded_is_named_among_those_read_with_it(
    files: list[Path],
) -> None:
    files[1].write_bytes(jpeg(noise(90, 70))[:3000])
    crops = CropDataset(FileImages(tuple(files), 16))
    with pytest.raises(UnreadableImage, match=r"1\.png' can't be read"):
        crops.__getitems__([(i, 5) for i in range(7)])


def test_unreadable_content_is_named_by_its_index() -> None:
    with pytest.raises(UnreadableImage, match=r"^Image 0 can't be read \(not an image"):
        CropDataset(FileImages((b"text",), 16))[0, None]


def test_a_crop_is_resized_as_by_pillow() -> None:
    image = noise(90, 70)
    for box in ((0, 0, 90, 70), (5, 9, 80, 60), (30, 30, 40, 38)):
        wanted = Image.fromarray(image).crop(box).resize((24, 24), Image.Resampling.BILINEAR)
        found = resample(image, box, (24, 24)).permute(1, 2, 0).int()
        assert (found - torch.from_numpy(np.array(wanted)).int()).abs().max() <= 1


def test_images_in_memory_are_cropped_like_files_of_the_same_size(tmp_path: Path) -> None:
    images = np.stack([noise(16, 16, seed) for seed in range(3)])
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    memory = CropDataset(PixelImages(torch.from_numpy(images).permute(0, 3, 1, 2)))
    files = CropDataset(FileImages(paths, 16))
    keys = [(i, 7) for i in range(3)]
    assert torch.equal(memory.__getitems__(keys), files.__getitems__(keys))
    assert torch.equal(memory[1, None], torch.from_numpy(images[1]).permute(2, 0, 1))


def crop_of(content: bytes, seed: int, side: int = 32) -> Tensor:
    return prepare_crop(content, (side, side), np.random.default_rng(seed))()


def jpeg(image: Array, mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).convert(mode).save(out, "JPEG", **options)
    return out.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_a_jpeg_is_decoded_to_the_pixels_of_pillow(mode: str, options: dict[str, Any]) -> None:
    content = jpeg(noise(90, 70), mode, **options)
    for seed in range(5):
        pixels = np.array(open_rgb(content))
        wanted = random_resized_crop(pixels, (32, 32), np.random.default_rng(seed))
        assert torch.equal(crop_of(content, seed), wanted)


def test_a_jpeg_from_a_camera_is_decoded_to_the_pixels_of_pillow() -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 1
    image = noise(90, 70)
    assert torch.equal(crop_of(jpeg(image, exif=exif), 3), crop_of(jpeg(image), 3))


@pytest.mark.parametrize("with_exif", [False, True])
def test_a_jpeg_of_too_many_pixels_is_refused(
    with_exif: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 1
    content = jpeg(noise(90, 70), exif=exif if with_exif else b"")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 90 * 70 - 1)
    with pytest.raises(UnreadableImage, match="more pixels"):
        crop_of(content, 0)


def test_a_turned_jpeg_is_cropped_upright() -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    content = jpeg(positions(90, 60), exif=exif)
    # Columns have become rows, from the bottom up.
    crop = crop_of(content, 0).float()
    assert crop[1, 0].std() > crop[0, 0].std()


def test_a_large_jpeg_is_decoded_at_a_reduced_size_and_the_same_part_is_cropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    smooth = Image.fromarray(noise(20, 15)).resize((803, 605), Image.Resampling.BICUBIC)
    content = jpeg(np.array(smooth), quality=95)
    decoded: list[tuple[int, ...]] = []

    def spy(*args: Any, **options: Any) -> Array:
        pixels: Array = decode(*args, **options)
        decoded.append(pixels.shape)
        return pixels

    decode = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", spy)
    for seed, side in itertools.product(range(8), (64, 200)):
        left, top, right, bottom = draw_box(803, 605, np.random.default_rng(seed))
        crop = crop_of(content, seed, side)
        scale = decoded[-1][1] / 803
        assert scale > 0.99 or min(right - left, bottom - top) * scale >= side
        wanted = resample(np.array(open_rgb(content)), (left, top, right, bottom), (side, side))
        difference = (crop.int() - wanted.int()).abs().float()
        assert difference.mean() < 1.5
    assert min(shape[1] for shape in decoded) < 300
    assert max(shape[1] for shape in decoded) == 803


def test_a_damaged_jpeg_is_judged_by_pillow() -> None:
    content = jpeg(noise(90, 70))
    with pytest.raises(UnreadableImage, match="truncated"):
        crop_of(content[: len(content) // 2], 0)
    with pytest.raises(UnreadableImage, match="not an image"):
        crop_of(b"\xff\xd8text", 0)
