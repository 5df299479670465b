"""How a task is trained by a method: on which batches, by which terms, through which phases."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from densekd.data.batches import Batch, Batches, RankShare
from densekd.data.dataset import Split, join_splits
from densekd.data.memory import ExemplarMemory
from densekd.data.scenario import Task
from densekd.data.stratify import oversample_rare
from densekd.methods.method import Method, Phase
from densekd.methods.terms import Stream, TaskContext, Term
from densekd.nn.network import Network
from densekd.seeds import Seeds
from densekd.training.callbacks import Callback
from densekd.training.checkpoint import State
from densekd.training.images import PhaseBatches, TaskImages, feed_of
from densekd.training.inference import features_of
from densekd.training.loop import Loop, Position, TaskTraining, position_of
from densekd.training.settings import Settings


@dataclass(frozen=True)
class Training:
    """The training of one task.

    Args:
        method: how to learn.
        settings: what does not depend on the method.
        memory: has the exemplars of the tasks before.
        sizes: the number of classes of each task before.
    """

    method: Method
    settings: Settings
    memory: ExemplarMemory
    sizes: tuple[int, ...]

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What it goes through."""
        return self.method.increment if self.sizes else self.method.base

    def context(
        self, task: Task, material: TaskImages, network: Network, seeds: Seeds
    ) -> TaskContext:
        """What terms are told before and after the task."""
        phase = self.phases[0]
        kept = [] if material.exemplars is None else [material.exemplars]

        def batches() -> Iterator[Batch]:
            images = join_splits([task.train, *kept])
            # Every rank sees all of it, since what terms keep has to be the same on all.
            return self._batches(images, phase, seeds.at("after"), RankShare()).epoch(0)

        return TaskContext(
            task,
            self.sizes,
            material.exemplars,
            lambda x: features_of(network, x, self.settings),
            network,
            batches,
        )

    def active(self, terms: dict[str, Term], material: TaskImages, taught: bool) -> dict[str, Term]:
        """The terms that have a part in this task: those with a batch, and a teacher if need be."""
        streams = {"merged"} if self.method.streams == "merged" else {"new"}
        if material.rehearsed is not None and self.method.streams == "split":
            streams.add("exemplars")
        teaching = {
            slot for phase in self.phases if phase.teacher == "self" for slot in phase.slots or ()
        }
        return {
            slot: term
            for slot, term in terms.items()
            if streams & set(term.streams)
            and (taught or not term.needs_teacher or slot in teaching)
        }

    def run(
        self, job: TaskTraining, material: TaskImages, callback: Callback, saved: State | None
    ) -> Position:
        """Go through all phases, or through those that ``saved`` leaves to be done."""
        position = Position(job.task) if saved is None else position_of(saved)
        if position.task != job.task:
            raise ValueError(
                f"These checkpoints are of task {position.task + 1}, not of task {job.task + 1}; "
                "give each task its own."
            )
        for phase in self.phases[position.phase :]:
            feed = self._feed(material, phase, job, saved)
            if feed is None:
                position.phase += 1
                continue
            loop = Loop(self.settings.engine, job, phase, feed)
            if saved is not None:
                loop.load(saved)
                saved = None
            loop.run(position, callback)
        job.network.requires_grad_(True)
        return position

    def _feed(
        self, material: TaskImages, phase: Phase, job: TaskTraining, saved: State | None
    ) -> PhaseBatches | None:
        def batches(images: Split, stream: Stream) -> Batches:
            seeds = job.seeds.at(phase.name, stream)
            return self._batches(images, phase, seeds, self.settings.engine.share)

        chosen = None
        if (
            phase.data == "balanced"
            and material.balanced is not None
            and self.memory.selection != "random"
        ):
            # By the network as it is now, or as it was when the phase began.
            chosen = None if saved is None else saved.tensors.get("chosen")
            if chosen is None:
                features = features_of(job.network, material.new, self.settings).cpu()
                drawn = job.seeds.generator("memory")
                chosen = torch.cat(self.memory.choose(material.new, job.added, drawn, features))
            balanced = self.memory.rehearsed(material.new, job.added, chosen)
            material = material._replace(balanced=balanced)
        if self.settings.oversample_rare:
            material = material._replace(new=oversample_rare(material.new))
        return feed_of(material, phase, self.method.streams, batches, chosen)

    def _batches(self, images: Split, phase: Phase, seeds: Seeds, share: RankShare) -> Batches:
        settings = self.settings
        augment = settings.augment.of(phase.augment, phase.mixup)
        size = phase.schedule.batch_size
        return Batches(images, size, augment, seeds, share, workers=settings.workers)
