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
from densekd.data.dataset import OnProgress
from densekd.files import to_json, write_atomically
from densekd.model.model import Model

ExportKind = Literal["onnx", "torch"]
# Takes uint8 [n, 3, H, W] and gives probabilities [n, classes].
_Run = Callable[[Tensor], Tensor]

ENDINGS: dict[ExportKind, str] = {"onnx": ".onnx", "torch": ".pt2"}
METADATA = "densekd.json"

_TOLERANCE = 1e-4
_BATCH = 64


class ExportMismatch(ValueError):
    """The exported file doesn't predict as the model does."""


@dataclass(frozen=True)
class ExportResult:
    """An exported file."""

    file: Path
    bytes: int
    images: int  # that it was checked on
    difference: float  # the largest of any probability from the model's


def export(
    model: Model, to: ExportKind, file: Path, on_progress: OnProgress | None = None
) -> ExportResult:
    """Write a model to one file, after checking that it predicts as the model does.

    An existing file is replaced. Raises `ExportMismatch`, and writes nothing, if any probability
    differs by more than 1e-4.
    """
    if file.is_dir():
        raise ValueError(f"{file} is a folder; name a file to write to.")
    pixels = model.stored_images()
    if not len(pixels):
        raise ValueError(
            f"{model.folder} keeps no images to check an export with; teach it with exemplars, or "
            "with enough images to test on."
        )
    pipeline, expected = model.exportable()
    write = _to_onnx if to == "onnx" else _to_torch
    with _quiet(), torch.no_grad():
        content, run = write(pipeline, pixels[:1].repeat(2, 1, 1, 1), _metadata(model))
    differences = []
    for start in range(0, len(pixels), _BATCH):
        part = pixels[start : start + _BATCH]
        differences.append((run(part) - expected(part)).abs().max())
        if on_progress is not None:
            on_progress(min(start + _BATCH, len(pixels)), len(pixels))
    worst = float(torch.stack(differences).max())
    if not worst <= _TOLERANCE:  # also if it is NaN
        raise ExportMismatch(
            f"The export to {to} differs from the model by {worst:.1e} on its own images, more "
            f"than {_TOLERANCE:.0e}, so nothing was written; try another version of torch."
        )
    write_atomically(file, content)
    return ExportResult(file, len(content), len(pixels), worst)


def _metadata(model: Model) -> dict[str, Any]:
    """What a user of the exported file needs to know; it is stored in the file."""
    size = model.image_size
    return {
        "labels": list(model.classes),
        "image_size": size,
        "resize_shorter_side": round(size * 256 / 224),
        "resample": model.resample.name,
        "preprocessing": "RGB, upright, transparent parts white; the shorter side to "
        f"resize_shorter_side, {model.resample.name.lower()}; the centre of image_size x "
        "image_size; pixels as uint8 [n, 3, H, W]. Normalisation is inside.",
        "outputs": "probabilities [n, labels], calibrated, and the scores they are made of",
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
        raise ValueError(
            "Export to ONNX needs more packages; install them with `pip install densekd[onnx]`."
        ) from error

    program = torch.onnx.export(
        pipeline,
        (example,),
        dynamo=True,
        input_names=["pixels"],
        output_names=["probabilities", "scores"],
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

    def run(pixels: Tensor) -> Tensor:
        (probabilities,) = session.run(["probabilities"], {"pixels": pixels.numpy()})
        return torch.from_numpy(probabilities)

    return content, run


def _to_torch(pipeline: nn.Module, example: Tensor, about: dict[str, Any]) -> tuple[bytes, _Run]:
    shapes = {"pixels": {0: torch.export.Dim("n")}}
    program = torch.export.export(pipeline, (example,), dynamic_shapes=shapes)
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={METADATA: to_json(about).decode()})
    content = buffer.getvalue()
    loaded = torch.export.load(io.BytesIO(content)).module()

    def run(pixels: Tensor) -> Tensor:
        with torch.no_grad():
            probabilities: Tensor = loaded(pixels)[0]
        return probabilities

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
    "onnx": """probabilities = model.run(["probabilities"], {"pixels": pixels})[0][0]
""",
    "torch": """with torch.no_grad():
    probabilities = model(torch.tensor(pixels))[0][0].numpy()
""",
}
_PRINT = """for rank in probabilities.argsort()[::-1][:3]:
    print(f"{probabilities[rank]:.3f} {labels[rank]}")
"""
