"""densekd: networks that learn new classes and keep the old ones, by dense distillation."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from densekd.data.convert import as_dataset as as_dataset
    from densekd.data.dataset import Dataset as Dataset
    from densekd.data.memory import ExemplarMemory as ExemplarMemory
    from densekd.data.scenario import Scenario as Scenario
    from densekd.data.scenario import Task as Task
    from densekd.data.sources import load as load
    from densekd.losses.distill import DenseDistillation as DenseDistillation
    from densekd.methods.adaptive_weights import AdaptiveWeights as AdaptiveWeights
    from densekd.methods.method import Method as Method
    from densekd.methods.method import MethodSpec as MethodSpec
    from densekd.methods.method import Phase as Phase
    from densekd.methods.paper import DenseOptions as DenseOptions
    from densekd.methods.registry import make_method as make_method
    from densekd.methods.schedule import Schedule as Schedule
    from densekd.methods.schedule import Schedules as Schedules
    from densekd.methods.terms import CrossEntropy as CrossEntropy
    from densekd.methods.terms import Step as Step
    from densekd.methods.terms import Term as Term
    from densekd.nn.network import Features as Features
    from densekd.pool import TaskPool as TaskPool
    from densekd.runs.loaded import load_run as load_run
    from densekd.training.learner import Learner as Learner
    from densekd.training.own_metrics import StepOutputs as StepOutputs
    from densekd.training.settings import Settings as Settings

# Each public name is imported when it is first used: torch takes seconds to import, and
# `densekd --help` must not wait for it. The imports above are for type checkers.
_MODULES = {
    "AdaptiveWeights": "densekd.methods.adaptive_weights",
    "CrossEntropy": "densekd.methods.terms",
    "Dataset": "densekd.data.dataset",
    "DenseDistillation": "densekd.losses.distill",
    "DenseOptions": "densekd.methods.paper",
    "ExemplarMemory": "densekd.data.memory",
    "Features": "densekd.nn.network",
    "Learner": "densekd.training.learner",
    "Method": "densekd.methods.method",
    "MethodSpec": "densekd.methods.method",
    "Phase": "densekd.methods.method",
    "Scenario": "densekd.data.scenario",
    "Schedule": "densekd.methods.schedule",
    "Schedules": "densekd.methods.schedule",
    "Settings": "densekd.training.settings",
    "Step": "densekd.methods.terms",
    "StepOutputs": "densekd.training.own_metrics",
    "Task": "densekd.data.scenario",
    "TaskPool": "densekd.pool",
    "Term": "densekd.methods.terms",
    "as_dataset": "densekd.data.convert",
    "load": "densekd.data.sources",
    "load_run": "densekd.runs.loaded",
    "make_method": "densekd.methods.registry",
}
__all__ = [*_MODULES]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'densekd' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
