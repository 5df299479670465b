"""Models of the library transformers as backbones."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from torch import Tensor, nn

from densekd.config.schema import resolve
from densekd.files import to_json
from densekd.nn.network import own_statistics
from densekd.nn.registry import describe_backbone, make_backbone, rebuild_backbone
from densekd.nn.transformers_backbone import Pretrained
from densekd.runs.build import make_learner
from densekd.training.engine import Engine
from densekd.training.learner import Learner, Settings

from support.datasets import dataset

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 16,
    "patch_size": 4,
}
IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
# Only some of its functions are annotated.
LIBRARY: Any = transformers
ENGINE = Engine("cpu", precision="32")


def vit() -> Any:
    return transformers.ViTModel(transformers.ViTConfig(**SMALL))


def vit_classifier() -> Any:
    return transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL))


def resnet() -> Any:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    )
    return LIBRARY.ResNetModel(config)


def swin() -> Any:
    config = transformers.SwinConfig(
        embed_dim=16, depths=[1, 1], num_heads=[2, 2], image_size=32, window_size=4
    )
    return LIBRARY.SwinModel(config)


def clip() -> Any:
    text = {k: v for k, v in SMALL.items() if k not in ("image_size", "patch_size")}
    config = transformers.CLIPConfig(
        text_config={**text, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1},
        vision_config=SMALL,
        projection_dim=24,
    )
    return transformers.CLIPModel(config)


def bert() -> Any:
    sizes = {k: v for k, v in SMALL.items() if k not in ("image_size", "patch_size")}
    return LIBRARY.BertModel(transformers.BertConfig(vocab_size=50, **sizes))


def saved(make: Callable[[], Any], folder: Path) -> Any:
    """Save a randomly initialised model to a folder, without the library's output."""
    settings = LIBRARY.utils.logging
    settings.disable_progress_bar()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make().eval()
    model.save_pretrained(folder)
    settings.enable_progress_bar()
    return model


def pooled_vit(model: Any, images: Tensor) -> Tensor:
    pooled: Tensor = model(pixel_values=images).pooler_output
    return pooled.flatten(1)


