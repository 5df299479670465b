"""Images and labels of all kinds in, names out, through `Learner`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from densekd.config.schema import resolve
from densekd.data.augment import Augment
from densekd.data.convert import ImageInputs, as_images
from densekd.data.dataset import FileImages, PixelImages
from densekd.data.memory import ExemplarMemory, Quota
from densekd.methods.paper import DenseOptions
from densekd.methods.registry import make_method
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.terms import Distil, RatioWeight
from densekd.nn.network import Features
from densekd.training.callbacks import Callback, Stopped
from densekd.training.checkpoint import save_state
from densekd.training.engine import Engine
from densekd.training.learner import Learner, Settings
from densekd.training.settings import InferredAugment

from support.tiny_learners import TinyBackbone, same_state

Array = NDArray[Any]
ENGINE = Engine("cpu", precision="32")
COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200), "7": (90, 90, 90)}


def images(*names: str, per_class: int = 12, size: int = 8) -> tuple[Array, list[str]]:
    """Images of one colour with noise, uint8 [n, H, W, 3], and their names, class by class."""
    noise = np.random.default_rng(len(names)).integers(-25, 25, (per_class, size, size, 3))
    rows = [np.array(COLOURS[name]) + noise for name in names]
    labels = [name for name in names for _ in range(per_class)]
    return np.concatenate(rows).astype(np.uint8), labels


class Mean(nn.Module):
    """An ordinary module: it returns a tensor and has no ``width``."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Tanh())

    def forward(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.layer(pixels.mean((2, 3)))
        return features


def learner(**parts: Any) -> Learner:
    given = {"settings": Settings(engine=ENGINE), "epochs": 8, "memory": 4, **parts}
    return Learner(given.pop("backbone", Mean()), **given)


def colourful(each: Learner) -> Learner:
    return each.fit(*images("red", "green")).partial_fit(*images("blue", "7"))


def test_colours_are_learned_and_named() -> None:
    each = learner(epochs=30)
    assert each.fit(*images("red", "green")) is each
    assert each.score(*images("red", "green")) == 1.0
    each.partial_fit(*images("blue"))
    assert each.classes_.tolist() == ["green", "red", "blue"]
    X, y = images("blue", "red", "green")
    assert each.predict(X) == y
    probabilities = each.predict_proba(X)
    assert probabilities.shape == (36, 3)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert each.classes_[probabilities.argmax(1)].tolist() == y
    assert each.score(X, ["red"] * 36) == pytest.approx(1 / 3)
    seen = each.logits(as_images(X)).softmax(1).numpy()
    np.testing.assert_array_equal(probabilities, seen)


def test_fitting_again_starts_over_with_the_same_result() -> None:
    each = learner(backbone=TinyBackbone(), memory=ExemplarMemory(Quota(3)))
    fitted = []
    for _ in range(2):
        fitted.append(each.fit(*images("red", "green")).state())
        assert each.classes_.tolist() == ["green", "red"]
        assert (each.sizes, each.memory.classes, len(each.memory)) == ((2,), 2, 6)
        each.partial_fit(*images("blue", "7"))
        assert each.classes_.tolist() == ["green", "red", "7", "blue"]
    assert same_state(*fitted)


def test_the_seed_initialises_a_network_given_by_name() -> None:
    X, y = images("red", "green", per_class=4)
    names = [
        Learner("resnet8", "gkd", 2, Settings(seed=seed, engine=ENGINE), epochs=1).fit(X, y)
        for seed in (1, 1, 2)
    ]
    assert same_state(names[0].state(), names[1].state())
    assert not same_state(names[0].state(), names[2].state())
    assert same_state(names[0].fit(X, y).state(), names[1].state())


class StopAtOnce(Callback):
    def stop(self) -> bool:
        return True


def test_an_interrupted_fit_leaves_the_learner_unchanged() -> None:
    each = colourful(learner())
    before = each.state()
    with pytest.raises(Stopped):
        each.fit(*images("red", "green"), callback=StopAtOnce())
    assert same_state(each.state(), before)


def test_a_known_class_is_refused() -> None:
    each = learner().fit(*images("red", "green"))
    with pytest.raises(ValueError, match=r"'red' was learned before.* with fit\."):
        each.partial_fit(*images("blue", "red"))
    assert each.classes == ("green", "red")


def test_image_files_are_read_and_resized(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.png" for name in COLOURS]
    for number, file in enumerate(files):
        colour = COLOURS[file.stem]
        Image.new("RGB", (20 + number, 30), colour).save(file)
    with pytest.raises(ValueError, match=r"such as 30 x 20 and 30 x 21 pixels.*image_size"):
        as_images(files)
    for given in (files, list(map(str, files)), np.array(list(map(str, files)))):
        made = as_images(given, size=16)
        assert isinstance(made, PixelImages)
        assert made.pixels.shape == (4, 3, 16, 16)
        assert [tuple(p[:, 0, 0].tolist()) for p in made.pixels] == list(COLOURS.values())
    each = learner(settings=Settings(engine=ENGINE, image_size=16), epochs=30)
    each.fit(files[:2] * 4, ["red", "green"] * 4)
    assert each.predict([Image.open(files[1]), files[0]]) == ["green", "red"]
    assert each.predict([np.full((40, 50, 3), COLOURS["red"], np.uint8)]) == ["red"]
    (tmp_path / "broken.png").write_text("no image")
    with pytest.raises(ValueError, match=r"broken.png' can't be read \(not an image"):
        each.predict([tmp_path / "broken.png"])


def test_files_can_be_decoded_while_training(tmp_path: Path) -> None:
    files = []
    for number, name in enumerate(("red", "green") * 3):
        files.append(tmp_path / f"{number}.png")
        Image.new("RGB", (12, 12), COLOURS[name]).save(files[-1])
    each = learner().fit(FileImages(tuple(files), 8), ["red", "green"] * 3)
    assert each.settings.augment.mean == (0.485, 0.456, 0.406)
    assert each.predict_proba(FileImages(tuple(files), 8)).shape == (6, 2)


X8 = np.zeros((4, 8, 8, 3), np.uint8)


LABELS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "numbers": ([10, 9, 10, 9], ("9", "10")),
    "numpy": (np.array([10, 9, 10, 9]), ("9", "10")),
    "tensor": (torch.tensor([10, 9, 10, 9]), ("9", "10")),
    "scalars": (list(np.array([10, 9, 10, 9])), ("9", "10")),
    "text": (["zebra", "ant", "ant", "zebra"], ("ant", "zebra")),
    "numpy text": (np.array(["é", "a b", "é", "a b"]), ("a b", "é")),
    "both": (["b", 2, 2, "b"], ("2", "b")),
}


@pytest.mark.parametrize("kind", LABELS)
def test_classes_are_named_by_their_labels(kind: str) -> None:
    labels, names = LABELS[kind]
    each = learner(epochs=1).fit(X8, labels)
    assert each.classes == names
    assert each.score(X8, labels) == 0.5


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["a", "b"], "4 images have 2 labels"),
        ([0.5] * 4, "a name or a whole number, not 0.5"),
        ([None] * 4, "not None"),
    ],
)
def test_wrong_labels_are_refused(labels: Any, words: str) -> None:
    each = learner()
    with pytest.raises(ValueError, match=words):
        each.fit(X8, labels)
    each.fit(X8, [1, 2, 3, 4])
    with pytest.raises(ValueError, match=words):
        each.score(X8, labels)


