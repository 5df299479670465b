"""densekd: networks that learn new classes and keep the old ones, by dense distillation."""

from densekd.losses.distill import DenseDistillation
from densekd.methods.weights import AdaptiveWeights
from densekd.pool import TaskPool

__all__ = ["AdaptiveWeights", "DenseDistillation", "TaskPool"]
__version__ = "0.1.0"