@pytest.mark.parametrize(("make", "width"), [(vit, 32), (resnet, 16)])
def test_pooled_features_are_the_models_own(
    make: Callable[[], Any], width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved(make, tmp_path)
    capsys.readouterr()
    backbone = make_backbone(f"hf:{tmp_path}")
    assert capsys.readouterr() == ("", "")
    assert isinstance(backbone, Pretrained)
    assert backbone.width == width
    with torch.no_grad():
        features = backbone.eval()(IMAGES)
        torch.testing.assert_close(features.pooled, pooled_vit(model, IMAGES))
    assert features.maps == ()
    assert own_statistics(backbone) is None


def test_without_a_trained_pooler_the_class_token_counts(tmp_path: Path) -> None:
    """A model saved with a classifier has no pooler; a random one would ruin the features."""
    model = saved(vit_classifier, tmp_path)
    backbone = make_backbone(f"hf:{tmp_path}")
    assert isinstance(backbone, Pretrained)
    with torch.no_grad():
        wanted = model.vit(pixel_values=IMAGES).last_hidden_state[:, 0]
        torch.testing.assert_close(backbone(IMAGES).pooled, wanted)
    assert not any("pooler" in name for name, _ in backbone.named_parameters())


@pytest.mark.parametrize(("make", "width"), [(swin, 32), (clip, 32)])
def test_other_families(make: Callable[[], Any], width: int, tmp_path: Path) -> None:
    model = saved(make, tmp_path)
    backbone = make_backbone(f"hf:{tmp_path}")
    assert isinstance(backbone, Pretrained)
    assert backbone.width == width
    seen = model.vision_model if make is clip else model
    images = torch.randn(2, 3, *(backbone.preprocessing.size or (0, 0)))
    with torch.no_grad():
        torch.testing.assert_close(backbone(images).pooled, pooled_vit(seen, images))


@pytest.mark.parametrize("make", [vit, vit_classifier, resnet, swin, clip])
def test_it_is_rebuilt_from_its_description(
    make: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(make, tmp_path / "saved")
    name = f"hf:{tmp_path / 'saved'}"
    backbone = make_backbone(name)
    assert isinstance(backbone, Pretrained)
    facts = json.loads(to_json(describe_backbone(name, backbone)))
    (tmp_path / "saved").rename(tmp_path / "gone")
    monkeypatch.setattr("socket.socket.connect", None)
    rebuilt = rebuild_backbone(facts, shapes(backbone))
    assert isinstance(rebuilt, Pretrained)
    rebuilt.load_state_dict(backbone.state_dict())
    assert rebuilt.preprocessing == backbone.preprocessing
    images = torch.randn(2, 3, *(backbone.preprocessing.size or (16, 16)))
    with torch.no_grad():
        torch.testing.assert_close(rebuilt(images).pooled, backbone(images).pooled)


def shapes(backbone: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in backbone.state_dict().items()}


@pytest.mark.parametrize(
    "forged",
    [
        {"config": {"hidden_size": 10**7}},
        {"config": {"num_hidden_layers": 10**9}},
        {"config": {"num_hidden_layers": 3}},
        {"config": {"num_attention_heads": 0}},
        {"config": {"image_size": 10**6, "patch_size": 1}},
        {"config": {"model_type": "nothing"}},
        {"config": {"model_type": None}},
        {"config": {"hidden_act": "__import__('os')"}},
        {"preprocessing": {"size": [10**6, 10**6]}},
        {"preprocessing": {"size": ["a", "b"]}},
        {"preprocessing": {"size": 7}},
    ],
)
def test_a_forged_description_is_refused(forged: dict[str, Any], tmp_path: Path) -> None:
    """Nothing is built that is larger than the weights that come with it."""
    saved(vit, tmp_path)
    backbone = make_backbone(f"hf:{tmp_path}")
    assert isinstance(backbone, Pretrained)
    facts = json.loads(json.dumps(describe_backbone("hf:some/model", backbone)))
    for key, changes in forged.items():
        facts[key] |= changes
    with pytest.raises(ValueError, match="hf:some/model can't be built as it is described"):
        rebuild_backbone(facts, shapes(backbone))


MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]


@pytest.mark.parametrize(
    ("told", "size"),
    [
        ({"size": {"height": 16, "width": 16}}, (16, 16)),
        ({"size": {"shortest_edge": 24}, "crop_size": {"height": 20, "width": 18}}, (20, 18)),
        ({"size": 28}, (28, 28)),
        ({"size": {"shortest_edge": 12}}, (12, 12)),
        ({"do_normalize": False}, None),
        ({"do_normalize": False, "do_rescale": False}, None),
    ],
)
def test_images_are_prepared_as_the_model_was_trained(
    told: dict[str, Any], size: tuple[int, int] | None, tmp_path: Path
) -> None:
    model = saved(resnet, tmp_path)
    processor = {"image_processor_type": "X", "image_mean": MEAN, "image_std": STD, **told}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    backbone = make_backbone(f"hf:{tmp_path}")
    assert isinstance(backbone, Pretrained)
    assert backbone.preprocessing.size == size
    with torch.no_grad():
        images = IMAGES
        if size is not None:
            # Smaller and larger images are resized.
            images = nn.functional.interpolate(
                IMAGES, size, mode="bilinear", antialias=size[0] < 16
            )
        torch.testing.assert_close(backbone(IMAGES).pooled, pooled_vit(model, images))
    own = own_statistics(backbone)
    if "do_normalize" in told:
        assert own == ((0, 0, 0), (1 / 255 if "do_rescale" in told else 1,) * 3)
    else:
        assert own == (tuple(MEAN), tuple(STD))
    # Both the run and the learner normalise by it.
    default = dataset().mean, dataset().std
    made = make_learner(resolve({"network": f"hf:{tmp_path}"}), default, ENGINE)
    assert (made.settings.augment.mean, made.settings.augment.std) == own
    learner = Learner(f"hf:{tmp_path}", settings=Settings(engine=ENGINE), epochs=1)
    learner.fit(dataset(2).train.images, [0, 1] * 6)
    assert (learner.settings.augment.mean, learner.settings.augment.std) == own


def test_a_pretrained_network_is_trained_and_restored(tmp_path: Path) -> None:
    saved(vit, tmp_path / "vit")
    parts = f"hf:{tmp_path / 'vit'}", "rdkd", 2, Settings(engine=ENGINE)
    learner = Learner(*parts, epochs=2)
    before = {k: x.clone() for k, x in learner.network.backbone.state_dict().items()}
    images = dataset(4).train.images
    learner.fit(images, [0, 1, 2, 3] * 6).partial_fit(images, ["a", "b", "c", "d"] * 6)
    after = learner.network.backbone.state_dict()
    assert any(not torch.equal(x, after[k]) for k, x in before.items())
    learner.save(tmp_path / "saved")
    loaded = Learner.load(tmp_path / "saved")
    assert torch.equal(loaded.logits(images), learner.logits(images))


def test_a_model_that_takes_no_images_is_refused(tmp_path: Path) -> None:
    saved(bert, tmp_path)
    with pytest.raises(ValueError, match=r"can't be loaded \(it doesn't take images\)"):
        make_backbone(f"hf:{tmp_path}")


def test_only_safetensors_are_read(tmp_path: Path) -> None:
    model = saved(resnet, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"can't be loaded \(.*model.safetensors"):
        make_backbone(f"hf:{tmp_path}")


def test_missing_weights_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = saved(resnet, tmp_path)
    weights = model.state_dict()
    lost = next(k for k in weights if k.endswith("convolution.weight"))
    del weights[lost]
    model.save_pretrained(tmp_path, state_dict=weights)
    make_backbone(f"hf:{tmp_path}")
    assert f"lacks 1 weights, such as {lost}" in caplog.text


def test_an_unknown_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"hf:nobody/nothing can't be loaded \(.*check its name"):
        make_backbone("hf:nobody/nothing")
    for folder in ("./nowhere", "~/nowhere", "/nowhere"):
        with pytest.raises(ValueError, match=rf"hf:{folder} can't be loaded: there is no such"):
            make_backbone(f"hf:{folder}")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"needs .* `pip install 'densekd\[hf\]'`\."):
        make_backbone("hf:nobody/nothing")
