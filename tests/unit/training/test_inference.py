"""Logits, features and class means by an untrained network, against independent definitions."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from densekd.data.dataset import PixelImages, Split
from densekd.nn.classifier import CosineClassifier
from densekd.nn.network import Features, Network
from densekd.training import inference
from densekd.training.engine import Engine
from densekd.training.inference import class_means, cosines, extract_features, infer

import reference
from support.tiny_learners import tiny_settings

CLASSES = 6
SETTINGS = tiny_settings()


class AsymmetricBackbone(nn.Module):
    """Gives an image and its mirror image different features."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 9
        self.layers = nn.Sequential(nn.Conv2d(3, 9, 8), nn.BatchNorm2d(9))

    def forward(self, images: Tensor) -> Features:
        return Features(self.layers(images).flatten(1), ())


def network() -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = Network(AsymmetricBackbone(), CosineClassifier(9))
        made.grow(CLASSES)
    return made


def noise(counts: list[int]) -> Split:
    """Random images, so many of each class."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (len(labels), 3, 8, 8), generator=generator)
    return Split(PixelImages(pixels.to(torch.uint8)), labels)


def array(tensor: Tensor) -> reference.Array:
    return tensor.detach().double().numpy()


def mirrored(split: Split) -> PixelImages:
    assert isinstance(split.images, PixelImages)
    return PixelImages(split.images.pixels.flip(-1))


def test_outputs_are_those_of_the_network_in_evaluation_mode() -> None:
    each, data = network(), noise([3] * CLASSES)
    assert isinstance(data.images, PixelImages)
    given = infer(each, data.images, SETTINGS)
    each.eval()
    wanted = each(SETTINGS.augment.normalise(data.images.pixels))
    torch.testing.assert_close(given.logits, wanted.logits)
    torch.testing.assert_close(given.features, wanted.features)
    torch.testing.assert_close(extract_features(each, data, SETTINGS), wanted.features)


def test_flipped_gives_the_outputs_of_mirror_images() -> None:
    each, data = network(), noise([3] * CLASSES)
    flipped = infer(each, data.images, SETTINGS, flipped=True)
    assert torch.equal(flipped.features, infer(each, mirrored(data), SETTINGS).features)
    assert not torch.equal(flipped.features, infer(each, data.images, SETTINGS).features)


def test_inference_changes_nothing_and_does_not_depend_on_the_batch() -> None:
    each, images = network().train(), noise([8] * CLASSES).images
    before = {name: x.clone() for name, x in each.state_dict().items()}
    first, again = (infer(each, images, SETTINGS) for _ in range(2))
    assert each.training
    assert torch.equal(first.logits, again.logits)
    assert all(torch.equal(each.state_dict()[name], x) for name, x in before.items())
    few = infer(each, images.take(torch.arange(5)), SETTINGS)
    torch.testing.assert_close(few.features, first.features[:5])
    many = infer(each, images.take(torch.arange(48).repeat(12)), SETTINGS)  # several batches
    torch.testing.assert_close(many.logits, first.logits.repeat(12, 1))


def test_no_images_give_empty_outputs() -> None:
    each, nothing = network(), noise([0] * CLASSES)
    assert [list(x.shape) for x in infer(each, nothing.images, SETTINGS)] == [[0, 6], [0, 9]]
    assert extract_features(each, nothing, SETTINGS).shape == (0, 9)


def test_empty_outputs_are_on_the_device_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an accelerator, where a rank may have no test image."""
    each, nothing = network(), noise([0] * CLASSES)
    monkeypatch.setattr(Engine, "device", torch.device("meta"))
    monkeypatch.setattr(inference, "batch_size", lambda _: 1)
    outputs = [*infer(each, nothing.images, SETTINGS), extract_features(each, nothing, SETTINGS)]
    assert all(x.device.type == "meta" for x in outputs)


def test_class_means_are_of_exemplars_and_their_mirror_images() -> None:
    """Also when classes have different numbers of exemplars."""
    each, exemplars = network(), noise([5, 5, 2, 5, 1, 3])
    given, labels = array(class_means(each, exemplars, SETTINGS)), exemplars.labels.tolist()
    plain = array(infer(each, exemplars.images, SETTINGS).features)
    flipped = array(infer(each, mirrored(exemplars), SETTINGS).features)
    np.testing.assert_allclose(given, reference.class_means(plain, flipped, labels), atol=1e-5)
    np.testing.assert_allclose((given**2).sum(axis=1), 1, rtol=1e-5)
    for wrong in ((plain, plain), (flipped, flipped)):
        assert np.abs(given - reference.class_means(*wrong, labels)).max() > 0.01


def test_the_nearest_mean_is_nearest_at_any_scale() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(50, 4, generator=generator)
    means = nn.functional.normalize(torch.randn(7, 4, generator=generator))
    wanted = reference.nearest_mean(array(features), array(means))
    assert cosines(features, means).argmax(1).tolist() == wanted
    assert cosines(features * 100, means).argmax(1).tolist() == wanted
    assert len(set(wanted)) == 7


def test_the_batch_size_changes_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    each, data = network(), noise([23] * CLASSES)
    assert inference.batch_size(torch.device("cuda")) == 256
    assert inference.batch_size(torch.device("cpu")) == min(256, 64 * torch.get_num_threads())
    found = []
    for size in (7, 64, 256):
        monkeypatch.setattr(inference, "batch_size", lambda _, size=size: size)
        found.append(infer(each, data.images, SETTINGS))
    for other in found[1:]:
        torch.testing.assert_close(found[0].logits, other.logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found[0].features, other.features, atol=1e-5, rtol=1e-5)
