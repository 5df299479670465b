"""Pretrained image models from the transformers library as backbones."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from densekd.checks import missing_extra
from densekd.files import expand_home
from densekd.nn.network import Features, Preprocessing
from densekd.text import first_line

logger = logging.getLogger(__name__)

_LARGEST_IMAGE = 1024  # pixels of a side, for a network that someone else described

_local_only = ContextVar("_local_only", default=False)


@contextmanager
def only_local_files() -> Iterator[None]:
    """Within this context, download nothing: only models that were downloaded before are found."""
    token = _local_only.set(True)
    try:
        yield
    finally:
        _local_only.reset(token)


class Pretrained(nn.Module):
    """A transformers model as a backbone; it resizes images, but they must be normalised already.

    With ``pools`` it uses the model's ``pooler_output``, otherwise (or if the model has none) the
    class token, or the mean of all tokens.
    """

    def __init__(self, model: nn.Module, preprocessing: Preprocessing, pools: bool = True) -> None:
        super().__init__()
        self.model = model
        self.preprocessing = preprocessing
        self.pools = pools
        self.has_class_token = any(
            name.endswith(("cls_token", "class_embedding")) for name, _ in model.named_parameters()
        )
        height, width = preprocessing.size or (224, 224)
        with torch.no_grad():
            self.width: int = self(torch.zeros(1, 3, height, width)).pooled.shape[1]

    def forward(self, images: Tensor) -> Features:
        """``[B, 3, H, W]`` to pooled features ``[B, D]``; there are no maps."""
        size = self.preprocessing.size
        if size is not None and tuple(images.shape[2:]) != size:
            shrinks = images.shape[2] > size[0] or images.shape[3] > size[1]
            images = interpolate(images, size, mode="bilinear", antialias=shrinks)
        seen = self.model(pixel_values=images)
        pooled = seen.get("pooler_output") if self.pools else None
        if pooled is not None:
            return Features(pooled.flatten(1), ())
        last: Tensor = seen["last_hidden_state"]
        if last.ndim == 4:
            return Features(last.mean((2, 3)), ())
        return Features(last[:, 0] if self.has_class_token else last.mean(1), ())

    def facts(self) -> dict[str, Any]:
        """What `rebuild_pretrained` needs, for JSON."""
        config: Any = self.model.config
        return {
            # The library's own JSON, since label names have numbers as keys, which JSON can't hold.
            "config": json.loads(config.to_json_string(use_diff=False)),
            "preprocessing": self.preprocessing._asdict(),
            "pools": self.pools,
        }


def pretrained(name: str) -> Pretrained:
    """Load a model by its name on the hub, or from a folder that ``save_pretrained`` wrote.

    Only safetensors are read, and no code of the model is run.
    """
    transformers = _transformers(f"hf:{name}")
    folder = expand_home(name)
    if not folder.is_dir() and (folder.is_absolute() or name.startswith(".")):
        raise ValueError(f"hf:{name} can't be loaded: there is no such folder.")
    place = str(folder) if folder.is_dir() else name
    try:
        with _quiet(transformers), _offline(_local_only.get()):
            model, report = transformers.AutoModel.from_pretrained(
                place,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
            preprocessing = _preprocessing(transformers, place, model.config)
        return _wrap(name, model, preprocessing, report["missing_keys"])
    except Exception as error:  # the library raises many kinds of errors
        raise ValueError(
            f"hf:{name} can't be loaded ({first_line(error)}); check its name and the "
            "network, or name the folder of a saved image model."
        ) from error


def rebuild_pretrained(
    facts: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> Pretrained:
    """The network that `Pretrained.facts` describes, with random weights; nothing is downloaded.

    The description may be a stranger's, so nothing is built that is larger than the weights.

    Args:
        facts: the description.
        shapes: those of the weights, by their names in `Pretrained`.
    """
    transformers = _transformers(facts["network"])
    try:
        settings = {key: value for key, value in facts["config"].items() if key != "auto_map"}
        preprocessing = Preprocessing(
            *(None if value is None else tuple(value) for value in facts["preprocessing"].values())
        )
        _check_description(settings, preprocessing, len(shapes))
        config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
        with _quiet(transformers), _offline(True):
            with torch.device("meta"):  # which takes no memory
                draft = _without_pooler(transformers.AutoModel.from_config(config), facts["pools"])
            if {f"model.{k}": tuple(x.shape) for k, x in draft.state_dict().items()} != shapes:
                raise ValueError("its weights are of other shapes")
            model = _without_pooler(transformers.AutoModel.from_config(config), facts["pools"])
        return Pretrained(model.float().eval(), preprocessing, facts["pools"])
    except Exception as error:  # the library raises many kinds of errors
        raise ValueError(
            f"{facts['network']} can't be built as it is described ({first_line(error)}); bring "
            "back a copy of the model."
        ) from error


def _check_description(settings: object, preprocessing: Preprocessing, weights: int) -> None:
    """Raise if there are more layers than weights or too large images, which would take long."""
    size = preprocessing.size
    if size is not None and not all(type(n) is int and 1 <= n <= _LARGEST_IMAGE for n in size):
        raise ValueError(f"an image size of {size} is not from 1 to {_LARGEST_IMAGE}")
    items = list(settings.items()) if isinstance(settings, dict) else []
    for key, value in items:
        numbers = value if isinstance(value, list) else [value]
        counts = any(word in key for word in ("layers", "depth", "blocks"))
        if counts and any(isinstance(n, int | float) and n > weights for n in numbers):
            raise ValueError(f"{key}={value!r} is more than the {weights} weights there are")
        items += list(value.items()) if isinstance(value, dict) else []


def _without_pooler(model: Any, pools: bool) -> Any:
    if not pools:
        model.pooler = None
    return model


def _transformers(network: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise missing_extra(network, "hf") from error
    return transformers


def _wrap(name: str, model: Any, preprocessing: Preprocessing, missing: list[str]) -> Pretrained:
    if model.main_input_name != "pixel_values":
        # Such as CLIP, which takes text and images.
        model = getattr(model, "vision_model", None)
        if model is None:
            raise ValueError("it doesn't take images")
    # Models saved with a classifier lack the pooler, which would be drawn at random here.
    pools = not any("pooler" in key for key in missing)
    model = _without_pooler(model, pools)
    lost = [key for key in missing if "pooler" not in key]
    if lost:
        logger.warning(
            "hf:%s lacks %d weights, such as %s; they are random.", name, len(lost), lost[0]
        )
    return Pretrained(model.float().eval(), preprocessing, pools)


def _preprocessing(transformers: Any, place: str, config: Any) -> Preprocessing:
    """Read from the model's files what images it expects."""
    try:
        given, _ = transformers.ImageProcessingMixin.get_image_processor_dict(place)
    except OSError:  # there is no such file
        given = {}
    vision = getattr(config, "vision_config", config)
    size = _size(given.get("crop_size") or given.get("size") or getattr(vision, "image_size", None))
    if not given.get("do_normalize", True):
        # The model takes pixels from 0 to 1, or from 0 to 255.
        std = 1.0 if given.get("do_rescale", True) else 1 / 255
        return Preprocessing(size, (0.0, 0.0, 0.0), (std, std, std))
    if "image_mean" not in given:
        return Preprocessing(size)
    return Preprocessing(size, tuple(given["image_mean"]), tuple(given["image_std"]))


def _size(given: object) -> tuple[int, int] | None:
    """Read height and width from any of the forms that configurations use."""
    match given:
        case {"height": int(height), "width": int(width)} | [int(height), int(width)]:
            return height, width
        case {"shortest_edge": int(side)} | int(side):
            return side, side
    return None


@contextmanager
def _offline(offline: bool) -> Iterator[None]:
    """If ``offline``, keep the hub's library from sending anything, even which program asks."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or offline
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Turn off the library's progress bars and reports."""
    settings = transformers.utils.logging
    verbosity, bars = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity_error()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        settings.set_verbosity(verbosity)
        if bars:
            settings.enable_progress_bar()
