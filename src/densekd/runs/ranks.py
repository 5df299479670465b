"""Check that the processes of a run agree on what they compute, and end them together."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch.distributed

import densekd
from densekd.config.digests import result_settings
from densekd.config.schema import CommonConfig
from densekd.config.settings_tree import digest
from densekd.data.dataset import fingerprint
from densekd.data.scenario import Task
from densekd.runs.record import versions
from densekd.training.engine import Engine


def check_same_command(engine: Engine, config: CommonConfig, code: Mapping[str, str]) -> None:
    """Raise ValueError on all ranks unless all have the same settings, versions and code.

    ``code`` has the SHA-256 of each file of custom code.
    """
    if engine.share.world > 1:
        files = {Path(file).name: sha256 for file, sha256 in code.items()}
        facts = {"settings": digest(result_settings(config)), "versions": versions()}
        engine.check_agreement({**facts, "code": {**files, "densekd": _package_digest()}})


def check_same_folder(engine: Engine, file: Path) -> None:
    """Raise ValueError on all ranks unless all find a file that the first rank has just written."""
    engine.check_agreement({"folder of runs": file.exists()})


def check_same_images(engine: Engine, tasks: Sequence[Task]) -> None:
    """Raise ValueError on all ranks unless all have the same images in every task."""
    if engine.share.world > 1:
        facts: dict[str, object] = {"classes": [task.classes for task in tasks]}
        for task in tasks:
            images = fingerprint(task.train), fingerprint(task.test)
            facts[f"images of task {task.number + 1}"] = images
        engine.check_agreement(facts)


@contextmanager
def ending_together(engine: Engine) -> Iterator[None]:
    """If another rank has ended, raise ValueError in place of the communication error."""
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, torch.distributed.DistError) or "gloo" in str(error)
        if engine.share.world == 1 or not lost:
            raise
        raise ValueError(
            "Another process of this run has ended, and this one with it; see what that one said. "
            "To resume from the last epoch, start all of them again."
        ) from error


def _package_digest() -> str:
    """A hash of the package's source."""
    found = hashlib.sha256()
    package = Path(densekd.__file__).parent
    for file in sorted(package.rglob("*.py")):
        found.update(file.relative_to(package).as_posix().encode() + file.read_bytes())
    return found.hexdigest()
