"""Export a model to one file that runs without densekd: ONNX, or torch's own format."""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from densekd import __version__
from densekd.checks import missing_extra
from densekd.data.dataset import OnProgress, PixelImages, join_images
from densekd.data.decode import shorter_side
from densekd.files import is_inside, to_json, write_atomically
from densekd.model.model import Model
from densekd.model.quantise import Int8Comparison, compare_int8, quantise

ExportKind = Literal["onnx", "torch"]
# Takes uint8 [n, 3, H, W]; gives probabilities [n, classes], and whether each is known, bool [n].
_Run = Callable[[Tensor], tuple[Tensor, Tensor]]

ENDINGS: dict[ExportKind, str] = {"onnx": ".onnx", "torch": ".pt2"}
METADATA = "densekd.json"

_TOLERANCE = 1e-4
_PER_FLIPPED = 100  # of so many images, one may be so near the threshold that rounding decides
_BATCH = 64
_MOST_CHECKED = 1000  # images: more would take minutes, and gigabytes, with many classes


class ExportMismatch(ValueError):
    """The exported file doesn't predict as the model does."""


@dataclass(frozen=True)
class ExportResult:
    """An exported file."""

    file: Path
    bytes: int
    images: int  # number of images that it was checked on
    difference: float  # the largest between its probabilities and the model's


def export(
    model: Model, to: ExportKind, file: Path, on_progress: OnProgress | None = None
) -> ExportResult:
    """Write a model to one file, after checking that it predicts as the model does.

    An existing file is replaced. Raises `ExportMismatch`, and writes nothing, if any probability
    differs by more than 1e-4, or if more than 1 % of the images, and more than one, change between
    known and unknown.
    """
    content, images, worst = _verified(model, to, file, on_progress)
    _write(file, content)
    return ExportResult(file, len(content), images, worst)


def export_int8(
    model: Model, file: Path, on_progress: OnProgress | None = None
) -> tuple[ExportResult, Int8Comparison]:
    """Write a model to ONNX in 8 bits, after comparing it with the 32-bit file of `export`.

    Writes nothing if it raises: `ExportMismatch` for the 32-bit file as in `export`, or `PoorInt8`
    if both files predict the same class too rarely.
    """
    content, images, worst = _verified(model, "onnx", file, on_progress)
    with _quiet():
        int8 = quantise(content, model)
    compared = compare_int8(content, int8, model)
    _write(file, int8)
    return ExportResult(file, len(int8), images, worst), compared


def _write(file: Path, content: bytes) -> None:
    try:
        write_atomically(file, content)
    except OSError as error:
        raise ValueError(f"{file} can't be written ({error.strerror}).") from error


def _verified(
    model: Model, to: ExportKind, file: Path, on_progress: OnProgress | None
) -> tuple[bytes, int, float]:
    """The checked content of the file, the number of images, and the largest difference."""
    if file.is_dir():
        raise ValueError(f"{file} is a folder; name a file to write to.")
    if is_inside(file, model.folder):
        raise ValueError(f"{file} is in the model's own folder; name a file elsewhere.")
    pixels = _stored_pixels(model)
    if not len(pixels):
        raise ValueError(
            f"{model.folder} keeps no images to check an export with; teach it with exemplars, or "
            "with enough images to test on."
        )
    pipeline, expected = model.exportable()
    write = _to_onnx if to == "onnx" else _to_torch
    with _quiet(), torch.no_grad():
        content, run = write(pipeline, pixels[:1].repeat(2, 1, 1, 1), _metadata(model))
    worst, otherwise = torch.tensor(0.0), 0
    for start in range(0, len(pixels), _BATCH):
        part = pixels[start : start + _BATCH]
        probabilities, known = run(part)
        scores, wanted = expected(part)
        difference = (probabilities - (scores / model.temperature).softmax(1)).abs().max()
        worst = torch.maximum(worst, difference)  # NaN if either is
        otherwise += int((known != wanted).sum())
        if on_progress is not None:
            on_progress(min(start + _BATCH, len(pixels)), len(pixels))
    allowed = max(1, len(pixels) // _PER_FLIPPED)
    if not worst <= _TOLERANCE or otherwise > allowed:
        raise ExportMismatch(
            f"The export to {to} differs from the model by {worst:.1e} in a probability "
            f"({_TOLERANCE:.0e} is allowed) and in whether an image is unknown for {otherwise} of "
            f"{len(pixels)} images ({allowed} allowed), so nothing was written; try another "
            "version of torch."
        )
    return content, len(pixels), float(worst)


def _stored_pixels(model: Model) -> Tensor:
    """Up to 1,000 kept images, half of them test images if there are enough of both."""
    half = _MOST_CHECKED // 2
    tested = model.stored_images(tested=True, most=half)
    others = model.stored_images(tested=False, most=_MOST_CHECKED - len(tested))
    if len(tested) == half > len(others):
        tested = model.stored_images(tested=True, most=_MOST_CHECKED - len(others))
    images = join_images([tested.images, others.images])
    assert isinstance(images, PixelImages)
    return images.pixels


def _metadata(model: Model) -> dict[str, Any]:
    """The metadata in the exported file: all that its users need to know."""
    size = model.image_size
    return {
        "labels": list(model.classes),
        "image_size": size,
        "resize_shorter_side": shorter_side(size),
        "resample": model.resample.name,
        "preprocessing": "Turn the image upright, make transparent parts white, and convert it to "
        f"RGB; resize the shorter side to resize_shorter_side, {model.resample.name.lower()}; crop "
        "the centre of image_size x image_size; pass pixels as uint8 [n, 3, H, W]. The model "
        "normalises them.",
        "outputs": "probabilities [n, labels], calibrated; scores [n, labels], which they are "
        "computed from; known [n], false for images unlike any that were taught",
        "refused": model.refused,
        "network": model.network,
        "method": model.method,
        "step": model.step,
        "densekd": __version__,
    }


def _to_onnx(pipeline: nn.Module, example: Tensor, about: dict[str, Any]) -> tuple[bytes, _Run]:
    try:
        import onnx
        import onnxruntime  # type: ignore[import-untyped]
        import onnxscript  # noqa: F401 - torch needs it, but its own message is less clear
    except ImportError as error:
        raise missing_extra("Export to ONNX", "onnx") from error

    program = torch.onnx.export(
        pipeline,
        (example,),
        dynamo=True,
        input_names=["pixels"],
        output_names=["probabilities", "scores", "known"],
        dynamic_shapes={"pixels": {0: torch.export.Dim("n")}},
        verbose=False,
    )
    assert program is not None
    proto = program.model_proto
    # ONNX metadata holds only text.
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in about.items()}
    onnx.helper.set_model_props(proto, texts)
    content = proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(pixels: Tensor) -> tuple[Tensor, Tensor]:
        found = session.run(["probabilities", "known"], {"pixels": pixels.numpy()})
        return torch.from_numpy(found[0]), torch.from_numpy(found[1])

    return content, run


