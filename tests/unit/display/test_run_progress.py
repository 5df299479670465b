import dataclasses
import io
import re
import signal
from pathlib import Path

import pytest
from rich.console import Console

from densekd.compression.config import resolve_compression
from densekd.config.schema import resolve
from densekd.data.scenario import Scenario
from densekd.display import output
from densekd.display.interrupts import Interrupts
from densekd.display.progress import Bar
from densekd.display.run_progress import RunDisplay, run_display
from densekd.runs.record import StepRecord
from densekd.training.callbacks import TrainingProgress

from support import datasets

TASKS = Scenario.of(datasets.dataset(), base=6, increment=2, order="natural")
CONFIG = resolve({"data": {"source": "digits"}, "network": "resnet20", "epochs": 20})
RECORD = StepRecord(
    number=1,
    classes=TASKS[1].classes,
    classes_seen=8,
    accuracy=0.7125,
    base_accuracy=0.5,
    old_accuracy=0.701,
    new_accuracy=0.753,
    task_accuracies=(),
    head_accuracy=0.5,
    nme_accuracy=None,
    seconds=34.2,
    images_per_second=1.0,
    notes={},
)


def report(epoch: int, batch: int) -> TrainingProgress:
    losses = {"new": 0.31249, "exemplars": 0.2, "kd": 0.0213}
    return TrainingProgress(1, "train", epoch, 11, batch, 2, 0.0083, 1240.4, losses)


def lines(interrupts: Interrupts) -> tuple[Console, RunDisplay]:
    console = Console(file=io.StringIO(), width=80, markup=False, highlight=False)
    return console, RunDisplay(console, CONFIG, interrupts)


def written(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.fixture
def screen() -> tuple[Bar, RunDisplay]:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, highlight=False)
    bar = Bar(console)
    return bar, RunDisplay(bar, CONFIG, Interrupts())


def drawn(bar: Bar) -> list[str]:
    """What is under the lines that stay, as a terminal of 80 columns shows it."""
    plain = Console(file=io.StringIO(), width=80)
    plain.print(bar.get_renderable())
    return [line.rstrip() for line in written(plain)]


def test_the_size_of_images_in_files_is_said() -> None:
    console = Console(file=io.StringIO(), width=200, markup=False, highlight=False)
    config = resolve({"data": {"source": "folder:photos"}})
    RunDisplay(console, config, Interrupts()).started(Path("runs/one"), TASKS, 0)
    assert "rdkd on folder:photos at 8 x 8 pixels with resnet18" in written(console)[0]


def test_a_stored_result_is_told_only_if_the_run_does_not_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with run_display(CONFIG, quiet=False):
        pass
    assert "Already finished" in capsys.readouterr().err
    with run_display(CONFIG, quiet=False) as display:  # such as that of a damaged result.json
        display.started(Path("runs/one"), TASKS, len(TASKS))
    assert "Already finished" not in capsys.readouterr().err


def test_a_file_gets_a_line_for_what_matters() -> None:
    console, observer = lines(Interrupts())
    observer.loading(1, 2)
    observer.started(Path("runs/one"), TASKS, 1)
    observer.training(1, TASKS[1].classes)
    observer.report(report(0, 1))
    observer.report(report(0, 2))
    observer.shared_base(waiting=True)
    observer.shared_base(waiting=False)
    observer.evaluated(RECORD)
    assert written(console) == [
        "rdkd on digits with resnet20, seed 1993: 10 classes in 3 tasks, 6 first and then 2 at a "
        "time.",
        "Run folder: runs/one",
        "Resumed after task 1 of 3.",
        "Waiting for another process that is training the same base task.",
        "Reusing the base task of an earlier run.",
        "task 2 learned class 6, class 7: accuracy 71.2 % (old 70.1, new 75.3), 34 s",
    ]


def test_how_far_it_is_is_said_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_SECONDS_PER_LINE", 0.0)
    console, observer = lines(Interrupts())
    observer.loading(500, 2000)
    observer.started(Path("runs/one"), TASKS, 0)
    observer.report(report(0, 1))
    observer.report(report(1, 2))
    reading, _, _, first, second = written(console)
    assert reading == "Reading digits: 500 of 2,000 (25%)"
    numbers = "new 0.312, exemplars 0.200, kd 0.021, lr 0.0083, 1,240 images/s"
    assert first == f"task 2/3 · train: epoch 1/11, {numbers}"
    wanted = rf"task 2/3 · train: epoch 2/11, \S+ s left, {numbers}, \S+ s left in the run"
    assert re.fullmatch(wanted, second)


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ({"base": 10, "steps": 0}, "10 classes in one task."),
        ({"steps": 4, "equal": True}, "10 classes in 5 tasks of 2."),
    ],
)
def test_how_classes_come_is_said_in_words(scenario: dict[str, int], words: str) -> None:
    console, observer = lines(Interrupts())
    tasks = Scenario.of(datasets.dataset(), order="natural", **scenario)  # type: ignore[arg-type]
    observer.started(Path("runs/one"), tasks, 0)
    assert written(console)[0].endswith(f"seed 1993: {words}")


