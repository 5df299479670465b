"""Make the next state of a model on a frozen backbone: fit its head, test, save and commit it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from densekd.model.calibration import calibrate, class_changes, split_accuracy
from densekd.model.frozen.backbone import FrozenBackbone
from densekd.model.frozen.head import LinearHead, few_threads, fit_head
from densekd.model.frozen.model import FittedHeads, FrozenModel, is_tested, write_frozen_state
from densekd.model.frozen.photos import Photos, join_photos
from densekd.model.frozen.unknown import cross_scores, fit_unknown
from densekd.model.store import Edit, Store, Update, unequal_error

# The number of photos on which a saved state is compared with the one in memory.
_VERIFIED = 2


@dataclass(frozen=True)
class FrozenUpdate:
    """Everything from which the next state is made."""

    store: Store
    step: int
    before: FrozenModel | None  # the state to start from; None for a new model
    backbone: FrozenBackbone
    classes: tuple[str, ...]
    labels: Tensor  # of all photos, those of this step last; -1 for those that were removed
    added: Photos | None = None  # the photos of this step
    asked: str = ""  # the digest of the user's request
    learned: tuple[str, ...] = ()  # new classes
    replayed: tuple[str, ...] = ()  # known classes that got more photos
    renamed: Mapping[str, str] = field(default_factory=dict)  # old names to new or other classes
    edit: Edit | None = None  # the change, if nothing is taught
    left_out: int = 0  # number of photos that don't fit into the budget
    # The epochs that ``backbone`` was fine-tuned for. If there are any, ``added`` has all photos,
    # since earlier steps have the features of another backbone.
    finetuned: int = 0

    @cached_property
    def photos(self) -> Photos:
        """All photos, in the order of `labels`."""
        earlier = [] if self.before is None or self.finetuned else [self.before.photos]
        return join_photos([*earlier, *([] if self.added is None else [self.added])])

    def commit(
        self, prepared: Path, began: float, only_if: Callable[[Update], bool] | None = None
    ) -> Update:
        """Fit, test, save to ``prepared``, verify, and make it the model's current step.

        ``began`` is when the update began, on the monotonic clock. If ``only_if`` rejects the
        result, the model stays as it is.
        """
        fitted = fit_state(self.photos, self.labels, len(self.classes))
        update = self._result(fitted, time.monotonic() - began)
        if only_if is not None and not only_if(update):
            return update
        self._write(prepared, fitted, update)
        self._verify(prepared, fitted.heads.head)
        self.store.commit(prepared, self.step)
        return update

    def _result(self, fitted: "FittedState", seconds: float) -> Update:
        """The record of the update."""
        labels, known, before = self.labels[fitted.tested], 0, None
        if self.before is not None:
            known = len(self.classes) - len(self.learned)
            before = self._was_right(self.before, fitted.tested)
        images = 0 if self.added is None else int((~self.added.test).sum())
        return Update(
            self.step,
            self.learned,
            self.replayed,
            images,
            self.finetuned,
            None if before is None else split_accuracy(before, labels, known),
            split_accuracy(fitted.right, labels, known),
            class_changes(self.classes, labels, before, fitted.right, known),
            seconds,
            self.edit,
        )

    def _was_right(self, model: FrozenModel, tested: Tensor) -> Tensor:
        """Whether the model before this update is right on each of the tested photos."""
        ranks = new_ranks(model.classes, self.classes, self.renamed)
        features = self.photos.features[tested]
        if self.finetuned:  # features of the same photos, by the model's own backbone
            features = model.photos.features[model.tested]
        guesses = model.evaluation_head.scores(features.float()).argmax(1)
        return ranks[guesses] == self.labels[tested]

    def _write(self, place: Path, fitted: "FittedState", update: Update) -> None:
        facts = {
            **self._history(),
            "asked": self.asked,
            **({"left_out": self.left_out} if self.left_out else {}),
            "parent": None if self.before is None else self.before.step,
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "classes": self.classes,
            **fitted.calibration,
            "update": asdict(update),
        }
        if facts["backbone"] == self.step:
            self.backbone.save(place / "backbone")
        if self.added is not None:
            self.added.save(place / "photos")
        write_frozen_state(place, facts, self.labels, fitted.heads)

    def _history(self) -> dict[str, Any]:
        """Record the steps that have the backbone and the photos, and that learned the classes."""
        own = [] if self.added is None else [self.step]
        if self.before is None:
            learned_in = dict.fromkeys(self.classes, self.step)
            return {"backbone": self.step, "photos": own, "learned_in": learned_in}
        facts = self.before.facts
        earlier = dict(facts["learned_in"])
        for old, new in self.renamed.items():
            earlier.setdefault(new, earlier[old])
        return {
            "backbone": self.step if self.finetuned else facts["backbone"],
            "photos": own if self.finetuned else [*facts["photos"], *own],
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
            raise unequal_error(prepared)


def new_ranks(old: Sequence[str], new: Sequence[str], renamed: Mapping[str, str]) -> Tensor:
    """The rank of each old class among the new ones; -1 if it is gone."""
    names = [renamed.get(name, name) for name in old]
    return torch.tensor([new.index(name) if name in new else -1 for name in names])


def relabel(labels: Tensor, ranks: Tensor) -> Tensor:
    """The new rank of each label; -1 for photos that were removed, before or now."""
    return torch.where(labels < 0, -1, ranks[labels])


class FittedState(NamedTuple):
    """Everything that is fitted to the photos of a state, and the test result."""

    heads: FittedHeads
    tested: Tensor  # the places of the test photos
    right: Tensor  # whether each of these is predicted right
    calibration: dict[str, Any]  # the temperature, and the calibration error without and with it


def fit_state(photos: Photos, labels: Tensor, classes: int) -> FittedState:
    """Fit heads, rule and temperature to the photos; those labelled -1 don't count."""
    test, features = is_tested(photos.test, labels), photos.features.float()
    used, train = labels >= 0, (labels >= 0) & ~test
    every, own = features[used], labels[used]
    with few_threads(features, classes):
        crossed = cross_scores(every, own, classes)
        heads = FittedHeads(
            fit_head(every, own, classes),
            fit_head(features[train], labels[train], classes),
            fit_unknown(every, own, classes, crossed),
        )
    right = heads.evaluation_head.scores(features[test]).argmax(1) == labels[test]
    calibration = calibrate(crossed.logits, own[crossed.places])
    return FittedState(heads, test.nonzero().flatten(), right, calibration)
