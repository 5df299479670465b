"""The training loop: through the phases of a task, with reports and checkpoints."""

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from densekd.data.batches import Batch
from densekd.files import DamagedFile
from densekd.json_checks import is_count, is_real, record
from densekd.methods.method import Phase
from densekd.methods.terms import Step, Stream, Trains, View
from densekd.nn.classifier import BiasClassifier
from densekd.nn.network import Network, Outputs
from densekd.parts import OwnPartError
from densekd.training.callbacks import Callback, Stopped, TrainingProgress
from densekd.training.checkpoint import (
    Checkpoints,
    State,
    select_prefix,
    sound_content,
)
from densekd.training.engine import all_finite
from densekd.training.optimisers import (
    can_scale,
    load_optimiser_tensors,
    load_scaler_tensors,
    make_optimiser,
    optimiser_tensors,
    scaler_tensors,
)
from densekd.training.phases import PhaseTraining, TaskTraining

# How often to report progress, which waits for the device to read the losses.
_SECONDS_PER_REPORT = 1.0
# Training is saved after each epoch, and within an epoch that takes longer than this.
_SECONDS_PER_SAVE = 600.0


logger = logging.getLogger(__name__)


_COUNTS = ("task", "phase", "epoch", "batch", "done", "images")
_POSITION = record({**dict.fromkeys(_COUNTS, is_count), "seconds": is_real})


class Diverged(ValueError):
    """The loss or the weights are no longer finite."""


@dataclass
class Position:
    """How far the training of a task is; saved in checkpoints."""

    task: int
    phase: int = 0
    epoch: int = 0
    batch: int = 0
    done: int = 0  # batches since the task began
    images: int = 0  # over all streams and ranks
    seconds: float = 0.0  # of training, without interruptions
    sums: dict[str, Tensor] = field(default_factory=dict)  # each term's loss over the epoch so far

    def add(self, losses: Mapping[str, Tensor], images: int) -> None:
        """Count one batch."""
        self.batch += 1
        self.done += 1
        self.images += images
        for slot, loss in losses.items():
            self.sums[slot] = self.sums[slot] + loss if slot in self.sums else loss


def train_task(
    training: TaskTraining, network: Network, callback: Callback, checkpoints: Checkpoints | None
) -> Position:
    """Train a network through all phases of a task, starting from the newest checkpoint.

    Raises:
        Stopped: ``callback`` asked to stop; the position is saved.
        Diverged: a loss or a weight is not finite; earlier checkpoints are kept.
    """
    task, saved = training.task.number, None if checkpoints is None else checkpoints.newest()
    position = Position(task)
    if checkpoints is not None and saved is not None:
        with sound_content(checkpoints.folder):
            position = _position(checkpoints.folder, saved)
    if position.task != task:
        raise ValueError(
            f"These checkpoints are of task {position.task + 1}, not of task {task + 1}; "
            "give each task a folder of its own."
        )
    left = sum(phase.schedule.epochs for phase in training.phases[position.phase :])
    if saved is not None and position.epoch < left:
        logger.info("Resumed task %d after epoch %d.", task + 1, position.epoch)
        callback.resumed_within(task, position.epoch)
    for phase in training.phases[position.phase :]:
        if training.lacks_images(phase):
            position.phase += 1
            continue
        started = PhaseTraining(training, phase, network, {} if saved is None else saved.tensors)
        loop = _PhaseLoop(started, network, checkpoints)
        if checkpoints is not None and saved is not None:
            with sound_content(checkpoints.folder):
                loop.load_state(saved)
            saved = None
        loop.run(position, callback)
    # In evaluation mode, so that inference switches no mode while another thread infers.
    network.eval().requires_grad_(True).zero_grad()  # which frees the gradients' memory
    return position


def _position(folder: Path, state: State) -> Position:
    """The position in a checkpoint of a folder."""
    sums = select_prefix(state.tensors, "sums.")
    if not _POSITION(state.facts) or any(total.shape for total in sums.values()):
        raise DamagedFile(f"{folder} is damaged: its newest checkpoint has no position.")
    return Position(**state.facts, sums=sums)


class _Streams(nn.Module):
    """Runs all batches of a step in one call: DDP needs one forward for each backward pass."""

    def __init__(self, network: Network, outputs: Callable[[Tensor], Outputs]) -> None:
        super().__init__()
        self.network, self.outputs = network, outputs

    def forward(self, images: dict[Stream, Tensor]) -> dict[Stream, Outputs]:
        return {stream: self.outputs(batch) for stream, batch in images.items()}