def test_a_terminal_shows_a_bar_below_the_lines(screen: tuple[Bar, RunDisplay]) -> None:
    bar, observer = screen
    assert drawn(bar) == []
    observer.loading(500, 2000)
    assert drawn(bar)[0].startswith("Reading digits ━")
    assert drawn(bar)[0].endswith(" 500 of 2,000 (25%)")
    observer.started(Path("runs/one"), TASKS, 0)
    observer.training(1, TASKS[1].classes)
    assert drawn(bar)[0].startswith("task 2/3 · preparing ━")
    assert drawn(bar)[1:] == ["learning class 6, class 7"]
    observer.report(report(0, 1))
    observer.report(report(5, 1))
    place, learning, numbers = drawn(bar)
    assert place.startswith("task 2/3 · train ━")
    assert re.search(r" epoch 6/11, [\d.]+ s left$", place)
    assert place.count("━") == 16  # of 32: half of the batches are done
    assert re.fullmatch(r"learning class 6, class 7 · [\d.]+ s left in the run", learning)
    assert numbers == "new 0.312, exemplars 0.200, kd 0.021 · lr 0.0083 · 1,240 images/s"
    observer.report(report(10, 2))
    assert drawn(bar)[0].startswith("task 2/3 · evaluating ━")
    assert drawn(bar)[1:] == ["learning class 6, class 7"]
    observer.shared_base(waiting=True)
    assert drawn(bar)[0].startswith("task 1/3 · waiting ━")
    observer.evaluated(RECORD)
    assert written(bar.console)[-1].startswith("task 2 learned class 6, class 7: accuracy 71.2 %")


def test_a_signal_is_acknowledged_and_stops(
    screen: tuple[Bar, RunDisplay], capfd: pytest.CaptureFixture[str]
) -> None:
    bar, observer = screen
    observer.started(Path("runs/one"), TASKS, 0)
    assert not observer.stop()
    receive(observer.interrupts)
    assert observer.stop()
    observer.report(report(0, 1))
    assert drawn(bar)[1:] == ["Stopping after this batch; press Ctrl-C to quit at once."]
    assert capfd.readouterr().err == ""

    interrupts = Interrupts()
    _, other = lines(interrupts)
    receive(interrupts)
    assert other.stop()
    assert capfd.readouterr().err == "Stopping after this batch; press Ctrl-C to quit at once.\n"

    interrupts = Interrupts()
    quiet = RunDisplay(Console(quiet=True), CONFIG, interrupts)
    assert not quiet.stop()
    receive(interrupts)
    assert quiet.stop()
    assert capfd.readouterr().err == ""


def receive(interrupts: Interrupts) -> None:
    with interrupts:
        signal.raise_signal(signal.SIGTERM)


(WHOLE,) = Scenario.of(datasets.dataset(10, 6), base=10, steps=0)
TEACHER_AND_STUDENT = (WHOLE, dataclasses.replace(WHOLE, number=1))


def compression(**given: object) -> tuple[Console, RunDisplay]:
    tree = {"teacher": "wrn-10-1", "student": "resnet8", "method": "kd", **given}
    console = Console(file=io.StringIO(), width=80, markup=False, highlight=False)
    return console, RunDisplay(console, resolve_compression(tree), Interrupts())


def said_at_start(**given: object) -> list[str]:
    console, observer = compression(**given)
    observer.started(Path("runs/one"), TEACHER_AND_STUDENT, 1)
    return written(console)


def test_a_configuration_knows_what_it_stands_for() -> None:
    _, run = lines(Interrupts())
    run.started(Path("runs/one"), TASKS, 0)
    assert run.label(1, "train") == "task 2/3 · train"
    _, compressing = compression()
    compressing.started(Path("runs/one"), TEACHER_AND_STUDENT, 0)
    assert compressing.label(1, "train") == "student · train"


def test_a_compression_says_who_learns_from_whom() -> None:
    headline = said_at_start()[0]
    assert headline == "resnet8 learns 10 classes of digits from wrn-10-1 by kd, seed 1993."
    alone = said_at_start(method="alone")[0]
    assert alone == "resnet8 learns 10 classes of digits by labels alone, seed 1993."


def test_a_compression_goes_through_both_schedules() -> None:
    _, observer = compression(epochs=4, training={"teacher": {"epochs": 12}})
    both = observer.config.workload(TEACHER_AND_STUDENT)
    assert both == [(0, "train", 2 * 60), (1, "train", 4 * 60)]
    labels = [observer.label(number, "train") for number in (0, 1)]
    assert labels == ["teacher · train", "student · train"]


def test_a_teacher_comes_from_somewhere() -> None:
    folder = ["Run folder: runs/one"]
    assert said_at_start()[1:] == folder
    assert said_at_start(method="alone", teacher_file="some/where")[1:] == folder
    given = said_at_start(teacher_file=str(Path("some/where")))
    assert given[1:] == [*folder, "Teacher from some/where."]
    console, observer = compression()
    observer.shared_base(waiting=True)
    observer.shared_base(waiting=False)
    assert written(console) == [
        "Waiting for another process that is training the same teacher.",
        "Reusing the teacher of an earlier compression.",
    ]
