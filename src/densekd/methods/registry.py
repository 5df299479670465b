"""All methods, and the one place where a name becomes a method."""

import dataclasses
import difflib
from typing import Any

from densekd.methods.bic import BIC
from densekd.methods.ccil import CCIL
from densekd.methods.icarl import ICARL, ICARL_SOFTMAX
from densekd.methods.method import Method, MethodSpec
from densekd.methods.paper import DISTILLATIONS, PAPER_METHODS, DenseOptions, distillation
from densekd.methods.podnet import AFC, PODNET
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.ucir import UCIR

_SPECS: tuple[MethodSpec[Any], ...] = (
    *PAPER_METHODS,
    ICARL,
    ICARL_SOFTMAX,
    BIC,
    UCIR,
    PODNET,
    CCIL,
    AFC,
)
METHODS = {spec.name: spec for spec in _SPECS}
BASELINES = {spec.name: spec for spec in _SPECS if spec.published}


def baseline_of(name: str) -> MethodSpec[Any] | None:
    """The baseline in a name such as ``icarl`` or ``icarl+rdkd``; None if there is none."""
    return BASELINES.get(name.partition("+")[0])


def make_method(
    name: str, options: DenseOptions, schedules: Schedules, own: object | None = None
) -> Method:
    """Make the method of a name: one of `METHODS`, or a baseline with a distillation.

    Such as ``rdkd``, ``ucir`` or ``icarl+rdkd-adaptive``. ``options`` are of the dense
    distillation, ``own`` those of the baseline, with its defaults if None.
    """
    check_method(name)
    first, plus, kd = name.partition("+")
    baseline = BASELINES.get(first)
    if baseline is None:
        return METHODS[first].make(options, schedules)
    method = baseline.make(own, schedules)
    if not plus:
        return method
    term = distillation(kd, dataclasses.replace(options, streams=method.streams))
    return dataclasses.replace(method.with_term("kd", term), name=name)


def what_kd_does(name: str) -> str | None:
    """What a combined distillation does to the baseline's own: replaces it, or adds to it."""
    first, plus, kd = name.partition("+")
    if not plus:
        return None
    own = "kd" in METHODS[first].make(None, Schedules(finish=Schedule())).terms
    return f"replaced {first}'s own distillation by {kd}" if own else f"added {kd} to {first}"


def check_method(name: str) -> None:
    """Raise a ValueError that proposes the nearest name unless there is such a method."""
    first, plus, kd = name.partition("+")
    if first not in METHODS:
        raise ValueError(f"There is no method {name!r}; {_proposal(first, list(METHODS))}.")
    if plus and first not in BASELINES:
        raise ValueError(
            f"{first} takes no distillation after a +; those that do are {', '.join(BASELINES)}."
        )
    if plus and kd not in DISTILLATIONS:
        raise ValueError(f"There is no distillation {kd!r}; {_proposal(kd, list(DISTILLATIONS))}.")


def _proposal(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f"{f'did you mean {near[0]}? There are' if near else 'choose one of'} {', '.join(known)}"
