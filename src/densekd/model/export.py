"""Export a model to one file that runs without densekd: ONNX, or torch's own format."""

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from densekd import __version__
from densekd.data.dataset import OnProgress, PixelImages
from densekd.files import to_json, write_atomically
from densekd.model.model import Model
from densekd.training.engine import Engine
from densekd.training.inference import cosines
from densekd.training.learner import Learner

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


class _Pipeline(nn.Module):
    """Everything from pixels to probabilities; ``means`` if it predicts by nearest mean."""

    means: Tensor | None

    def __init__(self, learner: Learner, means: Tensor | None, temperature: float) -> None:
        super().__init__()
        self.augment = learner.settings.augment
        self.network = learner.network
        self.register_buffer("means", means)
        self.temperature = temperature

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 ``[n, 3, H, W]`` to probabilities and scores, both ``[n, classes]``."""
        out = self.network(self.augment.normalise(pixels))
        values = out.logits if self.means is None else cosines(out.features, self.means)
        return (values / self.temperature).softmax(1), values


def export(
    model: Model, to: ExportKind, file: Path, on_progress: OnProgress | None = None
) -> ExportResult:
    """Write a model to one file, after checking that it predicts as the model does.

    An existing file is replaced. Raises `ExportMismatch`, and writes nothing, if any probability
    differs by more than 1e-4.
    """
    if file.is_dir():
        raise ValueError(f"{file} is a folder; name a file to write to.")
    pixels = _stored_images(model)
    learner = _float32_copy(model.learner)
    means = learner.prediction_means()
    pipeline = _Pipeline(learner, means, model.temperature).eval()
    write = _to_onnx if to == "onnx" else _to_torch
    with _quiet(), torch.no_grad():
        content, run = write(pipeline, pixels[:1].repeat(2, 1, 1, 1), _metadata(model))
    differences = []
    for start in range(0, len(pixels), _BATCH):
        part = pixels[start : start + _BATCH]
        wanted = (learner.scores(PixelImages(part), means) / model.temperature).softmax(1)
        differences.append((run(part) - wanted).abs().max())
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
        "preprocessing": "RGB, upright, transparent parts white; the shorter side to "
        "resize_shorter_side, bilinear; the centre of image_size x image_size; pixels as uint8 "
        "[n, 3, H, W]. Normalisation is inside.",
        "outputs": "probabilities [n, labels], calibrated, and the scores they are made of",
        "network": model.config.network,
        "method": model.learner.method.name,
        "step": model.step,
        "densekd": __version__,
    }


def _stored_images(model: Model) -> Tensor:
    """The model's test images and exemplars, uint8 ``[n, 3, H, W]``."""
    stored = [model.test_images().images]
    if len(model.learner.memory):
        stored.append(model.learner.memory.exemplars().images)
    pixels = [images.pixels for images in stored if isinstance(images, PixelImages) and len(images)]
    if not pixels:
        raise ValueError(
            f"{model.folder} keeps no images to check an export with; teach it with exemplars, or "
            "with enough images to test on."
        )
    return torch.cat(pixels)


def _float32_copy(learner: Learner) -> Learner:
    """A copy on the CPU that computes in 32 bits, whatever precision the model is trained in."""
    copied = copy.copy(learner)
    engine = Engine("cpu", precision="32")
    augment = copy.deepcopy(learner.settings.augment).cpu()
    copied.settings = replace(learner.settings, engine=engine, augment=augment)
    copied.network = copy.deepcopy(learner.network).cpu()
    return copied


def _to_onnx(pipeline: _Pipeline, example: Tensor, about: dict[str, Any]) -> tuple[bytes, _Run]:
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


def _to_torch(pipeline: _Pipeline, example: Tensor, about: dict[str, Any]) -> tuple[bytes, _Run]:
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
""",
    "torch": """import json

import numpy as np
import torch
from PIL import Image, ImageOps

texts = {{"{metadata}": ""}}
model = torch.export.load({file}, extra_files=texts).module()
about = json.loads(texts["{metadata}"])
labels, size, side = (about[k] for k in ("labels", "image_size", "resize_shorter_side"))
""",
}
_READ = """
image = ImageOps.exif_transpose(Image.open({image})).convert("RGBA")
image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
width, height = (int(side * length / min(image.size)) for length in image.size)
left, top = round((width - size) / 2), round((height - size) / 2)
x, y = image.width / width, image.height / height
box = left * x, top * y, min((left + size) * x, image.width), min((top + size) * y, image.height)
crop = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
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
