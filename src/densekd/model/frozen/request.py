"""An update of a model on a frozen backbone: features of the new photos, and a new head."""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor

from densekd.config.settings_tree import digest
from densekd.data.dataset import OnProgress
from densekd.data.decode import UnreadableImage, centre_crop, in_threads, open_rgb, shorter_side
from densekd.data.folder import FolderTable, check_usable, find_images, warn_left_out
from densekd.data.selection import herding
from densekd.files import read_sealed_json, write_sealed_json
from densekd.model.frozen.backbone import BATCH, FrozenBackbone, pretrained_backbone
from densekd.model.frozen.model import FrozenModel
from densekd.model.frozen.photos import Photos, hash_rows, small_jpeg
from densekd.model.frozen.update import FrozenUpdate
from densekd.model.images import check_learnable, divide
from densekd.model.options import TeachOptions
from densekd.model.parallel import compute_readable, map_batches
from densekd.model.request import Plan, TeachObserver, UpdateRequest
from densekd.model.store import FROZEN, Store, Update
from densekd.training.callbacks import Stopped, stoppable
from densekd.training.checkpoint import Checkpoints, State

DEFAULT_NETWORK = "lite0"
# Images kept of each class besides those to test on: enough to fine-tune, or to change the
# backbone.
_KEPT = 50
_SEED = 0  # of the draw of photos to test on
_SAVE_SECONDS = 10.0
_TIMED = 32  # photos
# Of a budget; the rest is for fitting, testing and saving.
_BUDGET_SHARE = 0.9

logger = logging.getLogger(__name__)


class PhotoFile(NamedTuple):
    """A photo to be learned."""

    file: Path
    name: str  # its class
    part: str  # of the folder
    test: bool  # whether it is held out
    hash: bytes  # SHA-256 of the file


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
        files = _hashed(found.table())
        contents = [[photo.name, photo.test, photo.hash.hex()] for photo in files]
        asked, model = digest([contents, asdict(options)]), None
        if pointer is not None:
            last = store.before_finetuning(pointer.step)
            if store.facts(last).get("asked") == asked:
                return store.entry(last, pointer).update
            model = FrozenModel.open(store.folder, pointer.step)
            _check_options(model, options)
        known = () if model is None else model.classes
        check_learnable(source, found, known, options.known, needs_new=False)
        warn_left_out(found.left_out)
        new = _without_copies(files, model)
        if not new:
            raise ValueError(f"{source} has no photo that the model wasn't taught before.")
        return cls(store, pointer, options, asked, model, source, new)

    @cached_property
    def backbone(self) -> FrozenBackbone:
        """The model's backbone, or that of a new model."""
        if self.model is not None:
            return self.model.backbone
        return pretrained_backbone(self.options.network or DEFAULT_NETWORK)

    def timed_plan(self, observer: TeachObserver, began: float) -> Plan:
        """The plan with the time that computing the features takes."""
        each = self._seconds_per_photo(observer)
        chosen = _first_of_each(self.files, self._affordable_photos(each, began))
        return replace(self.plan(chosen), seconds=each * len(chosen))

    def plan(self, files: Sequence[PhotoFile], *, resumed: bool = False) -> Plan:
        """The plan of learning from these photos."""
        files = _trainable(files, self.known)
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
        checkpoints = Checkpoints(self.pending / "features")
        observer.planned(self.plan(chosen, resumed=checkpoints.newest() is not None))
        files, features = self._features(chosen, checkpoints, observer)
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
            self._photos(files, features, ranks),
            self.digest,
            learned,
            tuple(name for name in self.known if name in set(names)),
        )
        return update.commit(self.pending / "state", began)

    def _features(
        self, files: Sequence[PhotoFile], checkpoints: Checkpoints, observer: TeachObserver
    ) -> tuple[list[PhotoFile], Tensor]:
        """The photos that can be read, and their features; saved now and then."""
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
        warn_left_out([(files[place].file, why) for place, why in unreadable.items()])
        readable = [photo for place, photo in enumerate(files) if place not in unreadable]
        counts = {
            part: Counter(photo.name for photo in readable if photo.part == part)
            for part in {photo.part for photo in files}
        }
        check_usable(self.source, counts, self.known)
        return _trainable(readable, self.known), torch.stack(rows)

    def _computed(self, files: Sequence[PhotoFile]) -> list[Tensor | str]:
        """The features of each photo in half precision, or why it can't be read."""
        size = self.backbone.size

        def crop(photo: PhotoFile) -> Tensor:
            return centre_crop(open_rgb(photo.file, size), size, FrozenModel.resample)

        def features(pixels: Tensor) -> Sequence[Tensor]:
            return self.backbone.features(pixels).half().unbind()

        return compute_readable(files, crop, features)

    def _photos(self, files: Sequence[PhotoFile], features: Tensor, ranks: Tensor) -> Photos:
        """The photos of this update, with the images of some."""
        test = torch.tensor([photo.test for photo in files])
        kept = test.clone()
        earlier = Counter[int]()
        if self.model is not None:
            photos = self.model.photos
            earlier.update(self.model.labels[photos.kept & ~photos.test].tolist())
        for rank in ranks.unique().tolist():
            own = ((ranks == rank) & ~test).nonzero().flatten()
            room = _KEPT - earlier[rank]
            if len(own) and room > 0:
                kept[own[herding([features[own].float()], room)[0]]] = True
        shorter = shorter_side(self.backbone.size)
        encode = [photo.file if keep else None for photo, keep in zip(files, kept, strict=True)]
        jpegs = in_threads(lambda f: b"" if f is None else _kept_jpeg(f, shorter), encode)
        return Photos(hash_rows([photo.hash for photo in files]), features, test, tuple(jpegs))

    def _seconds_per_photo(self, observer: TeachObserver) -> float:
        observer.doing("measuring")
        files = self.files[:_TIMED]
        batches = [files[i : i + BATCH] for i in range(0, len(files), BATCH)]
        for timed in (batches[:1], batches):  # the first one warms up
            began, done = time.monotonic(), 0
            for batch in map_batches(self._computed, timed):
                done += len(batch)
                if observer.stop():
                    raise Stopped
        return (time.monotonic() - began) / done

    def _affordable_photos(self, seconds: float, began: float) -> int:
        """The number of photos that fit into the budget, if each takes so many seconds."""
        if self.options.budget is None:
            return len(self.files)
        left = _BUDGET_SHARE * 60 * self.options.budget - (time.monotonic() - began)
        return max(0, int(left / seconds))

    def _within_budget(self, observer: TeachObserver, began: float) -> tuple[PhotoFile, ...]:
        """The photos, or as many of each class as can be learned within the budget."""
        if self.options.budget is None:
            return self.files
        file = self.pending / "budget.json"
        if not file.exists():
            each = self._seconds_per_photo(observer)
            write_sealed_json(file, {"photos": self._affordable_photos(each, began)})
        chosen = _first_of_each(self.files, read_sealed_json(file, unsealed=True)["photos"])
        if len(chosen) < len(self.files):
            logger.warning(
                "The budget of %g minutes is enough for %d of the %d photos; the rest is left out.",
                *(self.options.budget, len(chosen), len(self.files)),
            )
        return chosen


