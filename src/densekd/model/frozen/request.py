"""An update of a model on a frozen backbone: features of the new photos, and a new head."""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from densekd.config.settings_tree import digest
from densekd.data.dataset import OnProgress
from densekd.data.decode import centre_crop, open_rgb, try_all
from densekd.data.folder import check_usable, find_images, warn_left_out
from densekd.data.selection import herding
from densekd.files import read_sealed_json, write_sealed_json
from densekd.model.frozen.backbone import BATCH, FrozenBackbone, pretrained_backbone
from densekd.model.frozen.model import FrozenModel
from densekd.model.frozen.photo_files import (
    PhotoFile,
    hash_photos,
    photos_within,
    trainable,
    without_copies,
)
from densekd.model.frozen.photos import Photos, hash_rows, small_jpeg
from densekd.model.frozen.update import FrozenUpdate
from densekd.model.images import check_learnable
from densekd.model.options import TeachOptions
from densekd.model.parallel import compute_readable, map_batches
from densekd.model.request import Plan, TeachObserver, UpdateRequest
from densekd.model.store import FROZEN, Store, Update
from densekd.training.callbacks import Stopped, stoppable
from densekd.training.checkpoint import Checkpoints, State

DEFAULT_NETWORK = "lite0"
# The number of training images kept of each class: enough to fine-tune, or to change the backbone.
# Test images are all kept.
_KEPT = 50
_SAVE_SECONDS = 10.0
_TIMED = 32  # photos
# The share of a budget for computing features; the rest is for fitting, testing and saving.
_BUDGET_SHARE = 0.9

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FrozenRequest(UpdateRequest):
    """An update that computes features of new photos and refits the head to all features."""

    model: FrozenModel | None
    source: Path
    files: tuple[PhotoFile, ...]

    @classmethod
    def read(
        cls, store: Store, source: Path, options: TeachOptions, on_progress: OnProgress
    ) -> Self | Update:
        """Find and hash the photos; their pixels are read when the update is carried out."""
        pointer, found = store.pointer(), find_images(source)
        files, on_known = hash_photos(found.table(), on_progress), options.known
        contents = [[photo.name, photo.test, photo.hash.hex()] for photo in files]
        asked, model = digest([contents, asdict(options)]), None
        if pointer is not None:
            last = store.before_finetuning(pointer.step)
            facts = store.facts(last)
            if facts.get("asked") == asked:
                if not facts.get("left_out"):
                    return store.entry(last, pointer).update
                on_known = "add"  # go on with the photos that the budget left out
            model = FrozenModel.open(store.folder, pointer.step)
            _check_options(model, options)
        known = () if model is None else model.classes
        check_learnable(source, found, known, on_known, needs_new=False)
        warn_left_out(found.left_out)
        new = without_copies(files, set() if model is None else model.taught)
        if not new:
            raise ValueError(
                f"{source} has no photo that the model wasn't taught already; add new ones."
            )
        return cls(store, pointer, options, asked, model, source, new)

    @cached_property
    def backbone(self) -> FrozenBackbone:
        """The model's backbone, or that of a new model."""
        if self.model is not None:
            return self.model.backbone
        return pretrained_backbone(self.options.network or DEFAULT_NETWORK)

    def timed_plan(self, observer: TeachObserver, began: float) -> Plan:
        """The plan, with the measured time for computing the features."""
        each = self._seconds_per_photo(observer)
        chosen = photos_within(self.files, self._affordable_photos(each, began))
        return replace(self.plan(chosen), seconds=each * len(chosen))

    def plan(self, files: Sequence[PhotoFile], *, resumed: bool = False) -> Plan:
        """The plan for learning from these photos."""
        files = trainable(files, self.known)
        train = Counter(photo.name for photo in files if not photo.test)
        return Plan(
            self.step,
            0 if self.model is None else len(self.model.facts["photos"]),
            {name: count for name, count in train.items() if name not in self.known},
            {name: count for name, count in train.items() if name in self.known},
            dict(Counter(photo.name for photo in files if photo.test)),
            self.backbone.size,
            self.backbone.network,
            FROZEN,
            resumed=resumed,
        )

    def carry_out(self, observer: TeachObserver, began: float) -> Update:
        """Compute features, fit the head, test, save, verify and commit."""
        chosen = self._within_budget(observer, began)
        checkpoints = Checkpoints(self.pending / self._saved_as)
        observer.planned(self.plan(chosen, resumed=checkpoints.newest() is not None))
        computed = self._features(chosen, checkpoints, observer)
        files = self._readable(chosen, dict(computed.facts["unreadable"]))
        try:
            files, photos = self._photos(files, computed.tensors["features"], observer)
        except Stopped:
            checkpoints.save(len(chosen), computed)
            raise
        observer.doing("fitting")
        names = [photo.name for photo in files]
        learned = tuple(sorted(set(names) - set(self.known)))
        classes = (*self.known, *learned)
        ranks = torch.tensor([classes.index(name) for name in names])
        earlier = [] if self.model is None else [self.model.labels]
        update = FrozenUpdate(
            self.store,
            self.step,
            self.model,
            self.backbone,
            classes,
            torch.cat([*earlier, ranks]),
            photos,
            self.digest,
            learned,
            tuple(name for name in self.known if name in set(names)),
            left_out=len(self.files) - len(chosen),
        )
        return update.commit(self.pending / "state", began)

    @property
    def _saved_as(self) -> str:
        """The checkpoint folder; with a budget another one, as old versions chose other photos."""
        return "features" if self.options.budget is None else "chosen"

    def _features(
        self, files: Sequence[PhotoFile], checkpoints: Checkpoints, observer: TeachObserver
    ) -> State:
        """The features of readable photos, and why others can't be read; saved every 10 seconds."""
        saved = checkpoints.newest() or State({"unreadable": []}, {})
        rows: list[Tensor] = list(saved.tensors.get("features", torch.empty(0)))
        unreadable: dict[int, str] = dict(saved.facts["unreadable"])
        done, last = len(rows) + len(unreadable), time.monotonic()
        progress = stoppable(observer.reading, observer)
        # Always the same batches, so that a resumed update ends with the same bits.
        batches = [files[i : i + BATCH] for i in range(done, len(files), BATCH)]
        try:
            for batch in map_batches(self._computed, batches):
                for place, result in enumerate(batch, done):
                    if isinstance(result, str):
                        unreadable[place] = result
                    else:
                        rows.append(result)
                done += len(batch)
                progress(done, len(files))
                if time.monotonic() - last > _SAVE_SECONDS:
                    checkpoints.save(done, _features_state(rows, unreadable))
                    last = time.monotonic()
        except Stopped:
            checkpoints.save(done, _features_state(rows, unreadable))
            raise
        return _features_state(rows, unreadable)

    def _readable(
        self, files: Sequence[PhotoFile], unreadable: Mapping[int, str]
    ) -> list[PhotoFile]:
        """The photos except the ``unreadable`` places; raises ValueError if too few are left."""
        warn_left_out([(files[place].file, why) for place, why in unreadable.items()])
        readable = [photo for place, photo in enumerate(files) if place not in unreadable]
        counts = {
            part: Counter(photo.name for photo in readable if photo.part == part)
            for part in {photo.part for photo in files}
        }
        check_usable(self.source, counts, self.known)
        return trainable(readable, self.known)

    def _computed(self, files: Sequence[PhotoFile]) -> list[Tensor | str]:
        """The features of each photo in half precision, or why it can't be read."""
        size = self.backbone.size

        def crop(photo: PhotoFile) -> Tensor:
            return centre_crop(open_rgb(photo.file, size), size, FrozenModel.resample)

        def features(pixels: Tensor) -> Sequence[Tensor]:
            return self.backbone.features(pixels).half().unbind()

        return compute_readable(files, crop, features)

    def _photos(
        self, files: Sequence[PhotoFile], features: Tensor, observer: TeachObserver
    ) -> tuple[list[PhotoFile], Photos]:
        """The photos that can still be read, with their features; some also with their image."""
        places = self._kept(files, features).nonzero().flatten().tolist()
        jpegs, size = [b""] * len(files), self.backbone.size

        def encode(i: int) -> None:
            jpegs[places[i]] = small_jpeg(files[places[i]].file, size)

        gone = dict(try_all(places, encode, stoppable(observer.reading, observer))[1])
        left = [place for place in range(len(files)) if place not in gone]
        readable = self._readable(files, gone)
        test = torch.tensor([photo.test for photo in readable])
        hashes = hash_rows([photo.hash for photo in readable])
        return readable, Photos(hashes, features[left], test, tuple(jpegs[i] for i in left))

    def _kept(self, files: Sequence[PhotoFile], features: Tensor) -> Tensor:
        """Whether to keep the image of each photo, bool ``[n]``."""
        test = torch.tensor([photo.test for photo in files])
        kept, earlier = test.clone(), Counter[str]()
        if self.model is not None:
            photos = self.model.photos
            ranks = self.model.labels[photos.kept & ~photos.test]
            earlier.update(self.known[rank] for rank in ranks.tolist() if rank >= 0)
        own = defaultdict[str, list[int]](list)
        for place, photo in enumerate(files):
            if not photo.test:
                own[photo.name].append(place)
        for name, places in own.items():
            room = _KEPT - earlier[name]
            if room > 0:
                chosen = herding([features[places].float()], room)[0]
                kept[torch.tensor(places)[chosen]] = True
        return kept

    def _seconds_per_photo(self, observer: TeachObserver) -> float:
        observer.doing("measuring")
        files = self.files[:_TIMED]
        batches = [files[i : i + BATCH] for i in range(0, len(files), BATCH)]
        for timed in (batches[:1], batches):  # the first pass warms up
            began, done = time.monotonic(), 0
            for batch in map_batches(self._computed, timed):
                done += len(batch)
                if observer.stop():
                    raise Stopped
        return (time.monotonic() - began) / done

    def _affordable_photos(self, seconds: float, began: float) -> int:
        """The number of photos that fit into the budget at so many seconds per photo."""
        if self.options.budget is None:
            return len(self.files)
        left = _BUDGET_SHARE * 60 * self.options.budget - (time.monotonic() - began)
        return max(0, int(left / seconds))

    def _within_budget(self, observer: TeachObserver, began: float) -> tuple[PhotoFile, ...]:
        """The photos to learn: all, or those of each class that fit into the budget."""
        if self.options.budget is None:
            return self.files
        file = self.pending / "budget.json"
        if not file.exists():
            each = self._seconds_per_photo(observer)
            write_sealed_json(file, {"photos": self._affordable_photos(each, began)})
        chosen = photos_within(self.files, read_sealed_json(file, unsealed=True)["photos"])
        if len(chosen) < len(self.files):
            logger.warning(
                "The budget of %g minutes is enough for %d of the %d photos; teach the same again "
                "to learn the rest.",
                *(self.options.budget, len(chosen), len(self.files)),
            )
        return chosen


def _features_state(rows: list[Tensor], unreadable: dict[int, str]) -> State:
    tensors = {"features": torch.stack(rows)} if rows else {}
    return State({"unreadable": list(unreadable.items())}, tensors)


def _check_options(model: FrozenModel, options: TeachOptions) -> None:
    if options.network not in (None, model.network):
        raise ValueError(
            f"The model's network is {model.network} and can't become {options.network}; leave the "
            "network out, or teach a new model."
        )
    if options.trains:
        raise ValueError(
            f"The backbone of {model.folder} is frozen, so it has no method, epochs, image size or "
            "training settings to choose; leave them out, or teach a new model."
        )
