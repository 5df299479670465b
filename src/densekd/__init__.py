"""densekd: networks that learn new classes and keep the old ones, by dense distillation.

Benchmarks; `run`, `sweep`, `compare` and `report` do what the commands of these names do:
    `run`, `sweep`, `compare`, `report`, `Result`, `load_run`, `RunObserver`, `Stopped`, `Logger`,
    `TensorBoardLogger`, `WandbLogger`, `MlflowLogger`

Your own model, taught from photos:
    `teach`, `Model`

Learners and their parts:
    `Learner`, `Settings`, `Method`, `MethodSpec`, `make_method`, `DenseOptions`, `Phase`,
    `Schedule`, `Schedules`, `Term`, `CrossEntropy`, `Distil`, `Step`, `ExemplarMemory`, `Quota`,
    `Features`, `StepOutputs`

Data and tasks:
    `load`, `as_dataset`, `Dataset`, `Scenario`, `Task`

The loss alone, for your own training loop:
    `DenseDistillation`, `AdaptiveWeights`, `TaskPool`

docs/python.md shows them at work; ``help(densekd.run)`` has the details of each.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from densekd.api.report import report as report
    from densekd.api.run import run as run
    from densekd.api.sweep import sweep as sweep
    from densekd.api.teach import teach as teach
    from densekd.data.convert import as_dataset as as_dataset
    from densekd.data.dataset import Dataset as Dataset
    from densekd.data.memory import ExemplarMemory as ExemplarMemory
    from densekd.data.memory import Quota as Quota
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
    from densekd.methods.terms import Distil as Distil
    from densekd.methods.terms import Step as Step
    from densekd.methods.terms import Term as Term
    from densekd.model.model import Model as Model
    from densekd.nn.network import Features as Features
    from densekd.pool import TaskPool as TaskPool
    from densekd.reports.compare import compare as compare
    from densekd.runs.loaded import load_run as load_run
    from densekd.runs.loggers import Logger as Logger
    from densekd.runs.observer import RunObserver as RunObserver
    from densekd.runs.result import Result as Result
    from densekd.runs.trackers import MlflowLogger as MlflowLogger
    from densekd.runs.trackers import TensorBoardLogger as TensorBoardLogger
    from densekd.runs.trackers import WandbLogger as WandbLogger
    from densekd.training.callbacks import Stopped as Stopped
    from densekd.training.learner import Learner as Learner
    from densekd.training.own_metrics import StepOutputs as StepOutputs
    from densekd.training.settings import Settings as Settings

# Each public name is imported when it is first used: torch takes seconds to import, and
# `densekd --help` must not wait for it. The imports above are for type checkers.
_NAMES = {
    "api.report": ["report"],
    "api.run": ["run"],
    "api.sweep": ["sweep"],
    "api.teach": ["teach"],
    "data.convert": ["as_dataset"],
    "data.dataset": ["Dataset"],
    "data.memory": ["ExemplarMemory", "Quota"],
    "data.scenario": ["Scenario", "Task"],
    "data.sources": ["load"],
    "losses.distill": ["DenseDistillation"],
    "methods.adaptive_weights": ["AdaptiveWeights"],
    "methods.method": ["Method", "MethodSpec", "Phase"],
    "methods.paper": ["DenseOptions"],
    "methods.registry": ["make_method"],
    "methods.schedule": ["Schedule", "Schedules"],
    "methods.terms": ["CrossEntropy", "Distil", "Step", "Term"],
    "model.model": ["Model"],
    "nn.network": ["Features"],
    "pool": ["TaskPool"],
    "reports.compare": ["compare"],
    "runs.loaded": ["load_run"],
    "runs.loggers": ["Logger"],
    "runs.observer": ["RunObserver"],
    "runs.result": ["Result"],
    "runs.trackers": ["MlflowLogger", "TensorBoardLogger", "WandbLogger"],
    "training.callbacks": ["Stopped"],
    "training.learner": ["Learner"],
    "training.own_metrics": ["StepOutputs"],
    "training.settings": ["Settings"],
}
_MODULES = {name: f"densekd.{module}" for module, names in _NAMES.items() for name in names}
__all__ = [*_MODULES]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'densekd' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
