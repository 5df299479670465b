"""A pool whose jobs end at once with accuracies that a test makes up."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from densekd.jobs.events import JobDone, JobEvent, JobFailed, JobProgress, JobStopped
from densekd.sweeps.jobs import SweepJob

from support.run_folders import made_up_result, rewrite

# The validation accuracies after each task, and the test accuracy, of a run at a point.
Script = Callable[[Mapping[str, Any]], tuple[Sequence[float], float]]


class ScriptedPool:
    """Ends one job at a time; a job that is asked to stop does so before its next task."""

    def __init__(self, script: Script, stop_after: int | None = None) -> None:
        self.script, self.stop_after = script, stop_after
        self.started: list[SweepJob] = []
        self.done: list[SweepJob] = []
        self._running: SweepJob | None = None
        self._pruned: SweepJob | None = None

    @property
    def free(self) -> bool:
        return self._running is None

    def start(self, job: SweepJob) -> None:
        self.started.append(job)
        self._running = job

    def events(self, seconds: float) -> Iterator[tuple[SweepJob, JobEvent]]:
        if (job := self._running) is None:
            return
        if self.stop_after is not None and len(self.done) >= self.stop_after:
            raise KeyboardInterrupt  # as if the process were killed
        scores, test = self.script(job.point)
        for task in range(len(scores)):
            yield job, JobProgress("task", base_done=True, scores=tuple(scores[: task + 1]))
            if self._pruned is job:
                self._running = None
                yield job, JobStopped()
                return
        self._running = None
        if not scores:
            yield job, JobFailed("there is no memory left.")
            return
        held = {"average_incremental_accuracy": sum(scores) / len(scores)}
        rewrite(job.folder / "result.json", {**made_up_result(test), "validation": held})
        self.done.append(job)
        yield job, JobDone()

    def stop(self) -> None:
        raise AssertionError("nobody asked to stop")

    def stop_job(self, job: SweepJob) -> None:
        self._pruned = job

    def close(self) -> None:
        """Nothing is left to end."""


def has_result(job: SweepJob) -> bool:
    return (job.folder / "result.json").exists()