class _PhaseLoop:
    """Trains a network through one phase."""

    def __init__(
        self, training: PhaseTraining, network: Network, checkpoints: Checkpoints | None
    ) -> None:
        self.training, self.network, self.checkpoints = training, network, checkpoints
        self.task, self.phase = training.task, training.phase
        self.engine = self.task.settings.engine
        groups = _parameter_groups(network, self.phase)
        network.requires_grad_(False)
        for parameter in itertools.chain(*groups.values()):
            parameter.requires_grad_(True)
        self.optimiser = make_optimiser(groups, self.phase.schedule)
        self.scaler = self.engine.make_scaler()
        # Fabric doesn't wrap the optimiser, since its state is read and set here.
        streams = _Streams(network, self.engine.forward(network))
        self.student = self.engine.fabric.setup_module(streams, move_to_device=False)
        teacher = training.teacher
        self.teacher = None if teacher is None else self.engine.forward(teacher)
        self.taught: set[Stream] = {
            s for term in training.terms.values() if term.needs_teacher for s in term.streams
        }
        self.groups = torch.Generator()
        # When progress was last reported, and after how many images.
        self._reported, self._images = 0.0, 0

    def run(self, position: Position, callback: Callback) -> None:
        """Train from ``position`` to the end of the phase."""
        schedule = self.phase.schedule
        self.network.train(not self.phase.fixed_statistics)
        while position.epoch < schedule.epochs:
            self._epoch(position, callback)
            self.engine.average_buffers(self.network)
            position.epoch, position.batch, position.sums = position.epoch + 1, 0, {}
            stop = self.engine.broadcast(callback.stop())
            self._save(position)
            if stop:
                raise Stopped
        position.phase, position.epoch = position.phase + 1, 0

    def load_state(self, state: State) -> None:
        """Continue from a checkpoint."""
        self.network.load_state_dict(select_prefix(state.tensors, "network."))
        load_optimiser_tensors(self.optimiser, self.network, state.tensors)
        self.groups.set_state(state.tensors["groups"])
        load_scaler_tensors(self.scaler, state.tensors)

    def _epoch(self, position: Position, callback: Callback) -> None:
        schedule = self.phase.schedule
        for group in self.optimiser.param_groups:
            group["lr"] = group["factor"] * schedule.lr_at(position.epoch)
        if position.batch == 0:
            seeds = self.task.seeds.at(self.phase.name, position.epoch)
            self.groups.manual_seed(seeds.number("groups"))
        saved = self._reported = time.monotonic()
        self._images = position.images
        for batches in self.training.epoch(position.epoch, position.batch):
            images = sum(len(batch.labels) for batch in batches.values())
            place = self.phase.name, position.epoch, position.batch, self.engine.share.rank
            # Networks and terms may draw from torch's global generators, as dropout does.
            with self.engine.seeded(self.task.seeds.at(*place).number("noise")):
                losses = self._step(batches)
            position.add(losses, images * self.engine.share.world)
            last = position.batch == len(self.training)
            if last or time.monotonic() - self._reported >= _SECONDS_PER_REPORT:
                self._report(position, callback)
            if last or self.engine.share.world > 1:
                continue  # several ranks stop and save only at the end of an epoch, together
            if callback.stop():
                self._save(position)
                raise Stopped
            if time.monotonic() - saved > _SECONDS_PER_SAVE:
                saved = time.monotonic()
                self._save(position)

    def _step(self, batches: Mapping[Stream, Batch]) -> dict[str, Tensor]:
        """Take one step; returns each term's loss without waiting for the device."""
        images = {stream: self.engine.lay_out(batch.images) for stream, batch in batches.items()}
        teachers: dict[Stream, Outputs] = {}
        if self.teacher is not None:
            # Not inference_mode: the loss saves the teacher's outputs for the backward pass.
            with torch.no_grad(), self.engine.autocast():
                teachers = {s: self.teacher(x) for s, x in images.items() if s in self.taught}
        with self.engine.autocast():
            students = self.student(images)
            self._check_maps(students)
            views = {
                stream: View(batch.labels, students[stream], teachers.get(stream), batch.blend)
                for stream, batch in batches.items()
            }
            old, new = self.task.teacher_sizes, self.task.new_classes
            step = Step(views, old, new, self.groups, self.network)
            terms = self.training.terms.items()
            losses = {slot: _checked_loss(slot, term(step)) for slot, term in terms}
        total = torch.stack(list(losses.values())).sum()
        if not total.requires_grad:
            raise OwnPartError(
                f"The terms {', '.join(losses)} don't depend on the weights that are trained; "
                "compute them from the student's outputs, without detach or no_grad."
            )
        if self.engine.share.world > 1:
            # DDP waits for the gradient of every parameter, but some may be in no loss, such as
            # those of old classes without exemplars, or a layer that the network doesn't use.
            groups = self.optimiser.param_groups
            total = total + 0.0 * sum(x.sum() for group in groups for x in group["params"])
        self.optimiser.zero_grad(set_to_none=True)
        self.engine.fabric.backward(self.scaler.scale(total))
        self.scaler.unscale_(self.optimiser)
        if self.phase.schedule.clamp is not None:
            nn.utils.clip_grad_value_(self.network.parameters(), self.phase.schedule.clamp)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        return {slot: loss.detach() for slot, loss in losses.items()}

    def _check_maps(self, students: Mapping[Stream, Outputs]) -> None:
        """Refuse a network without maps in the first step, not when a term first needs them."""
        slots = [repr(slot) for slot, term in self.task.terms.items() if term.needs_maps]
        if slots and not all(out.maps for out in students.values()):
            raise ValueError(
                f"{self.task.method.name}: the term {', '.join(slots)} compares feature maps, but "
                "the network has none; take one that has, such as podnet32, or another method."
            )

    def _report(self, position: Position, callback: Callback) -> None:
        totals = torch.stack(list(position.sums.values()))
        sums = dict(zip(position.sums, totals.tolist(), strict=True))
        # Several ranks must fail together, so they check the sum over all ranks once an epoch.
        if self.engine.share.world == 1 or position.batch == len(self.training):
            # A sum stays non-finite once one of its losses was.
            finite = self.engine.total(totals).isfinite().tolist()
            wrong = [slot for slot, fine in zip(sums, finite, strict=True) if not fine]
            self._check(not wrong and can_scale(self.scaler), position, wrong)
        schedule, now = self.phase.schedule, time.monotonic()
        seconds, images = now - self._reported, position.images - self._images
        position.seconds += seconds
        self._reported, self._images = now, position.images
        report = TrainingProgress(
            position.task,
            self.phase.name,
            position.epoch,
            schedule.epochs,
            position.batch,
            len(self.training),
            schedule.lr_at(position.epoch),
            images / max(seconds, 1e-9),
            {slot: x / position.batch for slot, x in sums.items()},
        )
        callback.report(report)

    def _save(self, position: Position) -> None:
        # A gradient that was not finite shows up as a weight that isn't.
        finite = all_finite(list(self.network.parameters()))
        self._check(finite and can_scale(self.scaler), position)
        if self.checkpoints is None or not self.engine.first:
            return
        tensors = {f"network.{name}": x for name, x in self.network.state_dict().items()}
        tensors |= optimiser_tensors(self.optimiser, self.network) | scaler_tensors(self.scaler)
        tensors |= {f"sums.{slot}": total for slot, total in position.sums.items()}
        tensors |= {"groups": self.groups.get_state(), **self.training.state()}
        facts = {name: value for name, value in vars(position).items() if name != "sums"}
        self.checkpoints.save(position.done, State(facts, tensors))

    def _check(self, fine: bool, position: Position, slots: Sequence[str] = ()) -> None:
        if not fine:
            # At the end of an epoch the position is already that of the next one.
            epoch = position.epoch + bool(position.batch)
            wider = ", or engine.precision=32" if self.scaler.is_enabled() else ""
            terms = f" (the term {', '.join(map(repr, slots))})" if slots else ""
            raise Diverged(
                f"The loss of task {position.task + 1}{terms} stopped being finite in epoch "
                f"{epoch}; try a smaller learning rate or a smaller lambda_base{wider}. "
                "What was learned before is kept."
            )


