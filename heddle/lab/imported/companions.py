"""The files that a topology needs: they are copied with it to another machine.

In:  the arguments of `up`. Out: names of files, including the topology itself.
The topology may be a stranger's: it takes only files below its own directory. The machine that reads it reports its
other errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from heddle.base.problems import InputError, Problem
from heddle.lab.imported.variables import NODE_NAME, resolved

_MOST: Final = 10_000  # files
_TEXT: Final = 1 << 20  # bytes of a topology
_NAMED: Final = 5  # refused files that are named


def files_of(fabric: str | None, topology: str | None) -> list[str]:
    """The files that `up` reads: the fabric file, or the topology and the files that it binds by relative paths. Either
    argument may name a topology.
    """
    found: list[str] = []
    for each in (fabric, topology):
        if each is not None:
            found += [each, *companions(Path(each).expanduser())]  # a preset or a fabric file has none
    return found


def companions(topology: Path) -> list[str]:
    """Files bound by relative paths, including those in bound directories. InputError names those that are refused."""
    import yaml

    from heddle.lab.imported.variables import expand

    try:
        if not topology.is_file() or topology.stat().st_size > _TEXT:  # not a FIFO or a device
            return []
        data = yaml.safe_load(expand(topology.read_text(encoding="utf-8"), str(topology)))
        nodes = list(data["topology"]["nodes"])
    except Exception:  # the machine that reads the topology reports its errors
        return []
    found: dict[str, None] = {}
    outside: dict[str, None] = {}
    directory = topology.absolute().parent
    root = directory.resolve()
    for text in _texts(data["topology"]):
        source, colon, _ = text.partition(":/")
        if not colon or source.startswith(("/", "~")):
            continue
        for name in nodes if NODE_NAME in source else [""]:
            bound = resolved(source.replace(NODE_NAME, str(name)), directory)
            for each in _below(bound) if bound.resolve().is_relative_to(root) else [bound] * bound.exists():
                (found if each.resolve().is_relative_to(root) else outside)[str(each)] = None
                if len(found) + len(outside) > _MOST:
                    why = f"binds more than {_MOST} files, which are not copied to another machine"
                    raise InputError(Problem("", str(topology), why, "bind fewer files"))
    if outside:
        names = ", ".join([*outside][:_NAMED]) + (f" and {len(outside) - _NAMED} more" if len(outside) > _NAMED else "")
        why = f"binds files outside its directory, which are not copied to another machine: {names}"
        hint = "copy them below the directory of the topology, and bind the copies"
        raise InputError(Problem("", str(topology), why, hint))
    return list(found)


def _texts(value: Any, within: str = "") -> Iterator[str]:
    """All texts in lists called binds or env-files, at any level."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _texts(each, str(key))
    elif isinstance(value, list) and within in ("binds", "env-files"):
        yield from (f"{each}:/" if within == "env-files" else str(each) for each in value)


def _below(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from (each for each in sorted(path.rglob("*")) if each.is_file())
