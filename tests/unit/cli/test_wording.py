import dataclasses
from pathlib import Path

from densekd.cli.wording import CompressionWording, RunWording, wording_for
from densekd.compression.config import resolve_compression
from densekd.config.schema import resolve
from densekd.data.scenario import Scenario

from support.datasets import dataset

(WHOLE,) = Scenario.of(dataset(10, 6), base=10, steps=0)
TASKS = (WHOLE, dataclasses.replace(WHOLE, number=1))


def subject(**given: object) -> CompressionWording:
    tree = {"teacher": "wrn-10-1", "student": "resnet8", "method": "kd", **given}
    return CompressionWording(resolve_compression(tree))


def test_a_configuration_knows_what_it_stands_for() -> None:
    assert isinstance(wording_for(resolve({})), RunWording)
    assert isinstance(wording_for(resolve_compression({})), CompressionWording)


def test_a_compression_says_who_learns_from_whom() -> None:
    headline = subject().headline(TASKS)
    assert headline == "resnet8 learns 10 classes of digits from wrn-10-1 by kd, seed 1993."
    alone = subject(method="alone").headline(TASKS)
    assert alone == "resnet8 learns 10 classes of digits by labels alone, seed 1993."


def test_a_compression_goes_through_both_schedules() -> None:
    both = subject(epochs=4, training={"teacher": {"epochs": 12}}).config.workload(TASKS)
    assert both == [(0, "train", 2 * 60), (1, "train", 4 * 60)]
    assert [subject().task(number, 2) for number in (0, 1)] == ["teacher", "student"]


def test_a_teacher_comes_from_somewhere() -> None:
    assert subject().done(1, 2) == subject(method="alone", teacher_file="some/where").done(1, 2)
    given = subject(teacher_file=str(Path("some/where")))
    assert given.done(1, 2) == "Teacher from some/where."
    assert (
        subject()
        .shared(waiting=True)
        .startswith("Waiting for another process that is training the same teacher")
    )
    assert subject().shared(waiting=False) == ("Reusing the teacher of an earlier compression.")
