"""Turn an exported model to 8 bits, smaller and faster, and compare it with the original."""

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from densekd.data.dataset import PixelImages, Split
from densekd.model.model import Model

_BATCH = 8
_CALIBRATED_ON = 128  # images: enough for the range of each layer
_COMPARED_ON = 1000  # images: all would take too long, and too much memory, with many classes
_TIMED, _ROUNDS = 32, 5
LEAST_AGREEMENT = 0.95


class PoorInt8(ValueError):
    """The model in 8 bits too often predicts another class."""


class Int8Comparison(NamedTuple):
    """A model in 8 bits compared with 32, both with the head fitted without the test images."""

    images: int
    held_out: bool  # whether they are the test images; if not, other kept images
    accuracy: tuple[float, float] | None  # in 32 and in 8 bits; None without test images
    unknown: tuple[float, float]  # the share of images called unknown, in 32 and in 8 bits
    agreement: float  # the share of images that get the same class
    speed: float  # how many times as fast as in 32 bits
    bytes: int  # of the model in 32 bits


def quantise(content: bytes, model: Model) -> bytes:
    """Turn the backbone of an exported ONNX model to 8 bits, calibrated on kept images.

    The head and the rule for unknown images stay exact, since they take hardly any time.
    """
    import onnx
    from onnxruntime import quantization  # type: ignore[import-untyped]

    proto = onnx.load_from_string(content)

    class Batches(quantization.CalibrationDataReader):  # type: ignore[misc]
        parts = iter(_calibration_images(model).split(_BATCH))

        def get_next(self) -> dict[str, Any] | None:
            return next(({"pixels": part.numpy()} for part in self.parts), None)

    with tempfile.TemporaryDirectory(prefix="densekd-int8-") as place:
        file = Path(place, "int8.onnx")
        quantization.quantize_static(
            proto,
            file,
            Batches(),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            # Signed activations are much slower on Intel processors.
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            nodes_to_exclude=[node.name for node in proto.graph.node if not _in_backbone(node)],
        )
        made = onnx.load(file)
    props = {each.key: each.value for each in proto.metadata_props}
    onnx.helper.set_model_props(made, {**props, "precision": "int8"})
    return bytes(made.SerializeToString())


def compare_int8(content: bytes, int8: bytes, model: Model) -> Int8Comparison:
    """Compare an ONNX model with the one in 8 bits; raises `PoorInt8` if they differ too often."""
    stored = model.stored_images(tested=True, most=_COMPARED_ON)
    held_out = len(stored) > 0
    if not held_out:
        stored = model.stored_images(tested=False, most=_COMPARED_ON)
    pixels = _pixels(stored)
    sessions = [_session(each, model) for each in (content, int8)]
    (shares, known), (shares8, known8) = (_run(session, pixels) for session in sessions)
    best, best8 = shares.argmax(1), shares8.argmax(1)
    agreement = _share(best == best8)
    if agreement < LEAST_AGREEMENT:
        raise PoorInt8(
            f"In 8 bits the model predicts the same class for only {100 * agreement:.1f} % of "
            f"{len(pixels)} images, less than {100 * LEAST_AGREEMENT:.0f} %, so nothing was "
            "written; export it without --int8."
        )
    return Int8Comparison(
        len(pixels),
        held_out,
        (_share(best == stored.labels), _share(best8 == stored.labels)) if held_out else None,
        (_share(~known), _share(~known8)),
        agreement,
        _speed(sessions[0], sessions[1], pixels[:_TIMED]),
        len(content),
    )


def _calibration_images(model: Model) -> Tensor:
    """Up to 128 kept images of all classes; test images only if there are no others."""
    images = model.stored_images(tested=False, most=_CALIBRATED_ON)
    return _pixels(images or model.stored_images(tested=True, most=_CALIBRATED_ON))


def _pixels(split: Split) -> Tensor:
    assert isinstance(split.images, PixelImages)
    return split.images.pixels


def _in_backbone(node: Any) -> bool:
    """Whether torch's exporter made this node from the backbone of a pipeline."""
    return any(
        each.key == "pkg.torch.onnx.name_scopes" and ".backbone'" in each.value
        for each in node.metadata_props
    )


def _session(content: bytes, model: Model) -> Any:
    """Open an ONNX model, with the weights that were fitted without the test images."""
    import onnx
    import onnxruntime

    proto, weights = onnx.load_from_string(content), model.evaluation_weights()
    for each in proto.graph.initializer:
        if each.name in weights:
            each.CopyFrom(onnx.numpy_helper.from_array(weights.pop(each.name).numpy(), each.name))
    assert not weights
    return onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )


def _run(session: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    parts = [
        session.run(["probabilities", "known"], {"pixels": part.numpy()})
        for part in pixels.split(_BATCH)
    ]
    probabilities, known = (
        torch.cat([*map(torch.from_numpy, x)]) for x in zip(*parts, strict=True)
    )
    return probabilities, known


def _speed(session: Any, int8: Any, pixels: Tensor) -> float:
    """How many times as fast ``int8`` is; they run in turns, so that other work slows both."""

    def seconds(each: Any) -> float:
        start = time.perf_counter()
        _run(each, pixels)
        return time.perf_counter() - start

    return median(seconds(session) / seconds(int8) for _ in range(_ROUNDS))


def _share(chosen: Tensor) -> float:
    return float(chosen.double().mean())
