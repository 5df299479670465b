"""Loggers for TensorBoard, Weights & Biases and MLflow, and the loggers that settings name."""

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Literal, get_args

from densekd.checks import missing_extra
from densekd.config.settings_tree import flat
from densekd.parts import OwnPartError, display_name, explain_errors, find, is_reference, short_name
from densekd.runs.loggers import Axis, LoggedRun, Logger

_PARAMS_AT_ONCE = 100  # MLflow takes no more in one call


class TensorBoardLogger(Logger):
    """Writes events into the run folder: losses to ``epochs``, accuracies to ``tasks``.

    Runs have this logger by default if TensorBoard is installed.

    Example:
        >>> import densekd
        >>> board = densekd.TensorBoardLogger()
        >>> result = densekd.run(steps=1, epochs=1, quiet=True, loggers=[board])
        >>> sorted(each.name for each in (result.folder / "tensorboard").iterdir())
        ['epochs', 'tasks']
    """

    name = "tensorboard"

    def begin(self, run: LoggedRun) -> str | None:
        """Remember the folder; files are made when the first numbers come."""
        self._folder = run.folder / "tensorboard"
        self._writers: dict[str, Any] = {}
        return None

    def log(self, axis: Axis, step: int, numbers: Mapping[str, float]) -> None:
        """Write numbers, and hide those of an earlier call for this step and later ones."""
        if axis not in self._writers:
            from torch.utils.tensorboard import SummaryWriter  # slow to import

            self._writers[axis] = SummaryWriter(str(self._folder / axis), purge_step=step)
        writer = self._writers[axis]
        for tag, value in numbers.items():
            writer.add_scalar(tag, value, step)
        # Flush now: if the process is killed, the resumed run doesn't repeat checkpointed steps.
        writer.flush()

    def end(self, result: Mapping[str, Any] | None) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}


class WandbLogger(Logger):
    """Sends the numbers to Weights & Biases, or writes them into the run folder if offline.

    Args:
        project: by default ``WANDB_PROJECT``, else ``densekd``.
        mode: ``"online"`` or ``"offline"``; by default ``WANDB_MODE``, else online.

    Example:
        >>> import densekd
        >>> logger = densekd.WandbLogger(project="digits", mode="offline")
        >>> logger.name
        'wandb'
    """

    name = "wandb"

    def __init__(
        self, project: str | None = None, mode: Literal["online", "offline"] | None = None
    ) -> None:
        self.project, self.mode = project, mode
        self._run: Any = None

    def begin(self, run: LoggedRun) -> str | None:
        """Start a run at Weights & Biases, or resume that of an earlier call."""
        import wandb  # slow to import

        known = run.id or secrets.token_hex(4)
        self._run = wandb.init(
            project=self.project or os.environ.get("WANDB_PROJECT", "densekd"),
            name=run.name,
            id=known,
            # A resumed offline run has two folders; the id makes them one run when synchronised.
            resume="allow",
            mode=self.mode,
            config=dict(run.settings),
            dir=run.folder,
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True, save_code=False),
        )
        for axis in get_args(Axis):
            self._run.define_metric(f"{axis}/step", hidden=True)
            self._run.define_metric(f"{axis}/*", step_metric=f"{axis}/step")
        return known

    def log(self, axis: Axis, step: int, numbers: Mapping[str, float]) -> None:
        """Send numbers."""
        self._run.log({f"{axis}/step": step, **{f"{axis}/{k}": x for k, x in numbers.items()}})

    def end(self, result: Mapping[str, Any] | None) -> None:
        """Send the numbers of the whole run, and wait until everything is sent."""
        self._run.summary.update(_totals(result))
        self._run.finish(exit_code=0 if result else 1)


class MlflowLogger(Logger):
    """Writes the numbers to MLflow, by default to ``mlflow.db`` beside the run folders (SQLite).

    Args:
        uri: the tracking store; by default ``MLFLOW_TRACKING_URI``, else that file.
        experiment: the experiment's name; by default ``MLFLOW_EXPERIMENT_NAME``, else ``densekd``.

    Example:
        >>> import densekd
        >>> logger = densekd.MlflowLogger("sqlite:///runs/mlflow.db", experiment="digits")
        >>> logger.name
        'mlflow'
    """

    name = "mlflow"

    def __init__(self, uri: str | None = None, experiment: str | None = None) -> None:
        self.uri, self.experiment = uri, experiment
        self._client: Any = None
        self._id = ""

    def begin(self, run: LoggedRun) -> str | None:
        """Create an MLflow run with all settings, or reopen that of an earlier call."""
        from mlflow.entities import Param  # slow to import
        from mlflow.tracking import MlflowClient

        store = run.folder.parent.absolute() / "mlflow.db"
        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{store}"
        self._client = MlflowClient(uri)
        if run.id is not None:
            self._id = run.id
            self._client.update_run(run.id, status="RUNNING")
            return run.id
        experiment = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "densekd")
        found = self._client.get_experiment_by_name(experiment)
        place = found.experiment_id if found else self._client.create_experiment(experiment)
        made = self._client.create_run(str(place), run_name=run.name)
        self._id = str(made.info.run_id)
        params = [Param(key, str(value)) for key, value in flat(run.settings).items()]
        for i in range(0, len(params), _PARAMS_AT_ONCE):
            self._client.log_batch(self._id, params=params[i : i + _PARAMS_AT_ONCE])
        return self._id

    def log(self, axis: Axis, step: int, numbers: Mapping[str, float]) -> None:
        """Write numbers."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(f"{axis}/{name}", x, now, step) for name, x in numbers.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def end(self, result: Mapping[str, Any] | None) -> None:
        """Write the numbers of the whole run."""
        for name, value in _totals(result).items():
            self._client.log_metric(self._id, name, value)
        self._client.set_terminated(self._id, "FINISHED" if result else "KILLED")


def _totals(result: Mapping[str, Any] | None) -> dict[str, float]:
    """The numbers of a whole run, from its result."""
    return {k: x for k, x in (result or {}).items() if isinstance(x, int | float)}


_KNOWN = {kind.name: kind for kind in (TensorBoardLogger, WandbLogger, MlflowLogger)}


def make_loggers(names: Sequence[str] | None) -> dict[str, Logger]:
    """Make the loggers that settings list, by the loggers' own names.

    Raises:
        ValueError: a package is missing, two have the same name, or a custom one is no logger.
    """
    if names is None:
        names = ["tensorboard"] if find_spec("tensorboard") else []
    loggers: dict[str, Logger] = {}
    for name in names:
        logger = _own_logger(name, find(name)) if is_reference(name) else _KNOWN[name]()
        called = logger.name or short_name(name)
        if type(logger) in _KNOWN.values() and find_spec(type(logger).name) is None:
            raise missing_extra(f"The logger {called}", type(logger).name)
        if called in loggers:
            raise ValueError(f"Two loggers are called {called!r}; give one another `name`.")
        loggers[called] = logger
    return loggers


def _own_logger(reference: str, value: Any) -> Logger:
    """The custom logger ``value``, or what it makes as a function or class without arguments."""
    part = display_name(reference, "logger")
    with explain_errors(part):
        made = value() if callable(value) and not isinstance(value, Logger) else value
    if not isinstance(made, Logger):
        raise OwnPartError(
            f"{part} must be a densekd.Logger, or a function or class that makes one, not "
            f"{type(made).__name__}."
        )
    return made
