import io
import re
import signal
from dataclasses import replace

import pytest
from rich.console import Console

from densekd.display import output
from densekd.display.interrupts import Interrupts
from densekd.display.learn_progress import LearnDisplay, plan_sentence
from densekd.display.progress import Bar
from densekd.model.request import Plan
from densekd.training.callbacks import TrainingProgress

PLAN = Plan(
    step=1,
    task=1,
    learned={"cat": 1700, "dog": 1},
    replayed={"red": 7},
    tested={"cat": 100},
    image_size=32,
    network="resnet20",
    method="fdkd",
    phases=(("train", 4), ("balance", 4)),
    seconds=None,
    resumed=True,
)


def report(phase: str, epoch: int, batch: int) -> TrainingProgress:
    return TrainingProgress(1, phase, epoch, 4, batch, 2, 0.05, 1240.4, {"new": 0.3})


def lines(interrupts: Interrupts) -> tuple[Console, LearnDisplay]:
    console = Console(file=io.StringIO(), width=80, markup=False, highlight=False)
    return console, LearnDisplay(console, interrupts)


def written(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def drawn(bar: Bar) -> list[str]:
    """What is under the lines that stay, as a terminal of 80 columns shows it."""
    plain = Console(file=io.StringIO(), width=80)
    plain.print(bar.get_renderable())
    return [line.rstrip() for line in written(plain)]


def receive(interrupts: Interrupts) -> None:
    with interrupts:
        signal.raise_signal(signal.SIGTERM)


def test_what_will_be_done_in_a_sentence() -> None:
    assert plan_sentence(PLAN) == (
        "Step 1: learn 2 new classes (cat, dog) from 1,701 images and 7 more images of red, "
        "at 32 x 32 pixels by fdkd with resnet20, 4 epochs."
    )


def test_fine_tuning_in_a_sentence() -> None:
    plan = replace(PLAN, learned={}, replayed={"cat": 3, "dog": 4}, phases=(("fine-tuning", 6),))
    assert plan_sentence(plan).endswith("on 7 kept images, at most 6 epochs.")


def test_a_file_gets_few_lines() -> None:
    console, observer = lines(Interrupts())
    observer.reading(1, 2)
    observer.planned(PLAN)
    observer.report(report("train", 0, 1))
    observer.doing("testing")
    observer.repeated(3)
    observer.finetuned_before()
    assert written(console) == [
        plan_sentence(PLAN),
        "Resuming where it stopped.",
        "These images were already learned in step 3; showing its result.",
        "The model was already fine-tuned like this; showing the result.",
    ]


def test_how_far_it_is_is_said_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_SECONDS_PER_LINE", 0.0)
    console, observer = lines(Interrupts())
    observer.reading(500, 2000)
    observer.planned(PLAN)
    observer.report(report("train", 0, 1))
    observer.report(report("train", 1, 2))
    observer.report(report("balance", 0, 1))
    reading, _, _, first, second, third = written(console)
    assert reading == "Reading images: 500 of 2,000 (25%)"
    assert first == "Learning: epoch 1/4, 1,240 images/s"
    assert re.fullmatch(r"Learning: epoch 2/4, [\d.]+ s left, 1,240 images/s", second)
    assert third == "Learning: balance, epoch 1/4, 1,240 images/s"


def test_a_terminal_shows_a_bar() -> None:
    bar = Bar(Console(file=io.StringIO(), width=80, force_terminal=True, highlight=False))
    observer = LearnDisplay(bar, Interrupts())
    observer.reading(500, 2000)
    assert re.fullmatch(r"Reading images ━+╸? .*500 of 2,000 \(25%\)", drawn(bar)[0])
    observer.planned(PLAN)
    observer.report(report("train", 0, 1))
    observer.report(report("train", 1, 2))
    place, speed = drawn(bar)
    assert re.fullmatch(r"Learning ━+ +epoch 2/4, [\d.]+ s left", place)
    assert place.count("━") == 16  # of 32: half of the batches are done
    assert speed == "1,240 images/s"
    observer.doing("testing")
    (testing,) = drawn(bar)
    assert testing.startswith("Testing ━")
    receive(observer.interrupts)
    observer.report(report("train", 2, 1))
    assert drawn(bar)[1:] == ["Stopping after this batch; press Ctrl-C to quit at once."]
    assert observer.stop()


def test_a_signal_is_acknowledged_and_stops(capfd: pytest.CaptureFixture[str]) -> None:
    interrupts = Interrupts()
    _, observer = lines(interrupts)
    assert not observer.stop()
    receive(interrupts)
    assert observer.stop()
    assert capfd.readouterr().err == "Stopping after this batch; press Ctrl-C to quit at once.\n"
    interrupts = Interrupts()
    quiet = LearnDisplay(Console(quiet=True), interrupts)
    receive(interrupts)
    assert quiet.stop()
    assert capfd.readouterr().err == ""
