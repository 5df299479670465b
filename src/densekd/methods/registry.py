"""The names of the methods, and the one place where a name becomes a method."""

import dataclasses
import difflib
from typing import TypeVar

from densekd.methods.afc import AfcOptions, afc
from densekd.methods.bic import BicOptions, bic
from densekd.methods.ccil import CcilOptions, ccil
from densekd.methods.icarl import IcarlOptions, IcarlSoftmaxOptions, icarl, icarl_softmax
from densekd.methods.method import Method
from densekd.methods.paper import DenseOptions, dense, dense_names, distillation, finetune, joint
from densekd.methods.podnet import PodnetOptions, podnet
from densekd.methods.released import HostOptions
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.ucir import UcirOptions, ucir

METHODS = {
    "finetune": "replay of exemplars, no distillation",
    "joint": "upper bound: all images of all tasks so far",
    "gkd": "distils on all old classes together (Eq. 1)",
    "tkd": "distils on each old task by itself (Eq. 2)",
    "fdkd": "distils on every group of old tasks, exactly (Eq. 3)",
    "rdkd": "distils on a random group of old tasks at each step (Eq. 4)",
    "gkd-adaptive": "gkd with the adaptive weight (Eq. 5)",
    "tkd-adaptive": "tkd with the adaptive weight",
    "fdkd-adaptive": "fdkd with the adaptive weight",
    "rdkd-adaptive": "rdkd with the adaptive weight: the paper's full method",
    "icarl": "sigmoid outputs, nearest mean of exemplars",
    "icarl-softmax": "iCaRL with softmax, as UCIR compares with",
    "bic": "distils, then corrects the bias towards new classes",
    "ucir": "cosine classifier, less-forget and margin ranking",
    "podnet": "pooled maps kept near, ten proxies a class",
    "ccil": "separate softmax and batches, gkd",
    "afc": "maps kept near where they matter",
}
HOSTS = ("icarl", "icarl-softmax", "bic", "ucir", "podnet", "ccil", "afc")


def make_method(
    name: str, options: DenseOptions, schedules: Schedules, host: HostOptions | None = None
) -> Method:
    """The method of that name: one of `METHODS`, or a baseline with a distillation.

    Args:
        name: such as ``rdkd``, ``ucir`` or ``icarl+rdkd-adaptive``.
        options: of the dense distillation.
        schedules: how long and how fast it is trained.
        host: the options of the baseline, which only that has.
    """
    check_method(name)
    first, plus, kd = name.partition("+")
    if first == "finetune":
        return finetune(options, schedules)
    if first == "joint":
        return joint(options, schedules)
    if first not in HOSTS:
        return dense(name, options, schedules)
    method = _host(first, schedules, host)
    if not plus:
        return method
    kind, _, adaptive = kd.partition("-")
    term = distillation(kind, bool(adaptive), dataclasses.replace(options, streams=method.streams))
    return dataclasses.replace(method.with_term("kd", term), name=name)


def what_kd_does(name: str) -> str | None:
    """What ``+`` makes of a baseline's own distillation: replaced, or added to."""
    host, plus, kd = name.partition("+")
    if not plus:
        return None
    own = "kd" in _host(host, Schedules(finish=Schedule()), None).terms
    return f"replaced {host}'s own distillation by {kd}" if own else f"added {kd} to {host}"


def check_method(name: str) -> None:
    """Raise a ValueError that proposes the nearest name unless there is such a method."""
    first, plus, kd = name.partition("+")
    if first not in METHODS:
        raise ValueError(f"There is no method {name!r}; {_proposal(first, list(METHODS))}.")
    if not plus:
        return
    if first not in HOSTS:
        raise ValueError(
            f"{first} takes no distillation after a +; those that do are {', '.join(HOSTS)}."
        )
    if kd not in dense_names():
        raise ValueError(f"There is no distillation {kd!r}; {_proposal(kd, dense_names())}.")


def _proposal(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f"{f'did you mean {near[0]}? There are' if near else 'choose one of'} {', '.join(known)}"


def _host(name: str, schedules: Schedules, options: HostOptions | None) -> Method:
    match name:
        case "icarl":
            return icarl(_of(IcarlOptions, options), schedules)
        case "icarl-softmax":
            return icarl_softmax(_of(IcarlSoftmaxOptions, options), schedules)
        case "bic":
            return bic(_of(BicOptions, options), schedules)
        case "ucir":
            return ucir(_of(UcirOptions, options), schedules)
        case "podnet":
            return podnet(_of(PodnetOptions, options), schedules)
        case "ccil":
            return ccil(_of(CcilOptions, options), schedules)
    return afc(_of(AfcOptions, options), schedules)


_Options = TypeVar("_Options", bound=HostOptions)


def _of(kind: type[_Options], options: HostOptions | None) -> _Options:
    if options is None:
        return kind()
    if not isinstance(options, kind):
        raise ValueError(f"{type(options).__name__} are not the options of this method.")
    return options
