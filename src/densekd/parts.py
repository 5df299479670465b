"""Parts of one's own: values in a file, named as ``mine.py:eeil``, or values of this process.

A setting holds a reference, which is text: ``FILE.py:NAME``, or ``python:NAME-DIGEST`` for a value
that was given in Python. A file is run only if the user named it: see `load_files`.
"""

import contextlib
import difflib
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from densekd.checks import first_line
from densekd.seeds import fixed_random_state
from densekd.values import value_digest

_IN_FILE = re.compile(r"(.+\.py):([A-Za-z_]\w*)")
_IN_PYTHON = re.compile(r"python:(\w+)-([0-9a-f]{12})")


class OwnPartError(ValueError):
    """Code of one's own is wrong; its own error, if it raised one, is the cause."""


@dataclass(frozen=True)
class _LoadedFile:
    module: ModuleType
    sha256: str


_files: dict[Path, _LoadedFile] = {}  # by their absolute paths
_values: dict[str, object] = {}  # by reference


def is_reference(text: object) -> bool:
    """Whether a setting names a part of one's own."""
    return any(form.fullmatch(str(text)) for form in (_IN_FILE, _IN_PYTHON))


def short_name(reference: str) -> str:
    """The name of the value, without file or digest."""
    found = _IN_FILE.fullmatch(reference)
    return found[2] if found else reference.removeprefix("python:").rpartition("-")[0]


def load_files(references: Iterable[str]) -> dict[str, str]:
    """Run the files that references name, and return the SHA-256 of each by its name.

    Call it only with references that the user gave, or agreed to: nothing else runs a file, so
    that a folder from elsewhere can't. A file runs once in a process, and again if it has changed.
    """
    found = [match[1] for each in references if (match := _IN_FILE.fullmatch(each))]
    return {file: _load(file).sha256 for file in dict.fromkeys(found)}


def find(reference: str) -> object:
    """The value that a reference names; its file must have been loaded."""
    if _IN_PYTHON.fullmatch(reference):
        if reference not in _values:
            raise OwnPartError(
                f"{reference} is a value of another Python process; give it again, or put it into "
                "a file and name it as FILE.py:NAME."
            )
        return _values[reference]
    file, _, name = reference.rpartition(":")
    loaded = _files.get(_path(file))
    if loaded is None:
        raise OwnPartError(
            f"{reference} is code, which runs only if you agree: add --trust-code, in Python "
            "trust_code=True."
        )
    if not hasattr(loaded.module, name):
        public = [known for known in vars(loaded.module) if not known.startswith("_")]
        near = difflib.get_close_matches(name, public, n=1)
        proposal = f"did you mean {near[0]}?" if near else "define it there."
        raise OwnPartError(f"{file} has no {name}; {proposal}")
    return getattr(loaded.module, name)


def version(reference: str) -> str:
    """What changes with the code or the value: the SHA-256 of the file, or the value's digest."""
    if found := _IN_PYTHON.fullmatch(reference):
        return found[2]
    find(reference)  # or say what is wrong
    return _files[_path(reference.rpartition(":")[0])].sha256


def refer(value: object, name: str = "", digest: str = "") -> str:
    """Give a Python value a reference, by which this process finds it again.

    Args:
        value: anything that may be a part of one's own.
        name: what to call it; that of the function, class or method, or else of its type.
        digest: says what the value is; computed from it unless given.
    """
    own = name or getattr(value, "__name__", "") or getattr(value, "name", "")
    word = re.sub(r"\W+", "_", str(own or type(value).__name__).lower()).strip("_") or "value"
    reference = f"python:{word}-{(digest or value_digest(value))[:12]}"
    _values[reference] = value
    return reference


@contextlib.contextmanager
def explain_errors() -> Iterator[None]:
    """Turn an error that comes from a loaded file into one sentence that names file and line."""
    try:
        yield
    except OwnPartError:
        raise
    except Exception as error:
        places = [place for place in _lines(error) if Path(place[0]) in _files]
        if not places:
            raise
        raise _in_words(*places[-1], error) from error


def _load(file: str) -> _LoadedFile:
    path = _path(file)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise OwnPartError(f"{file} can't be read ({error.strerror}); check the path.") from error
    sha256 = hashlib.sha256(content).hexdigest()
    known = _files.get(path)
    if known is None or known.sha256 != sha256:
        _files[path] = known = _LoadedFile(_run(file, path, content, sha256), sha256)
    return known


def _run(file: str, path: Path, content: bytes, sha256: str) -> ModuleType:
    """Run a file as a module. The bytes that were hashed run, not a cached translation."""
    module = ModuleType(f"densekd_own_{re.sub(r'[^A-Za-z0-9]', '_', path.stem)}_{sha256[:12]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        # Weights and data that the file draws are the same in every process.
        with fixed_random_state():
            exec(compile(content, str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        places = [place for place in _lines(error) if place[0] == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else None
        where = (str(path), line) if line or not places else places[-1]
        raise _in_words(file, where[1], error) from error
    return module


def _lines(error: BaseException) -> list[tuple[str, int | None]]:
    """The file and line of each call that led to an error."""
    places: list[tuple[str, int | None]] = []
    trace = error.__traceback__
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return places


def _in_words(file: str, line: int | None, error: BaseException) -> OwnPartError:
    kind = type(error).__name__
    where = kind if line is None else f"{kind} in line {line}"
    text = first_line(error)
    return OwnPartError(
        f"{Path(file).name} can't be used: {where}{'' if text == kind else f': {text}'}."
    )


def _path(file: str) -> Path:
    return Path(file).expanduser().resolve()
