"""Trained networks that are shared: bases by runs, and teachers by compressions."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from densekd.config.settings_tree import digest
from densekd.data.dataset import Split, fingerprint
from densekd.files import read_sealed_json, remove_leftovers, to_json, write_sealed_json
from densekd.runs.locks import wait
from densekd.runs.observer import RunObserver
from densekd.runs.record import versions
from densekd.runs.stored import check_links
from densekd.training.engine import Engine

logger = logging.getLogger(__name__)

_FILE = "trained.json"


class SharedTraining:
    """The folder of a network that is trained once for all runs with the same ``facts``.

    It is named by a hash of these: everything that the trained network depends on.
    """

    def __init__(
        self, parent: Path, settings: Mapping[str, Any], train: Split, engine: Engine
    ) -> None:
        self.engine = engine
        self.facts = {
            "settings": settings,
            "versions": versions(),
            "engine": engine.describe(),
            "images": fingerprint(train),
        }
        self.folder = parent / digest(self.facts)

    @property
    def trained(self) -> bool:
        """Whether training is finished."""
        return (self.folder / _FILE).exists()

    @contextmanager
    def locked(self, what: str, observer: RunObserver) -> Iterator[Path]:
        """Give the folder to train in, or to load from, after waiting for other processes.

        When the block ends without an error, the network counts as trained. ``what`` names the
        network in a warning, such as base.
        """
        with wait(self.folder, self.engine, observer):
            check_links(self.folder)
            if self.engine.first:
                remove_leftovers(self.folder)
            if not self.trained and self.engine.first:
                self._explain_training_again(what)
            yield self.folder
            if not self.trained and self.engine.first:
                write_sealed_json(self.folder / _FILE, self.facts)

    def _explain_training_again(self, what: str) -> None:
        """Warn if there is a network that differs only in engine facts, such as threads."""
        mine = json.loads(to_json(self.facts))
        for file in sorted(self.folder.parent.glob(f"*/{_FILE}")):
            try:
                other = read_sealed_json(file, unsealed=True)
            except (OSError, ValueError):
                continue
            engine = other.get("engine")
            if isinstance(engine, dict) and {**other, "engine": None} == {**mine, "engine": None}:
                pairs = [(k, engine.get(k), v) for k, v in mine["engine"].items()]
                theirs = ", ".join(f"{k} = {old}" for k, old, new in pairs if old != new)
                ours = ", ".join(f"{k} = {new}" for k, old, new in pairs if old != new)
                logger.warning(
                    "A %s for these settings exists, but it was trained with %s; "
                    "training it again with %s.",
                    *(what, theirs, ours),
                )
                return