def test_predicting_before_fitting_is_refused() -> None:
    for ask in (learner().predict, learner().predict_proba):
        with pytest.raises(ValueError, match="Nothing was learned yet"):
            ask(X8)
    with pytest.raises(ValueError, match="no image to learn from"):
        learner().fit([], [])
    each = learner(epochs=1).fit(X8, [1, 2, 3, 4])
    assert each.predict([]) == []
    with pytest.raises(ValueError, match="no image to test on"):
        each.score([], [])


def test_the_first_images_decide_the_normalisation() -> None:
    X, y = images("red", "green", size=16)
    each = learner().fit(X, y)
    used = each.settings.augment
    assert used.padding == 2
    pixels = as_images(X)
    assert isinstance(pixels, PixelImages)
    seen = used.normalise(pixels.pixels)
    torch.testing.assert_close(seen.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen.std((0, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)
    each.partial_fit(*images("blue", size=16))
    assert each.settings.augment is used
    # Learned anew, from others.
    each.fit(*images("blue", "7"))
    assert each.settings.augment.mean != used.mean
    assert each.settings.augment.padding == 1
    fixed = learner(settings=Settings(InferredAugment(padding=3, flip=False), engine=ENGINE)).fit(
        X, y
    )
    assert (fixed.settings.augment.padding, fixed.settings.augment.flip) == (3, False)


def test_a_module_with_a_width_gives_features() -> None:
    each = learner(backbone=TinyBackbone())
    assert isinstance(each.network.backbone(torch.zeros(2, 3, 8, 8)), Features)
    assert each.network.backbone is each.spec.backbone


SCHEDULES = Schedules(Schedule(2, 0.1, batch_size=8), Schedule(2, 0.1, batch_size=8))


def check_loaded(loaded: Learner, each: Learner, X: ImageInputs) -> None:
    assert loaded.classes == each.classes
    np.testing.assert_array_equal(loaded.predict_proba(X), each.predict_proba(X))
    new = np.roll(X8, 1) + np.uint8(99), ["w", "x", "y", "z"]
    assert same_state(loaded.partial_fit(*new).state(), each.partial_fit(*new).state())


@pytest.mark.parametrize("method", ["rdkd-adaptive", "joint", "icarl", "icarl+fdkd"])
def test_a_learner_made_from_names_is_loaded_from_its_folder_alone(
    method: str, tmp_path: Path
) -> None:
    X, _ = images(*COLOURS, per_class=3)
    each = Learner("resnet8", method, 3, Settings(seed=7, engine=ENGINE), epochs=1)
    colourful(each).save(str(tmp_path))
    loaded = Learner.load(str(tmp_path))
    assert loaded.settings.seed == 7
    assert loaded.memory.selection == each.memory.selection
    check_loaded(loaded, each, X)
    again = images("red", "7")
    assert same_state(loaded.fit(*again).state(), each.fit(*again).state())


def test_a_backbone_and_a_method_given_as_objects_must_be_given_again(tmp_path: Path) -> None:
    method = make_method("rdkd", DenseOptions(), SCHEDULES)
    each = learner(method=method, epochs=None)
    colourful(each).save(tmp_path)
    with pytest.raises(
        ValueError, match=r"own backbone could not.*load\(folder, backbone=\.\.\.\)"
    ):
        Learner.load(tmp_path)
    with pytest.raises(ValueError, match="own method could not be saved"):
        Learner.load(tmp_path, Mean())
    untrained = Mean()
    loaded = Learner.load(tmp_path, untrained, method)
    check_loaded(loaded, each, images(*COLOURS)[0])
    # What was given is not what was loaded into.
    name = "layer.0.weight"
    assert torch.equal(untrained.get_parameter(name), Mean().get_parameter(name))


def test_given_settings_and_memory_replace_the_saved_ones(tmp_path: Path) -> None:
    colourful(learner()).save(tmp_path)
    augment = Augment((0.1, 0.2, 0.3), (0.5, 0.5, 0.5), padding=1)
    memory = ExemplarMemory(Quota(1))
    loaded = Learner.load(tmp_path, Mean(), memory=memory, settings=Settings(augment, 5, ENGINE))
    assert (loaded.settings.augment, loaded.settings.seed) == (augment, 5)
    assert loaded.memory is memory
    assert len(memory) == 16


def test_a_state_without_a_description_is_loaded_with_given_parts(tmp_path: Path) -> None:
    each = colourful(learner())
    save_state(tmp_path / "learner", each.state())
    with pytest.raises(ValueError, match="own backbone could not be saved"):
        Learner.load(tmp_path)
    parts = each.spec
    four = parts.backbone, make_method("rdkd", DenseOptions(), SCHEDULES), 4, each.settings
    np.testing.assert_array_equal(
        Learner.load(tmp_path, *four).predict_proba(X8), each.predict_proba(X8)
    )


def test_a_custom_augmentation_must_be_given_again(tmp_path: Path) -> None:
    class Own(Augment):
        pass

    settings = Settings(Own((0.5,) * 3, (0.5,) * 3), engine=ENGINE)
    each = learner(settings=settings)
    colourful(each).save(tmp_path)
    with pytest.raises(ValueError, match="own settings could not be saved"):
        Learner.load(tmp_path, Mean())
    loaded = Learner.load(tmp_path, Mean(), settings=settings)
    check_loaded(loaded, each, images(*COLOURS)[0])


def test_a_method_by_name_has_its_default_settings() -> None:
    plain, host = Learner("resnet8"), Learner("resnet8", "bic+rdkd", epochs=25)
    assert [p.schedule.epochs for p in (*plain.method.base, *plain.method.increment)] == [70, 40]
    assert plain.memory.quota == Quota(20)
    assert host.method.name == "bic+rdkd"
    assert [p.schedule.epochs for p in host.method.base] == [25]
    assert host.memory.selection == "greedy"
    with pytest.raises(ValueError, match="did you mean rdkd"):
        Learner("resnet8", "rkdk")
    with pytest.raises(ValueError, match="epochs go with the name of a method"):
        Learner("resnet8", make_method("rdkd", DenseOptions(), SCHEDULES), epochs=3)
    with pytest.raises(ValueError, match="There is no network 'resnet'"):
        Learner("resnet")


@pytest.mark.parametrize(("size", "source"), [(8, "digits"), (32, "cifar100"), (80, "folder:x")])
def test_a_named_method_has_the_lambda_of_a_run_on_such_data(
    size: int, source: str, tmp_path: Path
) -> None:
    images = torch.zeros(4, 3, size, size, dtype=torch.uint8)
    images[2:] = 200
    each = Learner("resnet8", "rdkd", settings=Settings(engine=ENGINE), epochs=1)
    each.fit(images, [0, 0, 1, 1])
    term = each.terms["kd"]
    assert isinstance(term, Distil)
    assert isinstance(term.weight, RatioWeight)
    wanted = resolve({"data": {"source": source}}).method.options.lambda_base
    assert term.weight.base == wanted
    each.save(tmp_path)
    loaded = Learner.load(tmp_path, settings=Settings(engine=ENGINE)).terms["kd"]
    assert isinstance(loaded, Distil)
    assert loaded.formula == term.formula


def test_what_was_measured_and_set_is_there_again(tmp_path: Path) -> None:
    given = Settings(seed=4, engine=Engine("cpu", precision="bf16"), oversample_rare=True)
    images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    images[2:] = 200
    each = Learner("resnet8", "finetune", settings=given, epochs=1).fit(images, [0, 0, 1, 1])
    each.save(tmp_path)
    whole = Learner.load(tmp_path).settings
    assert (whole.seed, whole.oversample_rare, whole.engine.precision) == (4, True, "bf16")
    other = Learner.load(tmp_path, settings=Settings(seed=9, engine=ENGINE)).settings
    assert (other.seed, other.augment.mean) == (9, each.settings.augment.mean)
    assert other.augment.mean != (0.5, 0.5, 0.5)


def test_no_epochs() -> None:
    with pytest.raises(ValueError, match=r"epochs must be a whole number from 1 to .*, not 0"):
        Learner("resnet8", epochs=0)


def test_images_of_another_size_than_before() -> None:
    each = colourful(learner())
    with pytest.raises(ValueError, match="different sizes"):
        each.partial_fit(np.zeros((4, 1, 1, 3), np.uint8), ["x", "y", "x", "y"])
