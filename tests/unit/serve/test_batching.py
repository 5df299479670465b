import io
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest
import torch
from PIL import Image

from densekd.data.decode import UnreadableImage
from densekd.model.frozen.backbone import BATCH
from densekd.model.model import Model, undo
from densekd.model.options import TeachOptions
from densekd.model.pointer import Pointer, write_pointer
from densekd.model.teach import teach_model
from densekd.serve.batching import BatchPredictor, CurrentModel, StepPrediction, UnavailableModel

from support.photos import fill, picture


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows green and red, and after one more step blue."""
    place = tmp_path_factory.mktemp("taught")
    teach_model(place / "model", fill(place / "one", {"red": 3, "green": 3}), TeachOptions())
    teach_model(place / "model", fill(place / "two", {"blue": 3}), TeachOptions())
    undo(place / "model")
    return place / "model"


@pytest.fixture
def model(taught: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(taught, tmp_path / "model"))


@pytest.fixture
def predictor(model: Path) -> Iterator[BatchPredictor]:
    with closing(BatchPredictor(CurrentModel(model), 1_000_000)) as opened:
        yield opened


def png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def test_it_predicts_as_the_model_does(predictor: BatchPredictor, model: Path) -> None:
    images = [picture(name, number) for name in ("red", "green") for number in range(50, 60)]
    answers = [predictor.submit(png(image), 1 + i % 2) for i, image in enumerate(images)]
    wanted = Model.open(model).predict(images, top=2)
    for i, (answer, guesses) in enumerate(zip(answers, wanted, strict=True)):
        step, prediction = answer.result(600)
        assert (step, prediction.known) == (0, guesses.known)
        assert [name for name, _ in prediction] == [name for name, _ in guesses[: 1 + i % 2]]
        # A batch of another size may be rounded in another way.
        assert prediction[0].probability == pytest.approx(guesses[0].probability, abs=1e-4)


def test_an_image_that_cannot_be_read_harms_no_other(predictor: BatchPredictor) -> None:
    good, large = png(picture("red", 1)), png(Image.new("RGB", (1001, 1000)))
    long = io.BytesIO()
    Image.new("1", (1, 65_536)).save(long, "PPM")
    sent = [good, b"no image", good, large, good[:-30], good, long.getvalue()]
    answers = [predictor.submit(content, 1) for content in sent]
    reasons = {1: "not an image", 3: "1001 x 1000 pixels", 4: ".", 6: "65535 on a side"}
    for i, answer in enumerate(answers):
        if i in reasons:
            with pytest.raises(UnreadableImage, match=reasons[i]):
                answer.result(600)
        else:
            assert answer.result(600).prediction[0].name == "red"


def test_what_waits_is_predicted_together(
    predictor: BatchPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, began, go_on = [], threading.Event(), threading.Event()
    predict = Model.predict

    def recorded(self: Model, images: torch.Tensor, top: int) -> object:
        sizes.append(len(images))
        began.set()
        assert go_on.wait(600)
        return predict(self, images, top)

    monkeypatch.setattr(Model, "predict", recorded)
    content, cores = png(picture("red", 1)), torch.get_num_threads()
    answers: list[Future[StepPrediction]] = []
    for _ in range(cores):  # every thread is busy
        began.clear()
        answers.append(predictor.submit(content, 1))
        assert began.wait(600)
    answers += [predictor.submit(content, 1) for _ in range(20 * cores)]
    cancelled = answers.pop()
    assert cancelled.cancel()
    go_on.set()
    assert len({answer.result(600).step for answer in answers}) == 1
    assert sizes[: cores + 1] == [1] * cores + [BATCH]
    assert max(sizes) == BATCH
    assert sum(sizes) == len(answers)


def test_a_new_state_counts_at_once(predictor: BatchPredictor, model: Path) -> None:
    content = png(picture("blue", 9))

    def names() -> tuple[int, str]:
        step, prediction = predictor.submit(content, 1).result(600)
        return step, prediction[0].name

    assert names() in [(0, "red"), (0, "green")]
    undo(model, to=1)
    assert names() == (1, "blue")
    undo(model, to=0)
    assert names() in [(0, "red"), (0, "green")]


def test_a_state_that_is_gone_or_damaged_is_not_served(
    predictor: BatchPredictor, model: Path
) -> None:
    content = png(picture("red", 9))
    assert predictor.submit(content, 1).result(600).step == 0
    state = next((model / "steps" / "001").glob("state-*"))
    state.write_bytes(state.read_bytes()[:-1])
    current = model / "current.json"
    before = current.read_bytes()
    write_pointer(model, Pointer(1, 2))
    with pytest.raises(UnavailableModel, match="densekd undo"):
        predictor.submit(content, 1).result(600)
    shutil.move(model, model.with_name("elsewhere"))
    with pytest.raises(UnavailableModel, match="There is no model"):
        predictor.submit(content, 1).result(600)
    shutil.move(model.with_name("elsewhere"), model)
    current.write_bytes(before)
    assert predictor.submit(content, 1).result(600).step == 0


def test_closing_answers_what_waits(model: Path) -> None:
    cores = torch.get_num_threads()
    predictor = BatchPredictor(CurrentModel(model), 1_000_000)
    answers = [predictor.submit(png(picture("red", i)), 1) for i in range(30)]
    predictor.close()
    assert all(answer.done() and answer.exception() is None for answer in answers)
    assert torch.get_num_threads() == cores