def _to_torch(pipeline: nn.Module, example: Tensor, about: dict[str, Any]) -> tuple[bytes, _Run]:
    shapes = {"pixels": {0: torch.export.Dim("n")}}
    program = torch.export.export(pipeline, (example,), dynamic_shapes=shapes)
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={METADATA: to_json(about).decode()})
    content = buffer.getvalue()
    loaded = torch.export.load(io.BytesIO(content)).module()

    def run(pixels: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            probabilities, _, known = loaded(pixels)
        return probabilities, known

    return content, run


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the logs and warnings of torch's exporters."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def usage(to: ExportKind, file: Path, image: str = "image.jpg") -> str:
    """Python code that opens an exported model, reads an image as in training and classifies it.

    The code doesn't need densekd.
    """
    opened = _OPEN[to].format(file=repr(str(file)), metadata=METADATA)
    return opened + _READ.format(image=repr(image)) + _RUN[to] + _PRINT


_OPEN: dict[ExportKind, str] = {
    "onnx": """import json

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

model = onnxruntime.InferenceSession({file})
about = model.get_modelmeta().custom_metadata_map
labels, size, side = (json.loads(about[k]) for k in ("labels", "image_size", "resize_shorter_side"))
resample = Image.Resampling[about["resample"]]
""",
    "torch": """import json

import numpy as np
import torch
from PIL import Image, ImageOps

texts = {{"{metadata}": ""}}
model = torch.export.load({file}, extra_files=texts).module()
about = json.loads(texts["{metadata}"])
labels, size, side = (about[k] for k in ("labels", "image_size", "resize_shorter_side"))
resample = Image.Resampling[about["resample"]]
""",
}
_READ = """
image = ImageOps.exif_transpose(Image.open({image})).convert("RGBA")
image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
width, height = (int(side * length / min(image.size)) for length in image.size)
left, top = round((width - size) / 2), round((height - size) / 2)
x, y = image.width / width, image.height / height
box = left * x, top * y, min((left + size) * x, image.width), min((top + size) * y, image.height)
crop = image.resize((size, size), resample, box=box)
pixels = np.asarray(crop).transpose(2, 0, 1)[None]  # uint8 [n, 3, size, size], any n

"""
_RUN: dict[ExportKind, str] = {
    "onnx": """probabilities, known = model.run(["probabilities", "known"], {"pixels": pixels})
""",
    "torch": """with torch.no_grad():
    probabilities, _, known = (each.numpy() for each in model(torch.tensor(pixels)))
""",
}
_PRINT = """if not known[0]:
    print("unknown")
for rank in probabilities[0].argsort()[::-1][:3]:
    print(f"{probabilities[0][rank]:.3f} {labels[rank]}")
"""
