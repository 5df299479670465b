"""Ways to damage a file or a folder."""

import json
import os
import random
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from densekd.files import sealed_json

# JSON that no reader expects.
WRONG_JSON = (
    *(b"{}", b"[]", b"null", b"3", b'"text"', b"true", b'{"format": 1}', b'{"sha256": 1}'),
    b'{"format": 99, "sha256": "00"}',
    b"[" * 200_000,
    b'{"a":' * 50_000,
    b"\xff\xfe\x00",
    b"1" * 5000,
)
_ODD_FACTS: tuple[Any, ...] = (
    *(None, True, -1, 0, 7, 10**30, 0.5, 1e308, "", "text", "../../etc/passwd", "\x1b[2J"),
    *([], [1, "a"], [[]], {}, {"a": 1}, [None] * 3),
)


def damage_file(path: Path, draw: random.Random) -> tuple[str, bool]:
    """Damage a file in one of many ways; says which, and whether its checksums are right again."""
    name, damage = draw.choice(list(_DAMAGES.items()))
    if path.suffix in (".json", ".safetensors") and draw.random() < 0.3:
        name, damage = "forged", _forge
    damage(path, draw)
    return name, damage is _forge


def damage_folder(path: Path, draw: random.Random) -> str:
    """Take a folder away, or put something else in its place."""
    name = draw.choice(["removed", "empty", "a file", "a pipe", "a link to itself", "a link away"])
    aside = path.with_name(f"{path.name}.away")
    shutil.rmtree(path)
    match name:
        case "empty":
            path.mkdir()
        case "a file":
            path.write_bytes(b"text")
        case "a pipe":
            os.mkfifo(path)
        case "a link to itself":
            path.symlink_to(path)
        case "a link away":
            path.symlink_to(aside)
    return name


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def _flip(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def _cut(path: Path, draw: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(max(1, len(content)))])


def _swap(path: Path, draw: random.Random) -> None:
    """Put the content of another file of the same kind in its place."""
    others = [x for x in path.parents[1].rglob(f"*{path.suffix}") if x.is_file() and x != path]
    path.write_bytes(draw.choice(others).read_bytes() if others else b"")


def _link(path: Path, draw: random.Random) -> None:
    target = draw.choice(["/dev/zero", "/dev/null", "/etc/passwd", path.name, "missing", "/", "."])
    _replace(path, lambda place: place.symlink_to(target))


def _forge(path: Path, draw: random.Random) -> None:
    """Change something, and give it the right checksums, as only malice does."""
    if path.suffix == ".safetensors":
        _forge_tensors(path, draw)
        return
    content = json.loads(path.read_bytes())
    if isinstance(content, dict):
        content.pop("sha256", None)
        _change(content, draw)
        path.write_bytes(sealed_json(content))


def _change(value: Any, draw: random.Random) -> None:
    """Change one value somewhere in nested lists and dictionaries."""
    while True:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(value[key], dict | list) and value[key] and draw.random() < 0.8:
            value = value[key]
            continue
        if draw.random() < 0.25:
            del value[key]
        else:
            value[key] = draw.choice(_ODD_FACTS)
        return


def _forge_tensors(path: Path, draw: random.Random) -> None:
    """Change a tensor, or the header, of a state; its JSON gets the new checksum."""
    tensors = load(path.read_bytes())
    name = draw.choice(list(tensors)) if tensors else "new"
    odd: list[torch.Tensor | None] = [
        None,
        *(torch.zeros(0), torch.zeros(3, 2), torch.tensor(7), torch.full((5,), -9)),
        torch.full((18,), float("nan")),
        tensors[name].double() if name in tensors else None,
        tensors[name][..., None] if name in tensors else None,
        (tensors[name].float() * float("nan")) if name in tensors else None,
        (tensors[name] + 99 if tensors[name].dtype != torch.bool else None)
        if name in tensors
        else None,
    ]
    changed = draw.choice(odd)
    rest = {key: value for key, value in tensors.items() if key != name}
    content = save(rest if changed is None else {**rest, name: changed.contiguous()})
    if draw.random() < 0.2:
        content = draw.choice([(2**63).to_bytes(8, "little") + b"{}", b"", content[:20], b"x" * 90])
    state = path.name.rpartition("-")[0]
    facts, digest = path.with_name(f"{state}.json"), sha256(content).hexdigest()
    record = json.loads(facts.read_bytes())
    record.pop("sha256", None)
    path.unlink()
    path.with_name(f"{state}-{digest[:16]}.safetensors").write_bytes(content)
    facts.write_bytes(sealed_json({**record, "tensors": digest}))


_DAMAGES: dict[str, Callable[[Path, random.Random], object]] = {
    "removed": lambda path, _: path.unlink(),
    "empty": lambda path, _: path.write_bytes(b""),
    "cut off": _cut,
    "a flipped bit": _flip,
    "zeros": lambda path, _: path.write_bytes(bytes(path.stat().st_size)),
    "garbage": lambda path, draw: path.write_bytes(draw.randbytes(2000)),
    "wrong JSON": lambda path, draw: path.write_bytes(draw.choice(WRONG_JSON)),
    "a directory": lambda path, _: _replace(path, Path.mkdir),
    "a full directory": lambda path, _: _replace(
        path, lambda place: (place / "inner").mkdir(parents=True)
    ),
    "a pipe": lambda path, _: _replace(path, os.mkfifo),
    "a link": _link,
    "another's content": _swap,
}
