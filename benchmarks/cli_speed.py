"""The processor time of commands in two checkouts, interleaved: has starting become slower?

    python benchmarks/cli_speed.py BEFORE AFTER --model MODEL --image IMAGE --rounds 10

Both checkouts run in this environment. Processor time, of the process and its children, depends
less on what else the computer does than the clock.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path


def processor_seconds(checkout: Path, arguments: list[str]) -> float:
    """The processor time of ``densekd`` with these arguments, with the source of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "densekd", *arguments]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{command} failed: {said.decode()}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the median seconds of both, and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--image", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    commands = {
        "--help": ["--help"],
        "predict": ["predict", str(given.model), str(given.image)],
    }
    for name, arguments in commands.items():
        for checkout in (given.before, given.after):
            processor_seconds(checkout, arguments)  # compiles the source
        pairs = []
        for number in range(given.rounds):
            order = [given.before, given.after][:: 1 if number % 2 else -1]
            took = {checkout: processor_seconds(checkout, arguments) for checkout in order}
            pairs.append((took[given.before], took[given.after]))
        before, after = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        print(f"{name:8} before {before:.2f} s, after {after:.2f} s, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
