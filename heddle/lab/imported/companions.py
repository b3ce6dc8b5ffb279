"""The files that a topology needs: they are copied with it to another machine.

In:  the arguments of `up`. Out: names of files, including the topology itself.
Nothing is checked here: the machine that reads the topology reports its errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from heddle.lab.imported.variables import NODE_NAME, resolved

_MOST: Final = 10_000  # files; a bind of / must not copy the whole machine


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
    """Files bound by relative paths, including those in bound directories."""
    import yaml

    from heddle.lab.imported.variables import expand

    try:
        data = yaml.safe_load(expand(topology.read_text(encoding="utf-8"), str(topology)))
        nodes = list(data["topology"]["nodes"])
    except Exception:  # the machine that reads the topology reports its errors
        return []
    found: dict[str, None] = {}
    for text in _texts(data["topology"]):
        source, colon, _ = text.partition(":/")
        if not colon or source.startswith(("/", "~")):
            continue
        for name in nodes if NODE_NAME in source else [""]:
            for each in _below(resolved(source.replace(NODE_NAME, str(name)), topology.absolute().parent)):
                found[str(each)] = None
                if len(found) >= _MOST:
                    return list(found)
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
