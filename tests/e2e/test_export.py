"""Exports of models: files that run without the package."""

import contextlib
import errno
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

from densekd.cli import app
from densekd.data.dataset import Split
from densekd.model import export as export_module
from densekd.model.export import (
    METADATA,
    ExportKind,
    ExportMismatch,
    export,
    export_int8,
    usage,
)
from densekd.model.model import Model
from densekd.model.options import TeachOptions
from densekd.model.quantise import PoorInt8
from densekd.model.teach import teach_model
from densekd.model.trained.model import TrainedModel
from densekd.nn.network import Features

from support.photos import fill, picture

COLOURS = {"a": (200, 40, 40), "b b": (40, 200, 40), "ç": (40, 40, 200), "7": (120, 120, 120)}


def folder(path: Path, *names: str, images: int = 8) -> Path:
    """A sub-folder of noisy images for each class."""
    draw = np.random.default_rng(len(names))
    for name in names:
        (path / name).mkdir(parents=True)
        for number in range(images):
            pixels = np.array(COLOURS[name]) + draw.integers(-40, 40, (20, 24, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(path / name / f"{number}.png")
    return path


def taught(place: Path, method: str) -> Path:
    model = place / "colours.model"
    options = TeachOptions(image_size=16, network="resnet8", epochs=2, method=method)
    teach_model(model, folder(place / "first", "a", "b b"), options)
    teach_model(model, folder(place / "second", "ç", "7"), TeachOptions(epochs=2))
    return model


@pytest.fixture(scope="module")
def by_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that predicts by its classifier."""
    return taught(tmp_path_factory.mktemp("head"), "fdkd")


@pytest.fixture(scope="module")
def by_means(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that predicts by the nearest class mean."""
    return taught(tmp_path_factory.mktemp("means"), "icarl")


def varied_images(folder: Path) -> Iterator[Path]:
    """Images that are wide, tall and turned, square, and transparent."""
    draw = np.random.default_rng(0)
    for number, (height, width) in enumerate(((20, 24), (61, 33), (19, 19), (15, 200))):
        noise = draw.integers(-40, 40, (height, width, 3))
        image = Image.fromarray((np.array(list(COLOURS.values())[number]) + noise).astype(np.uint8))
        exif = Image.Exif()
        exif[0x0112] = 6 if number == 1 else 1
        if number == 3:
            image.putalpha(100)
        image.save(folder / "image.jpg", "PNG" if number == 3 else "JPEG", exif=exif)
        yield folder / "image.jpg"


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "torch"])
def test_a_full_disk_is_one_sentence(
    to: str, by_head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    file = tmp_path / "exported"
    called = CliRunner().invoke(app, ["export", str(by_head), "--to", to, "--out", str(file)])
    assert (called.exit_code, [*tmp_path.iterdir()]) == (2, [])
    assert f"{file} can't be written (No space left on device)" in called.stderr


@pytest.mark.slow
def test_an_export_is_checked_on_a_limited_number_of_images(
    by_head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_module, "_MOST_CHECKED", 6)
    model = TrainedModel.open(by_head)
    few, many = model.stored_images(tested=True), model.stored_images(tested=False)
    assert len(few) == 4
    assert len(many) > 4
    assert export(model, "torch", tmp_path / "model.pt2").images == 6
    monkeypatch.setattr(model, "stored_images", exchanged(first(few, 2), many))
    assert export(model, "torch", tmp_path / "model.pt2").images == 6


def exchanged(few: Split, many: Split) -> Callable[..., Split]:
    """The stored images of a model with few images to learn from and many to test on."""

    def stored_images(*, tested: bool, most: int) -> Split:
        return first(many if tested else few, most)

    return stored_images


def first(split: Split, most: int) -> Split:
    return split.take(torch.arange(len(split))[:most])


def check_printed_code(code: str, model: Model, folder: Path) -> None:
    """Check that the code reads, crops and classifies images as the model does."""
    for image in varied_images(folder):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "usage", "exec"), {})
        (wanted,) = model.predict([image], top=3)
        rows = [line.split(" ", 1) for line in printed.getvalue().splitlines()]
        assert [name for _, name in rows] == [guess.name for guess in wanted]
        for (share, _), guess in zip(rows, wanted, strict=True):
            assert float(share) == pytest.approx(guess.probability, abs=1e-3)


