"""A model as one file that runs without this package: ONNX, or torch's own format."""

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

Format = Literal["onnx", "torch"]
# Takes uint8 [n, 3, H, W] and gives probabilities [n, classes].
Run = Callable[[Tensor], Tensor]

ENDINGS: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2"}
METADATA = "densekd.json"

_TOLERANCE = 1e-4
_AT_ONCE = 64


class Mismatch(ValueError):
    """What was exported doesn't predict as the model does."""


@dataclass(frozen=True)
class Exported:
    """What was exported.

    Args:
        file: where it is.
        bytes: how many it has.
        images: how many images of the model it was run on.
        difference: the largest of any probability from the model's.
    """

    file: Path
    bytes: int
    images: int
    difference: float


class Deployed(nn.Module):
    """All that lies between pixels and probabilities.

    Args:
        learner: what was learned.
        means: the class means ``[classes, D]``, if the method predicts by them.
        temperature: what scores are divided by before the softmax.
    """

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


def export(model: Model, to: Format, file: Path, on_progress: OnProgress | None = None) -> Exported:
    """Write a model to one file, once it was seen to predict as the model does.

    Args:
        model: that was opened.
        to: the kind of file.
        file: where to write it; a file that is there is replaced.
        on_progress: called with the number of images compared so far, and of all.

    Raises:
        Mismatch: a probability differs by more than 1e-4. Then nothing is written.
    """
    if file.is_dir():
        raise ValueError(f"{file} is a folder; name a file to write to.")
    pixels = _images(model)
    learner = _plain(model.learner)
    means = learner.means_to_predict_by()
    deployed = Deployed(learner, means, model.temperature).eval()
    write = _to_onnx if to == "onnx" else _to_torch
    with _quiet(), torch.no_grad():
        content, run = write(deployed, pixels[:1].repeat(2, 1, 1, 1), metadata(model))
    worst = 0.0
    for start in range(0, len(pixels), _AT_ONCE):
        part = pixels[start : start + _AT_ONCE]
        wanted = (learner.scores(PixelImages(part), means) / model.temperature).softmax(1)
        worst = max(worst, float((run(part) - wanted).abs().max()))
        if on_progress is not None:
            on_progress(min(start + _AT_ONCE, len(pixels)), len(pixels))
    if not worst <= _TOLERANCE:
        raise Mismatch(
            f"The export to {to} differs from the model by {worst:.1e} on its own images, more "
            f"than {_TOLERANCE:.0e}, so nothing was written; try another version of torch."
        )
    write_atomically(file, content)
    return Exported(file, len(content), len(pixels), worst)


def metadata(model: Model) -> dict[str, Any]:
    """What one has to know to use an exported model, which is written into it."""
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


def _images(model: Model) -> Tensor:
    """Real images, uint8 ``[n, 3, H, W]``: all that the model keeps."""
    kept = [model.kept().images]
    if len(model.learner.memory):
        kept.append(model.learner.memory.exemplars().images)
    pixels = [images.pixels for images in kept if isinstance(images, PixelImages)]
    found = torch.cat([part for part in pixels if len(part)] or [torch.empty(0)])
    if len(found) == 0:
        raise ValueError(
            f"{model.folder} keeps no images that an export could be checked with; teach it with "
            "exemplars, or with images to test on."
        )
    return found


def _plain(learner: Learner) -> Learner:
    """A copy on the CPU that computes in 32 bits, whatever the model is trained with."""
    copied = copy.copy(learner)
    engine = Engine("cpu", precision="32")
    augment = copy.deepcopy(learner.settings.augment).cpu()
    copied.settings = replace(learner.settings, engine=engine, augment=augment)
    copied.network = copy.deepcopy(learner.network).cpu()
    return copied


def _to_onnx(deployed: Deployed, example: Tensor, about: dict[str, Any]) -> tuple[bytes, Run]:
    try:
        import onnx
        import onnxruntime  # type: ignore[import-untyped]
        import onnxscript  # noqa: F401 - torch needs it, and says so less clearly
    except ImportError as error:
        raise ValueError(
            "An export to ONNX needs further packages; install them with "
            "`pip install densekd[onnx]`."
        ) from error

    program = torch.onnx.export(
        deployed,
        (example,),
        dynamo=True,
        input_names=["pixels"],
        output_names=["probabilities", "scores"],
        dynamic_shapes={"pixels": {0: torch.export.Dim("n")}},
        verbose=False,
    )
    assert program is not None
    proto = program.model_proto
    # All values are text there.
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in about.items()}
    onnx.helper.set_model_props(proto, texts)
    content = proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(pixels: Tensor) -> Tensor:
        (probabilities,) = session.run(["probabilities"], {"pixels": pixels.numpy()})
        return torch.from_numpy(probabilities)

    return content, run


def _to_torch(deployed: Deployed, example: Tensor, about: dict[str, Any]) -> tuple[bytes, Run]:
    shapes = {"pixels": {0: torch.export.Dim("n")}}
    program = torch.export.export(deployed, (example,), dynamic_shapes=shapes)
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
    """Mutes what torch's exporters have to say of themselves."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
