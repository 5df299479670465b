"""Class folders of image files, made for tests."""

from pathlib import Path

from PIL import Image

from densekd.data.dataset import FileImages, Split


def fill_folder(folder: Path, count: int, ending: str = "png", level: int = 0) -> None:
    """Save images of one colour each, whose red is ``level`` and whose green counts them."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        Image.new("RGB", (12, 9), (level, i, 0)).save(folder / f"{i:03}.{ending}")


def image_names(split: Split) -> list[str]:
    """Return the names of a split's files, each as CLASS/FILE."""
    assert isinstance(split.images, FileImages)
    files = [file for file in split.images.files if isinstance(file, Path)]
    return [f"{file.parent.name}/{file.name}" for file in files]