def _features_state(rows: list[Tensor], unreadable: dict[int, str]) -> State:
    tensors = {"features": torch.stack(rows)} if rows else {}
    return State({"unreadable": list(unreadable.items())}, tensors)


def _trainable(files: Sequence[PhotoFile], known: Sequence[str]) -> list[PhotoFile]:
    """The same photos; a new class of which all are to test on learns from them instead."""
    learned = {photo.name for photo in files if not photo.test}.union(known)
    return [photo._replace(test=photo.test and photo.name in learned) for photo in files]


def _first_of_each(files: Sequence[PhotoFile], most: int) -> tuple[PhotoFile, ...]:
    """The first photos of each class, as many as make up ``most`` in all, but at least one."""
    seen, ranks = Counter[str](), []
    for photo in files:
        ranks.append(seen[photo.name])
        seen[photo.name] += 1
    totals = accumulate(count for _, count in sorted(Counter(ranks).items()))
    each = max(1, sum(total <= most for total in totals))
    return tuple(photo for photo, rank in zip(files, ranks, strict=True) if rank < each)


def _check_options(model: FrozenModel, options: TeachOptions) -> None:
    if options.network not in (None, model.network):
        raise ValueError(
            f"The model's network is {model.network} and can't become {options.network}; leave it "
            "out, or teach a new model."
        )
    if options.trains:
        raise ValueError(
            f"The features of {model.folder} are frozen, so it has no method, epochs, image size "
            "or training settings to choose; leave them out, or teach a new model."
        )


def _hashed(table: FolderTable) -> list[PhotoFile]:
    """The files with their hashes, divided into those to train and to test on."""
    names, parts, hashes = table.class_of_each, table.part_of_each, in_threads(_hash, table.paths)
    train, test = divide(names, parts, _SEED)
    rows = zip(table.paths, names, parts, test.tolist(), hashes, strict=True)
    used = (train | test).tolist()
    return [PhotoFile(*row) for row, use in zip(rows, used, strict=True) if use]


def _hash(file: Path) -> bytes:
    try:
        return sha256(file.read_bytes()).digest()
    except OSError as error:  # reported when its pixels are read
        return sha256(f"{file}: {error}".encode(errors="backslashreplace")).digest()


def _without_copies(files: Sequence[PhotoFile], model: FrozenModel | None) -> tuple[PhotoFile, ...]:
    """The photos that the model doesn't have yet, each once."""
    seen: set[tuple[str, bytes]] = set()
    if model is not None:
        rows = zip(model.photos.hashes.numpy(), model.labels.tolist(), strict=True)
        seen = {(model.classes[rank], row.tobytes()) for row, rank in rows if rank >= 0}
    new = []
    for photo in files:
        if (photo.name, photo.hash) not in seen:
            seen.add((photo.name, photo.hash))
            new.append(photo)
    if len(new) < len(files):
        logger.warning(
            "%d photos are copies of others; each is learned once.", len(files) - len(new)
        )
    classes = Counter(hashed for _, hashed in seen)
    shared = [photo for photo in new if classes[photo.hash] > 1]
    if shared:
        logger.warning(
            "%d photos are in more than one class, such as %s; keep each in one.",
            *(len(shared), shared[0].file),
        )
    return tuple(new)


def _kept_jpeg(file: Path, shorter: int) -> bytes:
    try:
        return small_jpeg(file, shorter)
    except UnreadableImage as error:
        raise ValueError(
            f"{str(file)!r} can't be read any more: {error}; repeat the command to learn the rest."
        ) from error
