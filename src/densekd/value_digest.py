"""A digest of any Python value: equal for equal values, also in another process."""

import copyreg
import enum
import functools
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import is_dataclass
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_PLAIN = (str, bytes, int, float, complex, range, slice, type(None), type(...), PurePath)
_CONTAINERS = (list, tuple, Mapping, Set)
_WRAPPED = (MethodType, staticmethod, classmethod)
_CACHED = type(functools.cache(len))
_CODE = (
    *(type, FunctionType, CodeType, functools.partial, property),
    *(functools.cached_property, _CACHED, *_WRAPPED),
)
_COPYING = ("__getstate__", "__reduce__", "__reduce_ex__")


def value_digest(value: object) -> str:
    """Hash the content of a value: numbers, text, arrays, attributes, and the code of functions.

    For code, this includes the functions, classes and constants that it names, except the content
    of installed packages. What code reads from files or changes later is not included.
    """
    digest = _Digest()
    digest.add(value)
    return digest.sha256.hexdigest()


class _Digest:
    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []  # keeps values alive, so that no id is reused

    def add(self, value: Any) -> None:
        if isinstance(value, _PLAIN):
            return self._write(type(value).__name__, str(value))
        if id(value) in self._numbers:  # seen before, perhaps in a value that contains itself
            return self._write("again", self._numbers[id(value)])
        self._numbers[id(value)] = len(self._numbers)
        self._kept.append(value)
        if isinstance(value, _CONTAINERS):
            return self._add_container(value)
        if isinstance(value, _CODE):
            return self._add_code(value)
        if _is_array(value):
            self._write("array", value.dtype, *value.shape)
            if getattr(value.dtype, "hasobject", False):  # its bytes are addresses
                return self.add(value.tolist())
            return self.sha256.update(_bytes(value))
        self._write(getattr(value, "__qualname__", ""))  # of a built-in function
        self.add(type(value))
        return self.add(_content(value))

    def _write(self, *words: object) -> None:
        # With lengths, so that no two sequences of words look alike.
        for word in map(str, words):
            self.sha256.update(f"{len(word)}:{word}".encode(errors="surrogatepass"))

    def _add_container(self, value: Any) -> None:
        self._write(type(value).__name__, len(value))
        if isinstance(value, Mapping):
            for key, item in value.items():
                self.add(key)
                self.add(item)
            return
        # The order of a set differs between processes.
        for item in sorted(value, key=repr) if isinstance(value, Set) else value:
            self.add(item)

    def _add_code(self, value: Any) -> None:
        if (parts := _wrapped(value)) is not None:
            self.add(parts)
        elif isinstance(value, CodeType):
            self._write("code", value.co_code.hex(), *value.co_names, *value.co_varnames)
            self.add(value.co_consts)
        elif not is_own_module(value.__module__):
            self._write("installed", value.__module__, value.__qualname__)
        elif isinstance(value, type):
            inside = {k: v for k, v in vars(value).items() if _matters(k, v)}
            self.add([value.__qualname__, value.__bases__, inside])
        else:
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            named = {k: v for k, v in _globals_of(value) if _matters(k, v)}
            self.add([value.__code__, value.__defaults__, value.__kwdefaults__, cells, named])


def _wrapped(value: Any) -> list[Any] | None:
    """What a wrapper of a function is made of; None for anything else."""
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, _WRAPPED):
        return [value.__func__, getattr(value, "__self__", None)]
    if isinstance(value, property):
        return [value.fget, value.fset]
    if isinstance(value, functools.cached_property):
        return [value.func]
    return [value.__wrapped__] if isinstance(value, _CACHED) else None


def _globals_of(function: FunctionType) -> Iterator[tuple[str, object]]:
    """The global names that a function uses, also in functions inside it, with their values."""
    codes = [function.__code__]
    for code in codes:  # the list grows during the loop
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
    for name in sorted({name for code in codes for name in code.co_names}):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _matters(name: str, value: object) -> bool:
    """Whether to hash a value that code names.

    Python modules, and objects of kinds not listed here, are left out: they may change.
    """
    if name in ("__dict__", "__weakref__", "__module__", "__firstlineno__", "__doc__"):
        return False
    whole = (*_CODE, *_PLAIN, *_CONTAINERS, enum.Enum)
    return isinstance(value, whole) or is_dataclass(value) or _is_array(value) or _is_module(value)


def _content(value: Any) -> object:
    """The attributes of a value, or what pickle stores if it has none or defines how to copy it."""
    if hasattr(value, "__array_interface__"):  # such as Pillow's images: attributes lack the pixels
        return sys.modules["numpy"].asarray(value)
    kind, attributes = type(value), dict(getattr(value, "__dict__", {}))
    usual = all(getattr(kind, name) is getattr(object, name) for name in _COPYING)
    if kind.__module__ == "datasets.table":  # can exceed memory; its data set has a fingerprint
        return {}
    if attributes and usual:
        return attributes
    reduce: Callable[[Any], Any] = copyreg.dispatch_table.get(kind, _reduce)
    try:
        parts = reduce(value)
    except Exception:  # of any kind: the value's own code may run
        return attributes
    if isinstance(parts, str):  # the name of a global value, such as a built-in function
        return attributes
    return [list(each) if isinstance(each, Iterator) else each for each in parts[1:]]


def _reduce(value: Any) -> Any:
    return value.__reduce_ex__(4)


def _is_array(value: object) -> bool:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (torch is not None and isinstance(value, torch.Tensor)) or (
        numpy is not None and isinstance(value, numpy.ndarray | numpy.generic)
    )


def _is_module(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _bytes(array: Any) -> bytes:
    """The bytes of an array or a tensor; as uint8, since NumPy lacks some of torch's types."""
    if not hasattr(array, "detach"):
        return bytes(array.tobytes())
    plain = array.detach().cpu().contiguous().reshape(-1)
    return bytes(plain.view(sys.modules["torch"].uint8).numpy().tobytes())


@functools.cache
def is_own_module(module: str | None) -> bool:
    """Whether a module is neither part of Python nor of an installed package."""
    top = (module or "__main__").partition(".")[0]
    if top in sys.stdlib_module_names or top == "densekd":
        return False
    found: ModuleType | None = sys.modules.get(top)
    place = str(getattr(found, "__file__", None) or getattr(found, "__path__", ""))
    return "site-packages" not in place and "dist-packages" not in place