def _checked_loss(slot: str, loss: object) -> Tensor:
    """Refuse the loss of a term, which may be custom, unless it is a scalar tensor of floats."""
    if not isinstance(loss, Tensor) or loss.ndim or not loss.is_floating_point():
        given = type(loss).__name__
        if isinstance(loss, Tensor):
            given = f"shape {list(loss.shape)}" if loss.ndim else str(loss.dtype)
        raise OwnPartError(f"The term {slot!r} must return a scalar tensor of floats, not {given}.")
    return loss


def _parameter_groups(network: Network, phase: Phase) -> dict[float, list[nn.Parameter]]:
    """The parameters that a phase trains, by the factor of their learning rate."""
    if phase.rates is None:
        return {1.0: _trainable_parameters(network, phase.trains)}
    groups: dict[float, list[nn.Parameter]] = {}
    named = dict(network.named_parameters(remove_duplicate=False))
    for name, factor in phase.rates.items():
        if name not in named:
            raise OwnPartError(
                f"The phase {phase.name!r} has a rate for {name!r}, but the network has no such "
                f"parameter; its first is {next(iter(named))!r}."
            )
        groups.setdefault(factor, []).append(named[name])
    return groups


def _trainable_parameters(network: Network, what: Trains) -> list[nn.Parameter]:
    """The parameters that a phase trains."""
    classifier = network.classifier
    weights = [*classifier.blocks, *getattr(classifier, "biases", [])]
    bias = [classifier.beta, classifier.gamma] if isinstance(classifier, BiasClassifier) else []
    if what in ("bias", "weights"):
        return bias if what == "bias" else weights
    old = [*classifier.blocks[:-1], *getattr(classifier, "biases", [])[:-1]]
    fixed = {id(parameter) for parameter in bias + (old if what == "new" else [])}
    return [parameter for parameter in network.parameters() if id(parameter) not in fixed]