def check_file(to: ExportKind, file: Path, model: Model) -> None:
    """Check that a file gives the model's numbers, and holds its labels."""
    pixels = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
    for some in (pixels, pixels[:1]):
        probabilities, scores, about = run(to, file, some)
        torch.testing.assert_close(probabilities, model.probabilities(some), atol=1e-4, rtol=0)
        torch.testing.assert_close(scores, model.scores(some), atol=1e-4, rtol=0)
    assert about["labels"] == list(model.classes)
    assert about["image_size"] == 16


def run(to: ExportKind, file: Path, pixels: Tensor) -> tuple[Tensor, Tensor, dict[str, object]]:
    if to == "onnx":
        session = onnxruntime.InferenceSession(file)
        texts = session.get_modelmeta().custom_metadata_map
        about = {k: json.loads(v) if k in ("labels", "image_size") else v for k, v in texts.items()}
        out = [torch.from_numpy(x) for x in session.run(None, {"pixels": pixels.numpy()})]
        return out[0], out[1], about
    texts = {METADATA: ""}
    loaded = torch.export.load(file, extra_files=texts).module()
    with torch.no_grad():
        probabilities, scores, known = loaded(pixels)
    assert bool(known.all())
    return probabilities, scores, json.loads(texts[METADATA])


@pytest.mark.slow
@pytest.mark.parametrize(("to", "kind"), [("onnx", "by_means"), ("torch", "by_head")])
def test_an_export_predicts_as_the_model_does(
    to: ExportKind,
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder: Path = request.getfixturevalue(kind)
    result = CliRunner().invoke(app, ["export", str(folder), "--to", to])
    assert result.exit_code == 0, result.output
    file = folder.parent / f"colours{'.onnx' if to == 'onnx' else '.pt2'}"
    agreed = re.search(r"^(.*) \((.*) kB\) .* on (\d+) images: .* (\S+)\.\n", result.stdout)
    assert agreed
    assert Path(agreed[1]) == file
    assert int(agreed[2].replace(",", "")) == round(file.stat().st_size / 1000)
    assert int(agreed[3]) == 32  # all that it keeps: seven of each class, and one to test on
    assert float(agreed[4]) <= 1e-4
    code = result.stdout.partition("To use it:\n\n")[2]
    assert code == usage(to, file)
    model = TrainedModel.open(folder)
    check_printed_code(code, model, tmp_path)
    check_file(to, file, model)


def test_an_earlier_step_can_be_exported(by_means: Path, tmp_path: Path) -> None:
    """This covers class means in torch's format, too."""
    file = tmp_path / "new folder" / "early.pt2"
    command = ["export", str(by_means), "--to", "torch", "--out", str(file), "--step", "0"]
    assert CliRunner().invoke(app, command).exit_code == 0
    model = TrainedModel.open(by_means, 0)
    assert model.classes == ("a", "b b")
    check_file("torch", file, model)
    assert [path.name for path in file.parent.iterdir()] == ["early.pt2"]


class Noisy(nn.Module):
    """A backbone whose features change at random."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Features:
        features: Features = self.inner(images)
        noise = torch.rand_like(features.pooled)
        return Features(features.pooled + noise, features.maps)


def test_an_export_that_differs_is_not_written(by_head: Path, tmp_path: Path) -> None:
    model, file = TrainedModel.open(by_head), tmp_path / "model.pt2"
    network = model.learner.network
    network.add_module("backbone", Noisy(network.backbone))
    file.write_text("before")
    progress: list[tuple[int, int]] = []
    with pytest.raises(ExportMismatch, match=r"differs from the model by .* nothing was written"):
        export(model, "torch", file, lambda done, total: progress.append((done, total)))
    assert progress == [(32, 32)]
    assert file.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]


def test_refusals_are_one_sentence(
    by_head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = TrainedModel.open(by_head)
    with pytest.raises(ValueError, match=r"in the model's own folder"):
        export(model, "torch", by_head / "current.json")
    with pytest.raises(ValueError, match=r"is a folder; name a file"):
        export(model, "torch", tmp_path)
    for package in ("onnx", "onnxruntime", "onnxscript"):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, package, None)
            with pytest.raises(ValueError, match=r"`pip install 'densekd\[onnx\]'`"):
                export(model, "onnx", tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_export_needs_images_to_check_it_with(tmp_path: Path) -> None:
    options = TeachOptions(
        image_size=16, network="resnet8", epochs=1, overrides=("memory.per_class=0",)
    )
    teach_model(tmp_path / "model", folder(tmp_path / "one", "a", "b b", images=1), options)
    with pytest.raises(ValueError, match="keeps no images to check an export with"):
        export(TrainedModel.open(tmp_path / "model"), "torch", tmp_path / "model.pt2")


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model on a frozen backbone, which can tell what it doesn't know."""
    place = tmp_path_factory.mktemp("frozen")
    teach_model(
        place / "colours.model", fill(place / "images", {"red": 10, "green": 10}), TeachOptions()
    )
    return place / "colours.model"


def strange(folder: Path) -> Path:
    """A picture unlike all that the model knows."""
    rings = np.hypot(*np.mgrid[-50:50, -60:60])[..., None] * (0.3, 0.5, 0.7)
    Image.fromarray((127 + 127 * np.sin(rings)).astype(np.uint8)).save(folder / "strange.png")
    return folder / "strange.png"


def printed_by(code: str) -> list[str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "usage", "exec"), {})
    return printed.getvalue().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "torch"])
