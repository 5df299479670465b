"""`densekd.run`: one benchmark run."""

import builtins
import os
import sys
from pathlib import Path
from typing import Unpack

from densekd.api.signature import with_keywords
from densekd.config.keywords import ConfigSource, Overrides, RunKeywords, make_config
from densekd.config.schema import Config
from densekd.display import output
from densekd.display.run_progress import run_display
from densekd.files import expand_home
from densekd.runs.observer import RunObserver, RunObservers
from densekd.runs.result import Result
from densekd.runs.run import run_config, run_folder


@with_keywords(RunKeywords)
def run(
    config: ConfigSource = None,
    *,
    override: Overrides = (),
    out: Path | str = "runs",
    quiet: bool = False,
    observer: RunObserver | None = None,
    trust_code: bool = False,
    **settings: Unpack[RunKeywords],
) -> Result:
    """Learn the classes of a data set in several tasks, and measure how well each is remembered.

    Does what ``densekd run`` does, in the same folders. A run that was stopped is resumed; a run
    that is finished is only read. Ctrl-C, or interrupting the kernel of a notebook, saves the run
    and raises `densekd.Stopped`; a second time, it quits at once.

    Args:
        config: a TOML file, a mapping of sections, or a `densekd.config.schema.Config`. The other
            arguments win over it.
        override: any setting by its dotted key, such as ``{"method.options.temperature": 4}``, or
            as on the command line, ``["method.options.temperature=4"]``. Wins over all else.
        out: the folder that holds the run folders.
        quiet: show no progress.
        observer: receives the events of the run, and may stop it.
        trust_code: run the files of code that the run named by ``start`` was made with.
        settings: the options of ``densekd run``; the defaults are those of the command.
            ``data``: a data set, such as ``"digits"`` or ``"cifar100"``, the path of a folder with
            a sub-folder per class, arrays ``(train_x, train_y, test_x, test_y)``, or torch data
            sets; see docs/extending.md for these and for other custom parts.
            ``data_dir``: the folder with CIFAR.
            ``image_size``: height and width for image files.
            ``validation``: the share of training images to hold out and to measure on too.
            ``test_per_class``: test on at most this many images of each class.
            ``steps``: the number of tasks after the first.
            ``base``: the number of classes in the first task.
            ``increment``: classes in each later task, instead of ``steps``.
            ``equal``: whether the first task has as many classes as the others.
            ``order``: the class order: a seed, ``"natural"``, ``"icarl"``, a file or a function.
            ``tasks``: the classes of each task, or how many, such as ``[4, 2, 4]``.
            ``method``: a name, such as ``"gkd"`` or ``"icarl+rdkd"``, or a `densekd.Method`.
            ``epochs``: epochs of the first task, or a share of all epochs, such as ``"30%"``.
            ``memory``: exemplars kept per class.
            ``memory_total``: exemplars kept in all, instead of ``memory``.
            ``network``: the backbone, such as ``"resnet32"``, or an ``nn.Module``.
            ``metrics``: functions that measure something else after each task.
            ``loggers``: where numbers go besides the run folder: ``"tensorboard"``, ``"wandb"``,
            ``"mlflow"``, or a `densekd.Logger`; by default TensorBoard, if it is installed.
            ``seed``: the seed of all random choices but the class order.
            ``devices``: processes that share each batch.
            ``nodes``: machines that share each batch; see docs/clusters.md.
            ``keep_steps``: keep the learner and the test predictions of every step.
            ``start``: go on from a step of another run, such as ``"runs/digits-gkd-1a2b@3"``; the
            option ``--from``.

    Raises:
        ValueError: a setting is wrong; one sentence says which, and what is allowed.
        Stopped: the run was interrupted and saved; the same call resumes it.

    Example:
        >>> import densekd
        >>> result = densekd.run(data="digits", method="gkd", steps=1, epochs=1, quiet=True)
        >>> len(result.steps), result.accuracy > 0.1
        (2, True)
        >>> densekd.run(data="digits", method="gdk")
        Traceback (most recent call last):
        ...
        ValueError: method: There is no method 'gdk'; did you mean gkd?...
    """
    with output.show_warnings(output.console(stderr=True)):
        made = make_config(config, settings, override, trust_code=trust_code)
    _check_devices(made)
    out = expand_home(out)
    folder = run_folder(made, out)
    with run_display(made, quiet=quiet) as display:
        watching = display if observer is None else RunObservers(display, observer)
        return Result(run_config(made, out, watching), folder)


def _check_devices(config: Config) -> None:
    """Raise if a run needs several processes and there is no script to start in them."""
    if config.engine.devices == 1 or "LOCAL_RANK" in os.environ:
        return
    if hasattr(builtins, "__IPYTHON__") or not Path(sys.argv[0]).is_file():
        raise ValueError(
            f"devices={config.engine.devices} starts the script again in other processes, which an "
            "interactive session can't; write the call into a file and run that with Python, or "
            "leave devices out."
        )
