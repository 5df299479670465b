"""densekd: networks that learn new classes and keep the old ones, by dense distillation."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from densekd.losses.distill import DenseDistillation
    from densekd.methods.adaptive_weights import AdaptiveWeights
    from densekd.pool import TaskPool
    from densekd.training.learner import Learner

__all__ = ["AdaptiveWeights", "DenseDistillation", "Learner", "TaskPool"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Imported when asked for: torch takes seconds, and `densekd --help` should not.
    if name == "AdaptiveWeights":
        from densekd.methods.adaptive_weights import AdaptiveWeights

        return AdaptiveWeights
    if name == "DenseDistillation":
        from densekd.losses.distill import DenseDistillation

        return DenseDistillation
    if name == "Learner":
        from densekd.training.learner import Learner

        return Learner
    if name == "TaskPool":
        from densekd.pool import TaskPool

        return TaskPool
    raise AttributeError(f"module 'densekd' has no attribute {name!r}")
