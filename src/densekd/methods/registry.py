"""All methods by name; methods are made from names only here."""

import dataclasses
import difflib
from typing import Any

from densekd.methods.bic import BIC
from densekd.methods.ccil import CCIL
from densekd.methods.icarl import ICARL, ICARL_SOFTMAX
from densekd.methods.method import Method, MethodSpec
from densekd.methods.own import Params, own_method
from densekd.methods.paper import DISTILLATIONS, PAPER_METHODS, DenseOptions, distillation
from densekd.methods.podnet import AFC, PODNET
from densekd.methods.schedule import Schedule, Schedules
from densekd.methods.ucir import UCIR
from densekd.parts import find, is_reference

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
    return BASELINES.get(split_name(name)[0])


def split_name(name: str) -> tuple[str, str]:
    """The method and the distillation of a name such as ``icarl+rdkd`` or ``mine.py:eeil+rdkd``.

    The latter is empty if there is none.
    """
    place, colon, rest = name.rpartition(":")  # a path may have a + too
    first, _, kd = rest.partition("+")
    return place + colon + first, kd


def is_own_method(name: str) -> bool:
    """Whether a method is custom, such as ``mine.py:eeil``."""
    return is_reference(split_name(name)[0])


def make_method(
    name: str,
    options: DenseOptions,
    schedules: Schedules,
    own: object | None = None,
    params: Params | None = None,
) -> Method:
    """Make a method by name, such as ``rdkd``, ``icarl+rdkd-adaptive`` or ``mine.py:eeil``.

    ``options`` are for the dense distillation, ``own`` for the baseline (None for its defaults),
    and ``params`` for a custom method. Raises ValueError if there is no such method.

    Example:
        >>> from densekd import DenseOptions, Schedules, make_method
        >>> sorted(make_method("icarl+rdkd", DenseOptions(), Schedules()).terms)
        ['kd', 'merged']
    """
    check_method(name)
    first, kd = split_name(name)
    if is_own_method(name):
        method = own_method(first, find(first), schedules, params)
    elif first not in BASELINES:
        return METHODS[first].make(options, schedules)
    else:
        method = BASELINES[first].make(own, schedules)
    if not kd:
        return method
    term = distillation(kd, dataclasses.replace(options, streams=method.streams))
    name = f"{method.name}+{kd}" if is_own_method(name) else name
    return dataclasses.replace(method.with_term("kd", term), name=name)


def combination_text(name: str) -> str | None:
    """Say what a name's distillation does to the method: replace or add; None if it has none."""
    first, kd = split_name(name)
    if not kd:
        return None
    if is_own_method(name):
        return f"set the slot kd of {first} to {kd}"
    own = "kd" in METHODS[first].make(None, Schedules(finish=Schedule())).terms
    return f"replaced {first}'s own distillation by {kd}" if own else f"added {kd} to {first}"


def check_method(name: str) -> None:
    """Raise a ValueError that proposes the nearest name unless there is such a method."""
    first, kd = split_name(name)
    plus, own = name != first, is_own_method(name)
    if first not in METHODS and not own:
        raise ValueError(f"There is no method {name!r}; {_proposal(first, list(METHODS))}.")
    if plus and first not in BASELINES and not own:
        raise ValueError(
            f"{first} takes no distillation after a +; those that do are {', '.join(BASELINES)}."
        )
    if plus and kd not in DISTILLATIONS:
        raise ValueError(f"There is no distillation {kd!r}; {_proposal(kd, list(DISTILLATIONS))}.")


def _proposal(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f"{f'did you mean {near[0]}? There are' if near else 'choose one of'} {', '.join(known)}"
