"""The training loop, the only one."""

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD

from densekd.methods.method import Phase, Trains
from densekd.methods.terms import Step, Stream, Term, View
from densekd.nn.classifier import BiasClassifier
from densekd.nn.network import Network, Outputs
from densekd.seeds import Seeds
from densekd.training.callbacks import Callback, Stopped, TrainingProgress
from densekd.training.checkpoint import State
from densekd.training.engine import Engine, finite
from densekd.training.images import PhaseBatches, Views

# A callback is told this often, which is also when losses are read back from the device.
_SECONDS_PER_REPORT = 1.0
# Training is saved after each epoch, and within one that takes longer than this.
_SECONDS_PER_SAVE = 600.0


class Diverged(ValueError):
    """The loss or the weights stopped being finite."""


@dataclass
class Position:
    """How far a task is: what a checkpoint says besides weights."""

    task: int
    phase: int = 0
    epoch: int = 0
    batch: int = 0
    done: int = 0  # batches since the task began
    images: int = 0  # over all streams and ranks
    seconds: float = 0.0  # of training, interruptions left out
    sums: dict[str, Tensor] = field(default_factory=dict)  # of each term, over the epoch's batches


class ExternalTeacher(NamedTuple):
    """A network that teaches another, of whatever architecture.

    Args:
        network: gives the teacher's logits; it is copied.
        sizes: how its classes are divided into the tasks of the pool, in the order of its logits.
    """

    network: Network
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class TaskTraining:
    """What is trained in a task: all that does not change from phase to phase."""

    task: int
    network: Network
    teacher: Network | None
    terms: Mapping[str, Term]  # by slot, those that have a part in this task
    old: tuple[int, ...]  # the tasks that the teacher knows
    added: int
    seeds: Seeds
    save: Callable[[State, Position], None]


class _Streams(nn.Module):
    """Several batches in one call, as DDP demands of what one backward pass goes through."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: dict[Stream, Tensor]) -> dict[Stream, Outputs]:
        return {stream: self.network(batch) for stream, batch in images.items()}


class Loop:
    """Trains a job's network through one phase.

    Args:
        engine: where it runs.
        job: what is trained.
        phase: for how long and how fast.
        feed: on which batches.
    """

    def __init__(self, engine: Engine, job: TaskTraining, phase: Phase, feed: PhaseBatches) -> None:
        self.engine, self.job, self.phase, self.feed = engine, job, phase, feed
        schedule = phase.schedule
        chosen = trained(job.network, phase.trains)
        for parameter in job.network.parameters():
            parameter.requires_grad_(_among(parameter, chosen))
        self.optimiser = SGD(
            chosen,
            lr=schedule.lr,
            momentum=schedule.momentum,
            weight_decay=schedule.weight_decay,
        )
        # Fabric's wrapper of the optimiser would only stand in the way of its state.
        self.student = engine.fabric.setup_module(_Streams(job.network), move_to_device=False)
        self.teacher = frozen(job.network) if phase.teacher == "self" else job.teacher
        self.terms = {
            slot: term
            for slot, term in job.terms.items()
            if (phase.slots is None or slot in phase.slots)
            and (self.teacher is not None or not term.needs_teacher)
        }
        self.taught: set[Stream] = {
            s for term in self.terms.values() if term.needs_teacher for s in term.streams
        }
        self.groups = torch.Generator()

    def run(self, position: Position, callback: Callback) -> None:
        """Train from ``position`` to the end of the phase.

        Raises:
            Stopped: when ``watch`` asked for it; all is saved.
            Diverged: when something is not finite; what was saved before stays.
        """
        schedule = self.phase.schedule
        self.job.network.train(not self.phase.fixed_statistics)
        while position.epoch < schedule.epochs:
            self._epoch(position, callback)
            self.engine.average_buffers(self.job.network)
            position.epoch, position.batch, position.sums = position.epoch + 1, 0, {}
            stop = self.engine.agreed(callback.stop())
            self._save(position)
            if stop:
                raise Stopped
        position.phase, position.epoch = position.phase + 1, 0

    def load(self, state: State) -> None:
        """Go on from what was saved."""
        names = {name: p for name, p in self.job.network.named_parameters() if p.requires_grad}
        self.job.network.load_state_dict(_part(state.tensors, "network."))
        if self.phase.teacher == "self":
            assert self.teacher is not None
            self.teacher.load_state_dict(_part(state.tensors, "teacher."))
        for name, parameter in names.items():
            if (saved := state.tensors.get(f"momentum.{name}")) is not None:
                # Laid out as before, since another layout may round otherwise.
                buffer = torch.empty_like(parameter).copy_(saved)
                self.optimiser.state[parameter]["momentum_buffer"] = buffer.detach()
        self.groups.set_state(state.tensors["groups"])

    def _epoch(self, position: Position, callback: Callback) -> None:
        schedule = self.phase.schedule
        for group in self.optimiser.param_groups:
            group["lr"] = schedule.lr_at(position.epoch)
        if position.batch == 0:
            seeds = self.job.seeds.at(self.phase.name, position.epoch)
            self.groups.manual_seed(seeds.number("groups"))
        clock = _Clock(position)
        saved = time.monotonic()
        for views in self.feed.epoch(position.epoch, position.batch):
            self._add(position.sums, self._step(views))
            position.batch += 1
            position.done += 1
            images = sum(len(batch.labels) for batch in views.values())
            position.images += images * self.engine.share.world
            last = position.batch == self.feed.batches
            if clock.due() or last:
                self._report(position, callback, clock)
            if last or self.engine.share.world > 1:
                continue  # what follows is for one process alone, in the middle of an epoch
            if callback.stop():
                self._save(position)
                raise Stopped
            if time.monotonic() - saved > _SECONDS_PER_SAVE:
                saved = time.monotonic()
                self._save(position)

    def _step(self, views: Views) -> dict[str, Tensor]:
        """One step of the optimiser; gives the terms' values, not waiting for them."""
        job = self.job
        images = {stream: self.engine.laid_out(batch.images) for stream, batch in views.items()}
        teachers: dict[Stream, Outputs] = {}
        if self.teacher is not None:
            with torch.no_grad(), self.engine.autocast():
                teachers = {s: self.teacher(x) for s, x in images.items() if s in self.taught}
        with self.engine.autocast():
            students = self.student(images)
            seen = {
                stream: View(batch.labels, students[stream], teachers.get(stream), batch.blend)
                for stream, batch in views.items()
            }
            step = Step(seen, job.old, job.added, self.groups, job.network)
            parts = {slot: term(step) for slot, term in self.terms.items()}
        total = torch.stack(list(parts.values())).sum()
        if self.engine.share.world > 1:
            # DDP waits for the gradient of every parameter, and not every class has a part in
            # every loss: without exemplars the old ones have none.
            total = total + 0.0 * sum(out.logits.sum() for out in students.values())
        self.optimiser.zero_grad(set_to_none=True)
        self.engine.fabric.backward(total)
        if self.phase.schedule.clamp is not None:
            nn.utils.clip_grad_value_(job.network.parameters(), self.phase.schedule.clamp)
        self.optimiser.step()
        return {slot: part.detach() for slot, part in parts.items()}

    def _add(self, sums: dict[str, Tensor], parts: dict[str, Tensor]) -> None:
        for slot, part in parts.items():
            sums[slot] = sums[slot] + part if slot in sums else part

    def _report(self, position: Position, callback: Callback, clock: "_Clock") -> None:
        # A loss that was ever not finite stays so in the sum.
        totals = torch.stack(list(position.sums.values())).tolist()
        losses = {s: x / position.batch for s, x in zip(position.sums, totals, strict=True)}
        # Ranks have to fail together, which they do when the weights are checked.
        if self.engine.share.world == 1:
            self._check(all(map(math.isfinite, totals)), position)
        schedule = self.phase.schedule
        report = TrainingProgress(
            self.job.task,
            self.phase.name,
            position.epoch,
            schedule.epochs,
            position.batch,
            self.feed.batches,
            schedule.lr_at(position.epoch),
            clock.tick(),
            losses,
        )
        callback.report(report)

    def _save(self, position: Position) -> None:
        # A gradient that was not finite has left a weight that isn't.
        self._check(finite(list(self.job.network.parameters())), position)
        tensors = {f"network.{name}": x for name, x in self.job.network.state_dict().items()}
        if self.phase.teacher == "self":
            assert self.teacher is not None
            # Another teacher is the network before the task, which a resume has.
            tensors |= {f"teacher.{name}": x for name, x in self.teacher.state_dict().items()}
        if self.feed.chosen is not None:
            tensors["chosen"] = self.feed.chosen
        for name, parameter in self.job.network.named_parameters():
            if buffer := _momentum(self.optimiser, parameter):
                tensors[f"momentum.{name}"] = buffer[0]
        tensors |= {f"sums.{slot}": total for slot, total in position.sums.items()}
        facts = {k: v for k, v in vars(position).items() if k != "sums"}
        self.job.save(State(facts, {**tensors, "groups": self.groups.get_state()}), position)

    def _check(self, fine: bool, position: Position) -> None:
        if not fine:
            # When an epoch is saved at its end, the position is already that of the next.
            epoch = position.epoch + bool(position.batch)
            raise Diverged(
                f"The loss of task {self.job.task + 1} stopped being finite in epoch {epoch}; "
                "try a smaller learning rate or a smaller lambda_base. "
                "What was learned before is kept."
            )


