"""Names in heddle/: a public class and a constant each have one name, and one place."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import heddle

ROOT = Path(heddle.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
# Programs that start without the package on their path, so they define what they need: nsenter's replacement.
ALONE = {"runtimes/enter.py"}
# A private number up to this one can be equal in two modules by chance: timeouts, counts of lines.
SMALL = 255


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.fixture(scope="module", autouse=True)
def parsed_once() -> Iterator[None]:
    """Trees of all files are large: they go with the last test."""
    yield
    tree_of.cache_clear()


def doubles(found: Iterable[tuple[Any, str]]) -> dict[Any, list[str]]:
    """Keys that occur more than once, with the places."""
    places: dict[Any, list[str]] = defaultdict(list)
    for key, place in found:
        places[key].append(place)
    return {key: where for key, where in places.items() if len(where) > 1}


def classes(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Public classes at the top of modules."""
    for path in files:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, f"{path}:{node.lineno}"


def assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names and values of assignments at the top of a module; `A, B = 1, 2` gives two."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets: list[ast.expr] = [node.target]
        elif isinstance(node, ast.Assign):
            targets = node.targets
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and node.value is not None:
                yield target.id, node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=True)
                yield from ((name.id, value) for name, value in pairs if isinstance(name, ast.Name))


def constants(files: Iterable[Path]) -> Iterator[tuple[tuple[str, str], str]]:
    """(name without underscore, value) of each constant that is not equal in two modules by chance."""
    for path in files:
        for name, value in assigned(tree_of(path)):
            if name.startswith("__") or isinstance(value, (ast.Subscript, ast.Lambda)):
                continue  # `__all__`; an alias of a type
            number = value.value if isinstance(value, ast.Constant) else None
            if name.startswith("_") and isinstance(number, (int, float)) and number <= SMALL:
                continue
            yield (name.lstrip("_"), ast.unparse(value)), f"{path}:{value.lineno}"


def test_each_public_class_has_a_name_of_its_own() -> None:
    assert doubles(classes(FILES)) == {}


def test_each_constant_is_defined_once() -> None:
    shared = [path for path in FILES if str(path.relative_to(ROOT)) not in ALONE]
    assert doubles(constants(shared)) == {}


def test_folders_of_tests_are_packages_so_that_two_files_can_have_one_name() -> None:
    # pytest imports a test file of a plain folder by its name alone: the second test_rail.py ends the whole run.
    # A repository of tests/examples is no part of ours: its tests run in a copy of it.
    files = Path(__file__).parents[1].rglob("test_*.py")
    folders = {path.parent for path in files if "examples" not in path.parts}
    assert len(folders) >= 4
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]
