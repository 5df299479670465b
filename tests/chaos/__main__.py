"""``python -m chaos``: the trial as a command; exits with code 1 if it finds a defect."""

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from chaos.command_lines import CommandLineTrial
from chaos.damages import DamageTrial
from chaos.kills import KillTrial
from chaos.python_calls import CallTrial
from chaos.verdict import Defect
from chaos.workshop import workshop


class Trial(Protocol):
    """One kind of trial."""

    def case(self, draw: random.Random) -> tuple[str, list[Defect], int]:
        """What was tried, its defects, and how many it counts for."""
        ...


class Part(NamedTuple):
    """A kind of trial, and how many of it a whole trial has."""

    title: str
    make: Callable[[Path], Trial]
    quota: int


PARTS = {
    "kill": Part("kills", KillTrial, 150),
    "damage": Part("damaged folders", DamageTrial, 300),
    "line": Part("bad command lines", CommandLineTrial, 500),
    "call": Part("odd Python calls", CallTrial, 200),
}
DEFECTS = ("traceback", "hang", "lost state", "silent difference", "network")


class Finding(NamedTuple):
    """The outcome of a case."""

    part: str
    case: str  # what repeats it
    what: str
    defects: list[Defect]
    number: int  # that it counts for


def main() -> int:
    """Run the trial; gives the exit code."""
    options = _options()
    counts, defects = Counter[str](), Counter[str]()
    began = time.monotonic()
    with workshop() as place:
        for finding in _findings(place, options):
            counts[finding.part] += finding.number
            for defect in finding.defects:
                defects[defect.kind] += 1
                print(
                    f"\n{defect.kind.upper()} in {finding.case} ({finding.what})\n{defect.what}",
                    flush=True,
                )
            if options.verbose:
                print(f"{finding.case}: {finding.what}", flush=True)
    minutes = (time.monotonic() - began) / 60
    print(f"\nseed {options.seed}, {minutes:.1f} minutes")
    for name, part in PARTS.items():
        print(f"{counts[name]:6} {part.title}")
    for kind in DEFECTS:
        print(f"{defects[kind]:6} of the kind {kind!r}")
    return 1 if defects else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="stop after so long")
    parser.add_argument("--share", type=float, default=1, help="of the number of cases to try")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--case", action="append", help="try only this one, such as kill/17")
    parser.add_argument("--verbose", action="store_true", help="print every case")
    return parser.parse_args()


def _findings(place: Path, options: argparse.Namespace) -> Any:
    """The outcome of each case, by several processes, until all are tried or the time is up."""
    end = time.monotonic() + 60 * options.minutes
    cases = options.case or _cases(options.share)
    pipes, workers = [], []
    for number in range(options.workers):
        ours, theirs = multiprocessing.Pipe()
        arguments = (place, cases[number :: options.workers], options.seed, end, theirs)
        worker = multiprocessing.get_context("fork").Process(target=_work, args=arguments)
        worker.start()
        theirs.close()
        pipes.append(ours)
        workers.append(worker)
    while pipes:
        for pipe in multiprocessing.connection.wait(pipes):
            assert isinstance(pipe, Connection)
            try:
                yield pipe.recv()
            except EOFError:
                pipes.remove(pipe)
    for worker in workers:
        worker.join()
        if worker.exitcode != 0:
            raise RuntimeError("The trial itself failed; see above.")


def _cases(share: float) -> list[str]:
    """All cases, the kinds mixed evenly, so that any stretch of them has some of each."""
    placed = [
        ((number + 0.5) / count, f"{name}/{number}")
        for name, part in PARTS.items()
        for count in [max(1, round(share * part.quota))]
        for number in range(count)
    ]
    return [case for _, case in sorted(placed)]


def _work(
    place: Path, cases: list[str], seed: int, end: float, pipe: "Connection[Finding, Finding]"
) -> None:
    trials: dict[str, Trial] = {}
    for case in cases:
        if time.monotonic() > end:
            break
        part, _, number = case.partition("/")
        if part not in trials:
            trials[part] = PARTS[part].make(place)
        what, defects, count = trials[part].case(random.Random(f"{seed} {part} {number}"))
        repeat = f"--seed {seed} --case {part}/{number}"
        pipe.send(Finding(part, repeat, what, defects, count))


if __name__ == "__main__":
    sys.exit(main())
