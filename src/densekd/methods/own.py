"""Custom methods, made from what a user gives: a method, its specification, or a function."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from densekd.methods.method import Method, MethodSpec
from densekd.methods.schedule import Schedules
from densekd.parts import OwnPartError, display_name, explain_errors

Params = Mapping[str, bool | int | float | str]


def own_method(
    name: str, value: object, schedules: Schedules, params: Params | None = None
) -> Method:
    """Make a method from a user's value; raises OwnPartError if it can't be used.

    Args:
        name: its reference.
        value: a `Method`, which has its own schedules; a `MethodSpec`, whose options are the
            ``params``; or a function that takes the schedules, and the ``params`` as keywords.
        schedules: the schedules to train by.
        params: parameters by name.
    """
    name, given = display_name(name, "method"), dict(params or {})
    if isinstance(value, Method):
        if given:
            raise OwnPartError(f"{name} is a Method, which takes no method.params; leave them out.")
        return value
    with explain_errors(name):
        if isinstance(value, MethodSpec):
            _check_params(name, [*inspect.signature(value.options).parameters], given)
            made: object = value.build(value.options(**given), schedules)
        elif callable(value):
            made = _call(name, value, schedules, given)
        else:
            made = value
    if not isinstance(made, Method):
        raise OwnPartError(
            f"{name} must be a Method, a MethodSpec, or a function of schedules that returns a "
            f"Method, but gave {type(made).__name__}."
        )
    return made


def shortened(method: Method, share: float) -> Method:
    """The same method with a share of the epochs of each phase, at least one."""

    def short(phases: Any) -> Any:
        return tuple(dataclasses.replace(p, schedule=p.schedule.scaled(share)) for p in phases)

    return dataclasses.replace(method, base=short(method.base), increment=short(method.increment))


def _call(name: str, build: Callable[..., object], schedules: Schedules, given: Params) -> object:
    parameters = list(inspect.signature(build).parameters.values())
    if not parameters:
        raise OwnPartError(f"{name} takes no argument; it must take the schedules to train by.")
    named = [p for p in parameters[1:] if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if all(p.kind is not p.VAR_KEYWORD for p in parameters):
        _check_params(name, [p.name for p in named], given)
    for p in named:
        if p.default is p.empty and p.name not in given:
            raise OwnPartError(f"{name} needs {p.name}: give method.params.{p.name}.")
    return build(schedules, **given)


def _check_params(name: str, known: list[str], given: Params) -> None:
    for unknown in given.keys() - set(known):
        there = f"it has {', '.join(known)}" if known else "it has none"
        raise OwnPartError(f"{name} takes no parameter {unknown!r}; {there}.")
