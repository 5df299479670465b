"""Check that two checkouts compute the same results, bit for bit.

Runs each method with the code of both checkouts, on one thread, and compares every number of
``result.json`` but times, and every tensor of the checkpoints. What only one of them has, such as
a fact that was added since, is listed but is no difference. Finished runs in ``--out`` are read,
not repeated.

    python benchmarks/same_results.py BEFORE AFTER [--out FOLDER] [--methods gkd,podnet]
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

METHODS = "finetune,gkd,tkd,fdkd,rdkd-adaptive,icarl,bic,ucir,podnet,ccil,afc"
# What is no result: times, the place, the settings, whose defaults may be written otherwise, and
# the checksum of all that.
IGNORED = {"seconds", "images_per_second", "folder", "commit", "machine", "versions", "config"}
IGNORED |= {"sha256"}
DIGEST = re.compile(r"-[0-9a-f]{16}\.safetensors$")


def commit_of(checkout: Path) -> str:
    """The commit of a checkout; ends with a sentence if its source was changed since."""
    git = ["git", "-C", str(checkout)]
    if subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src"]).returncode:
        raise SystemExit(f"The source of {checkout} was changed; commit it first.")
    found = subprocess.run(
        [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True
    )
    return found.stdout.strip()


def run(checkout: Path, method: str, arguments: argparse.Namespace, out: Path) -> None:
    """Run a method with the code of a checkout."""
    command = [sys.executable, "-m", "densekd", "run", "--quiet", "--method", method]
    command += ["--data", arguments.data, "--epochs", arguments.epochs, "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def differences(before: Any, after: Any, place: str = "") -> Iterator[tuple[bool, str]]:
    """Where two JSON values differ, and whether that is a difference of results."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted((before.keys() ^ after.keys()) - IGNORED):
            yield False, f"{place}.{key}"
        for key in sorted((before.keys() & after.keys()) - IGNORED):
            yield from differences(before[key], after[key], f"{place}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{place}[{index}]")
    elif before != after:
        yield True, f"{place}: {before} and {after}"


def tensor_files(folder: Path) -> dict[str, Path]:
    """All files of tensors, by their path without the digest of their content."""
    files = sorted(folder.rglob("*.safetensors"))
    return {DIGEST.sub("", str(file.relative_to(folder))): file for file in files}


def tensor_differences(before: Path, after: Path) -> Iterator[tuple[bool, str]]:
    """Where the tensors in two folders differ."""
    one, other = tensor_files(before), tensor_files(after)
    if not one.keys() & other.keys():
        yield True, "no tensors to compare"
    for name in sorted(one.keys() ^ other.keys()):
        yield True, f"{name} is in one of them only"
    for name in sorted(one.keys() & other.keys()):
        left, right = load_file(one[name]), load_file(other[name])
        for key in sorted(left.keys() ^ right.keys()):
            yield False, f"{name}: {key}"
        for key in sorted(left.keys() & right.keys()):
            if not same_bits(left[key], right[key]):
                yield True, f"{name}: {key}"


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors are equal, NaN included."""
    alike = (left.dtype, left.shape) == (right.dtype, right.shape)
    return alike and left.numpy().tobytes() == right.numpy().tobytes()


def compare(before: Path, after: Path) -> int:
    """Print how two folders of runs differ; returns the number of differences."""
    found = list(tensor_differences(before, after))
    results = [{f.parent.name: f for f in out.glob("*/result.json")} for out in (before, after)]
    found += [(True, f"{name}: no such run") for name in results[0].keys() ^ results[1].keys()]
    for name in sorted(results[0].keys() & results[1].keys()):
        values = [json.loads(files[name].read_text("utf-8")) for files in results]
        found += differences(values[0], values[1], name)
        found += [(True, f"{name}: no steps") for value in values if not value.get("steps")]
    for wrong, place in found:
        print("differs:" if wrong else "in one only:", place)
    return sum(wrong for wrong, _ in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--epochs", default="20%")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--out", type=Path, help="keep the runs in this folder")
    arguments = parser.parse_args()
    checkouts = [arguments.before.resolve(), arguments.after.resolve()]
    commits = [commit_of(checkout) for checkout in checkouts]
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.out or Path(temporary)).resolve()
        count = 0
        for method in arguments.methods.split(","):
            outs = [folder / commit / method for commit in commits]
            for checkout, out in zip(checkouts, outs, strict=True):
                run(checkout, method, arguments, out)
            wrong = compare(*outs)
            print(f"{method}: {f'{wrong} differences' if wrong else 'the same bits'}", flush=True)
            count += wrong
    sys.exit(1 if count else 0)


if __name__ == "__main__":
    main()