def frozen(network: Network) -> Network:
    """A copy that learns no more, to teach."""
    return copy.deepcopy(network).eval().requires_grad_(False)


def trained(network: Network, what: Trains) -> list[nn.Parameter]:
    """The parameters that a phase trains."""
    classifier = network.classifier
    weights = [*classifier.blocks, *getattr(classifier, "biases", [])]
    bias = [classifier.beta, classifier.gamma] if isinstance(classifier, BiasClassifier) else []
    if what == "bias":
        return bias
    if what == "weights":
        return weights
    newest = [*classifier.blocks[-1:], *getattr(classifier, "biases", [])[-1:]]
    fixed = bias + ([w for w in weights if not _among(w, newest)] if what == "new" else [])
    return [p for p in network.parameters() if not _among(p, fixed)]


def _among(parameter: nn.Parameter, others: list[nn.Parameter]) -> bool:
    return any(parameter is other for other in others)


def position_of(state: State) -> Position:
    """The position that was saved."""
    return Position(**state.facts, sums=_part(state.tensors, "sums."))


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}


def _momentum(optimiser: SGD, parameter: nn.Parameter) -> list[Tensor]:
    state: dict[str, Any] = optimiser.state.get(parameter, {})
    buffer = state.get("momentum_buffer")
    return [] if buffer is None else [buffer]


class _Clock:
    """Counts the seconds of training into a position, and says when a report is due."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.last = time.monotonic()
        self.images = position.images

    def due(self) -> bool:
        return time.monotonic() - self.last >= _SECONDS_PER_REPORT

    def tick(self) -> float:
        """Images per second since the last tick."""
        now = time.monotonic()
        seconds, images = now - self.last, self.position.images - self.images
        self.position.seconds += seconds
        self.last, self.images = now, self.position.images
        return images / max(seconds, 1e-9)
