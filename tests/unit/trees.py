"""The syntax trees of our modules, each parsed once in a process, for the tests of style and of imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements, also those within others; ast.walk gives their expressions, too, which takes most of the time."""
    for each in body:
        yield each
        for part in (each, *getattr(each, "handlers", ()), *getattr(each, "cases", ())):
            for inside in ("body", "orelse", "finalbody"):
                yield from statements(getattr(part, inside, []))
