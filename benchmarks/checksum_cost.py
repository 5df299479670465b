"""What share of a run's training time is spent on checksums.

    python benchmarks/checksum_cost.py [--data cifar100 --network resnet32 --epochs 1]

Times every SHA-256 of a run, those of checkpoints included, which are saved after each epoch.
"""

import argparse
import hashlib
import tempfile
import time
from pathlib import Path
from typing import Any

import densekd
from densekd import files
from densekd.training import checkpoint


def main() -> None:
    """Print the seconds of all checksums, of training, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--network", default="resnet8")
    parser.add_argument("--epochs", default="3")
    given = parser.parse_args()
    spent = [0.0, 0]

    def timed(content: bytes) -> Any:
        start = time.process_time()
        made = hashlib.sha256(content)
        spent[0] += time.process_time() - start
        spent[1] += len(content)
        return made

    for module in (files, checkpoint):
        vars(module)["sha256"] = timed
    with tempfile.TemporaryDirectory() as folder:
        result = densekd.run(
            data=given.data,
            network=given.network,
            method="rdkd",
            steps=1,
            epochs=given.epochs,
            out=Path(folder),
            quiet=True,
        )
    training = sum(step.seconds for step in result.steps)
    print(
        f"{spent[0] * 1e3:.1f} ms for {spent[1] / 1e6:.1f} MB in {training:.1f} s of training: "
        f"{spent[0] / training:.3%}"
    )


if __name__ == "__main__":
    main()
