"""Full signatures for functions that take the keywords of a typed dictionary."""

import inspect
from collections.abc import Callable
from typing import TypeVar, get_type_hints

_Function = TypeVar("_Function", bound=Callable[..., object])


def with_keywords(keywords: type) -> Callable[[_Function], _Function]:
    """Show each of the keywords in the signature, for ``help`` and for completion."""

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        *own, _ = signature.parameters.values()
        further = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in get_type_hints(keywords).items()
        ]
        shown = signature.replace(parameters=[*own, *further])
        function.__signature__ = shown  # type: ignore[attr-defined]
        return function

    return decorate