def test_an_export_says_unknown(to: ExportKind, frozen: Path, tmp_path: Path) -> None:
    model, file, image = Model.open(frozen), tmp_path / "model", strange(tmp_path)
    model.refused = 0.1
    known = tmp_path / "known.png"
    picture("red", 3).save(known)  # one that it was taught
    export(model, to, file)
    first, second = model.predict([image, known], top=2)
    assert (first.known, second.known) == (False, True)
    for photo, wanted in ((image, first), (known, second)):
        rows = printed_by(usage(to, file, str(photo)))
        assert (rows[0] == "unknown") == (not wanted.known)
        assert [row.split(" ", 1)[1] for row in rows[-2:]] == [guess.name for guess in wanted]
    if to == "torch":  # quicker than ONNX, and of the same module
        model.refused = 0  # then nothing is unknown
        export(model, to, file)
        assert printed_by(usage(to, file, str(image)))[0] != "unknown"


@pytest.mark.slow
def test_8_bits_are_compared_with_32(frozen: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", str(frozen), "--to", "onnx", "--int8"])
    assert result.exit_code == 0, result.output
    file = frozen.parent / "colours.int8.onnx"
    sizes = re.search(
        r"colours.int8.onnx \(([\d,]+) kB\) predicts .* \(([\d,]+) kB\)", result.stdout
    )
    assert sizes
    small, large = (int(size.replace(",", "")) for size in sizes.groups())
    assert small == round(file.stat().st_size / 1000)
    assert small < 0.4 * large
    assert "for 100.0 % of 4 test images" in result.stdout
    assert "Accuracy in %: 100.0 → 100.0." in result.stdout
    photo = tmp_path / "photo.png"
    picture("green", 55).save(photo)
    rows = printed_by(usage("onnx", file, str(photo)))
    assert rows[-2].endswith(" green")
    about = onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map
    assert (about["precision"], json.loads(about["labels"])) == ("int8", ["green", "red"])


@pytest.mark.slow
def test_poor_8_bits_are_not_written(
    by_head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This covers models that were trained, too."""
    model, file = TrainedModel.open(by_head), tmp_path / "model.onnx"
    result, compared = export_int8(model, file)
    assert compared.agreement >= 0.95
    assert result.bytes == file.stat().st_size
    good = file.read_bytes()
    spoilt = onnx.load_from_string(good)
    for tensor in spoilt.graph.initializer:
        if tensor.name.endswith("_quantized"):
            zeros = np.zeros_like(onnx.numpy_helper.to_array(tensor))
            tensor.CopyFrom(onnx.numpy_helper.from_array(zeros, tensor.name))
    monkeypatch.setattr(export_module, "quantise", lambda *_: spoilt.SerializeToString())
    with pytest.raises(PoorInt8, match=r"only .* less than 95 %, so nothing was written"):
        export_int8(model, file)
    assert file.read_bytes() == good
    refused = CliRunner().invoke(app, ["export", str(by_head), "--to", "torch", "--int8"])
    assert refused.exit_code == 2
    assert "--int8 with --to onnx" in refused.stderr
