"""The marker `fabric`: which fabric a test runs on.

In:  the arguments of `@pytest.mark.fabric("zone", routing={"ecmp": "e-ecmp"})`, and the directory of the test file.
Out: FabricRequest, whose overrides are those of `--set`. InputError carries every mistake, with file, line and key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle.base.problems import InputError, Problem
from heddle.spec.load import settings_of, value_text

if TYPE_CHECKING:
    from heddle.fabric.fabricfile import LoadedFabric

EXAMPLE: Final = '@pytest.mark.fabric("tiny")'
_SUFFIXES: Final = (".yml", ".yaml")


@dataclass(frozen=True, slots=True)
class FabricRequest:
    """A fabric that a test asks for: a preset's name or a path, and overrides as `path=value` each."""

    fabric: str
    overrides: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """`zone, routing.ecmp=e-ecmp`."""
        return ", ".join((self.fabric, *self.overrides))

    def load(self, name: str | None = None) -> LoadedFabric:
        """The fabric, checked; name: of the lab. InputError with everything that is wrong."""
        from heddle.fabric.fabricfile import load_fabric

        return load_fabric(self.fabric, name=name, overrides=self.overrides)


def request_of(
    args: Sequence[object], keys: Mapping[str, object], *, where: str = "", directory: Path | None = None
) -> FabricRequest:
    """The marker's arguments as a request that can be loaded; InputError with every mistake.

    where: `test_mine.py:7`, named in problems. directory: paths of fabric files are relative to it.
    """
    problems: list[Problem] = []
    if len(args) != 1 or not isinstance(args[0], str | os.PathLike) or not os.fspath(args[0]):
        shown = ", ".join(map(repr, args))
        why = "needs one argument: a preset's name or the path of a fabric file"
        problems.append(Problem(where, f"fabric({shown})", why, f"write {EXAMPLE}"))
    if "name" in keys:
        why = "cannot be set: the plugin chooses the names of its labs"
        problems.append(Problem(where, f"name: {keys['name']}", why, "remove it"))
    overrides = []
    for path, value in settings_of({key: value for key, value in keys.items() if key != "name"}):
        text = value_text(path, value)
        if text is None:
            why = f"is a Python {type(value).__name__}, which no fabric file can contain"
            problems.append(Problem(where, f"{path}: {value!r}"[:120], why, "use texts, numbers, True, False or lists"))
        elif not path or "=" in path or not all(path.split(".")):
            problems.append(
                Problem(where, repr(path), "is not a key of a fabric file", "docs/fabric-file.md lists them")
            )
        else:
            overrides.append(f"{path}={text}")
    if problems:
        raise InputError(*problems)
    request = FabricRequest(_located(os.fspath(args[0]), directory), tuple(overrides))  # type: ignore[call-overload]
    try:
        request.load()
    except InputError as error:
        raise InputError(*(replace(each, where=_shown(each.where, where)) for each in error.problems)) from None
    return request


def _located(fabric: str, directory: Path | None) -> str:
    """A path is relative to the test file; a word without a slash or a suffix is a preset's name."""
    path = Path(fabric)
    if directory is None or path.is_absolute() or not ("/" in fabric or path.suffix in _SUFFIXES):
        return fabric
    return str((directory / path).resolve())


def _shown(place: str, marker: str) -> str:
    """Where a problem is: the marker in place of the command line's `--set`; a file as the user would type it."""
    return marker if place in ("", "--set") else place.removeprefix(f"{Path.cwd()}{os.sep}")
