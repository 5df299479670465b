"""Two launches on this machine stand for two machines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from densekd.runs.ranks import ending_together
from densekd.training.engine import Engine

from support.nodes import environment, free_port

# Each process checks facts in which they agree or not, and prints what it is told.
SCRIPT = """
import json, sys
from pathlib import Path
from densekd.config.schema import resolve
from densekd.data.scenario import Scenario
from densekd.runs import ranks
from densekd.training.engine import Engine
from support.datasets import dataset

engine, said = Engine("cpu", precision="32", nodes=2), []
with ranks.ending_together(engine):
    engine.launch()
second, place = not engine.first, Path(sys.argv[1])
tasks = Scenario.of(dataset(4), steps=1)
other = Scenario.of(dataset(4), steps=1)
if second:
    other[1].train.labels[:2] = other[1].train.labels[:2].flip(0)
    other[1].train.images.pixels[0] += 1
config = [resolve({"seed": 1, "data": {"dir": f"own {second}"}}), resolve({"seed": 1 + second})]
(place / f"{engine.share.rank}").touch()
for check in (
    lambda: ranks.check_same_command(engine, config[0], {"a/mine.py": "1"}),
    lambda: ranks.check_same_command(engine, config[1], {}),
    lambda: ranks.check_same_command(engine, config[0], {"mine.py": str(second)}),
    lambda: ranks.check_same_images(engine, tasks[:]),
    lambda: ranks.check_same_images(engine, other[:]),
    lambda: ranks.check_same_folder(engine, place / ("0" if engine.first else "none")),
):
    try:
        said.append(check())
    except ValueError as error:
        said.append(str(error))
print(json.dumps(said))
if second:
    sys.exit()
with ranks.ending_together(engine):
    engine.broadcast(True)
    engine.total(engine.fabric.to_device(__import__("torch").ones(1)))
"""


@pytest.mark.slow
def test_processes_that_disagree_or_end_are_told_so(tmp_path: Path) -> None:
    port = free_port()
    nodes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path)],
            env=environment(port, rank),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    (first, lost), (second, other) = [node.communicate(timeout=300) for node in nodes]
    told = json.loads(first)
    assert told == json.loads(second), other
    assert [part if part is None else part.partition(";")[0] for part in told] == [
        None,
        "The processes of this run don't have the same settings",
        "The processes of this run don't have the same code",
        None,
        "The processes of this run don't have the same images of task 2",
        "The processes of this run don't have the same folder of runs",
    ]
    # The second has ended, and the first waits for it no longer.
    assert "ValueError: Another process of this run has ended" in lost


def test_other_errors_and_a_single_process_are_left_alone() -> None:
    for error in (RuntimeError("gloo"), ValueError("wrong")):
        with pytest.raises(type(error), match=str(error)), ending_together(Engine("cpu")):
            raise error
