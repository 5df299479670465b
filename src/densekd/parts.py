"""Custom parts: values in a file, such as ``mine.py:eeil``, or values of this process.

A setting holds a reference, which is text: ``FILE.py:NAME``, or ``python:NAME-DIGEST`` for a value
that was given in Python. A file is run only if the user named it or agreed: see `load_files`.
"""

import contextlib
import difflib
import errno
import hashlib
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from densekd.files import expand_home
from densekd.seeds import fixed_random_state
from densekd.text import first_line
from densekd.value_digest import is_own_module, value_digest

_IN_FILE = re.compile(r"(.+\.py):([A-Za-z_]\w*)")
_IN_PYTHON = re.compile(r"python:(\w+)-([0-9a-f]{12})")


class OwnPartError(ValueError):
    """Custom code is wrong; the error that it raised, if any, is the cause."""


@dataclass(frozen=True)
class _LoadedFile:
    module: ModuleType
    sha256: str


@dataclass(frozen=True)
class _Place:
    """One call in the traceback of an error."""

    file: str
    line: int | None
    name: str  # of the function
    own: bool  # whether it is custom code
    owner: object  # the object whose method it is, if it is one

    @property
    def words(self) -> str:
        """The end of a sentence that says where it is; empty if the line is unknown."""
        # Notebook cells have generated file names, which tell a reader nothing.
        file = f" of {Path(self.file).name}" if Path(self.file).is_file() else ""
        return "" if self.line is None else f" in line {self.line}{file}"


_files: dict[Path, _LoadedFile] = {}  # by their absolute paths
_values: dict[str, object] = {}  # by reference


def is_reference(text: object) -> bool:
    """Whether a setting names a custom part."""
    return any(form.fullmatch(str(text)) for form in (_IN_FILE, _IN_PYTHON))


def short_name(reference: str) -> str:
    """The name of the value, without file or digest."""
    found = _IN_FILE.fullmatch(reference)
    return found[2] if found else reference.removeprefix("python:").rpartition("-")[0]


def load_files(references: Iterable[str]) -> dict[str, str]:
    """Run the files that references name, and return the SHA-256 of each by its name.

    Call it only with references that the user gave or agreed to: nothing else runs a file, so a
    run folder from a stranger can't. A file runs once in a process, and again if it has changed.
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
    """A hash that changes with the code or value: the file's SHA-256, or the value's digest."""
    if found := _IN_PYTHON.fullmatch(reference):
        return found[2]
    find(reference)  # raises if the file or the name is missing
    return _files[_path(reference.rpartition(":")[0])].sha256


def refer(value: object, name: str = "", digest: str = "") -> str:
    """Give a Python value a reference, by which this process finds it again.

    Args:
        value: anything that can be a custom part.
        name: its name; by default that of the function, class or method, or else of its type.
        digest: identifies the value; by default computed from it.
    """
    own = name or getattr(value, "__name__", "") or getattr(value, "name", "")
    word = re.sub(r"\W+", "_", str(own or type(value).__name__).lower()).strip("_") or "value"
    reference = f"python:{word}-{(digest or value_digest(value))[:12]}"
    _values[reference] = value
    return reference


def display_name(reference: str, kind: str) -> str:
    """A part's name to begin a sentence with: ``mine.py:ece``, or ``The metric ece``."""
    return f"The {kind} {short_name(reference)}" if _IN_PYTHON.fullmatch(reference) else reference


@contextlib.contextmanager
def explain_errors(part: str = "", *, but: type | None = None) -> Iterator[None]:
    """Turn an error of custom code into an `OwnPartError`: one sentence with part and line.

    Args:
        part: the name of the code that runs here; all its errors are explained. Without it, only
            errors that come from code outside of installed packages are explained.
        but: don't explain errors from methods of objects of this type, such as an observer.
    """
    try:
        yield
    except OwnPartError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # a full disk isn't the part's mistake
        places = [place for place in _places(error) if place.own]
        if any(but is not None and isinstance(place.owner, but) for place in places):
            raise
        if not places and not part:
            raise
        raise _in_words(part or places[-1].name, places[-1] if places else None, error) from error


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
    """Run a file as a module: exactly the bytes that were hashed, not cached bytecode."""
    module = ModuleType(f"densekd_own_{re.sub(r'[^A-Za-z0-9]', '_', path.stem)}_{sha256[:12]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        # So that the file draws the same weights and data in every process.
        with fixed_random_state():
            exec(compile(content, str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        places = [place for place in _places(error) if place.file == str(path)]
        where = places[-1] if places else None
        if isinstance(error, SyntaxError):
            where = _Place(str(path), error.lineno, "", True, None)
        raise _in_words(file, where, error) from error
    return module


def _places(error: BaseException) -> Iterator[_Place]:
    """The calls that led to an error, starting with the one that caught it."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        own = Path(code.co_filename) in _files or is_own_module(frame.f_globals.get("__name__"))
        yield _Place(code.co_filename, line, code.co_qualname, own, frame.f_locals.get("self"))


def line_of(error: BaseException) -> str:
    """Where custom code raised an error: `` in line 12 of mine.py``; empty if it didn't."""
    places = [place for place in _places(error) if place.own]
    return places[-1].words if places else ""


def _in_words(part: str, place: _Place | None, error: BaseException) -> OwnPartError:
    kind = type(error).__name__
    # Don't name the file twice: if it can't be loaded, the part is the file.
    where = f"{kind}{place.words.removesuffix(f' of {Path(part).name}') if place else ''}"
    text = first_line(error)
    return OwnPartError(f"{part} can't be used: {where}{'' if text == kind else f': {text}'}.")


def _path(file: str) -> Path:
    # Path's own methods raise other errors for a link to itself and for an unknown ~name.
    return Path(os.path.realpath(expand_home(file)))
