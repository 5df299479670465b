"""Make the next state of a model on a frozen backbone: fit its head, test, save and commit it."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from densekd.model.backbone import FrozenBackbone
from densekd.model.calibration import calibrate, class_changes, split_accuracy
from densekd.model.frozen import FittedHeads, FrozenModel, write_frozen_state
from densekd.model.head import LinearHead, fit_head
from densekd.model.photos import Photos, join_photos
from densekd.model.store import Store, Update
from densekd.model.unknown import cross_scores, fit_unknown

# Photos on which a saved state is compared with the one in memory.
_VERIFIED = 8


@dataclass(frozen=True)
class FrozenUpdate:
    """The next state before it is fitted."""

    store: Store
    step: int
    before: FrozenModel | None  # the state that it is made from
    backbone: FrozenBackbone
    classes: tuple[str, ...]
    labels: Tensor  # of all photos, those of this step last; -1 for those that were removed
    added: Photos | None = None  # the photos of this step
    asked: str = ""  # the digest of what was asked for
    learned: tuple[str, ...] = ()  # new classes
    replayed: tuple[str, ...] = ()  # known classes of which there are more photos
    renamed: Mapping[str, str] = field(default_factory=dict)  # old names to new ones

    @cached_property
    def photos(self) -> Photos:
        """All photos, in the order of `labels`."""
        earlier = [] if self.before is None else [self.before.photos]
        return join_photos([*earlier, *([] if self.added is None else [self.added])])

    @cached_property
    def tested(self) -> Tensor:
        """The places of the photos that are held out."""
        return (self.photos.test & (self.labels >= 0)).nonzero().flatten()

    def commit(self, prepared: Path, began: float) -> Update:
        """Fit, test, save to ``prepared``, verify, and make it the model's current step.

        ``began`` is when the update began, by the monotonic clock.
        """
        used, count = self.labels >= 0, len(self.classes)
        every, train = (each.nonzero().flatten() for each in (used, used & ~self.photos.test))
        features, labels = self._features(every), self.labels[every]
        crossed = cross_scores(features, labels, count)
        fitted = FittedHeads(
            fit_head(features, labels, count),
            fit_head(self._features(train), self.labels[train], count),
            fit_unknown(features, labels, count, crossed),
        )
        guesses = fitted.tested_head.scores(self._features(self.tested)).argmax(1)
        update = self._result(guesses == self.labels[self.tested], time.monotonic() - began)
        calibrated = calibrate(crossed.logits, labels[crossed.places])
        self._write(prepared, fitted, {**calibrated, "update": asdict(update)})
        self._verify(prepared, fitted.head)
        self.store.commit(prepared, self.step)
        return update

    def _features(self, places: Tensor) -> Tensor:
        return self.photos.features[places].float()

    def _result(self, after: Tensor, seconds: float) -> Update:
        """The record of the update; ``after`` says which test photos are predicted right."""
        labels, known, before = self.labels[self.tested], len(self.classes), None
        if self.before is not None:
            known -= len(self.learned)
            before = self._was_right(self.before, labels)
        images = 0 if self.added is None else int((~self.added.test).sum())
        return Update(
            self.step,
            self.learned,
            self.replayed,
            images,
            0,
            None if before is None else split_accuracy(before, labels, known),
            split_accuracy(after, labels, known if self.before is not None else 0),
            class_changes(self.classes, labels, before, after, known),
            seconds,
        )

    def _was_right(self, model: FrozenModel, labels: Tensor) -> Tensor:
        """Whether the model before this update predicts the test photos right."""
        names = [self.renamed.get(name, name) for name in model.classes]
        ranks = [self.classes.index(name) if name in self.classes else -1 for name in names]
        guesses = model.tested_head.scores(self._features(self.tested)).argmax(1)
        return torch.tensor(ranks)[guesses] == labels

    def _write(self, place: Path, fitted: FittedHeads, found: dict[str, Any]) -> None:
        facts = {
            **self._history(),
            "asked": self.asked,
            "parent": None if self.before is None else self.before.step,
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "classes": self.classes,
            **found,
        }
        if facts["backbone"] == self.step:
            self.backbone.save(place / "backbone")
        if self.added is not None:
            self.added.save(place / "photos")
        write_frozen_state(place, facts, self.labels, fitted)

    def _history(self) -> dict[str, Any]:
        """Which steps have the backbone and the photos, and learned the classes."""
        own = [] if self.added is None else [self.step]
        if self.before is None:
            learned_in = dict.fromkeys(self.classes, self.step)
            return {"backbone": self.step, "photos": own, "learned_in": learned_in}
        facts = self.before.facts
        earlier = {self.renamed.get(n, n): step for n, step in facts["learned_in"].items()}
        return {
            "backbone": facts["backbone"],
            "photos": [*facts["photos"], *own],
            "learned_in": {name: earlier.get(name, self.step) for name in self.classes},
        }

    def _verify(self, prepared: Path, head: LinearHead) -> None:
        """Raise unless the saved state equals the one in memory and predicts the same."""
        saved = FrozenModel.read_from(self.store.folder, self.step, prepared)
        kept = [jpeg for jpeg in self.photos.jpegs if jpeg][:_VERIFIED]
        probe = saved.crops(kept)
        ours = head.scores(self.backbone.features(probe))
        if not (
            saved.classes == self.classes
            and torch.equal(saved.labels, self.labels)
            and torch.allclose(ours, saved.scores(probe), rtol=1e-3, atol=1e-3)
        ):
            raise RuntimeError(
                f"The state saved in {prepared} differs from what was learned, so the model was "
                "not changed."
            )
