"""The rooms of heddle/ and their order: a module imports from its own room and from those above it, and in no circle.

docs/architecture.md says what each room is for. Imports for type checking and inside functions count like all others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    "base", "spec", "fabric", "render", "host", "kernel", "wire", "switch", "runtimes", "lab", "traffic", "endpoints",
    "predict", "proof", "forecast", "runs", "checks", "engineering", "experiments", "views", "dashboard", "places",
    "workshop", "cli", "testing",
)  # fmt: skip
Imports = Mapping[str, Mapping[str, int]]  # module -> what it imports -> line


def modules_of(root: Path) -> dict[str, Path]:
    """`heddle.base.problems` -> its file; a package's name is its `__init__.py`."""
    found = {}
    for path in sorted(root.glob("heddle/**/*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(root: Path) -> Imports:
    """Every import of one of our modules by another, wherever in the file it is."""
    modules = modules_of(root)
    return {name: dict(_imports(name, path, modules)) for name, path in modules.items()}


def _imports(name: str, path: Path, modules: Mapping[str, Path]) -> Iterator[tuple[str, int]]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            base = ".".join(part for part in (above, node.module or "") if part)
            full = [f"{base}.{each.name}" for each in node.names]
            names = [each if each in modules else base for each in full]
        yield from ((each, node.lineno) for each in names if each in modules and each != name)  # type: ignore[attr-defined]


def arrows_against(imports: Imports) -> list[str]:
    """Imports of rooms that come later, as `heddle/base/x.py:12 base -> lab (heddle.lab.handle)`."""
    found = []
    for name, targets in imports.items():
        room = _room(name)
        for target, line in targets.items():
            if room and _room(target) and ROOMS.index(_room(target)) > ROOMS.index(room):
                found.append(f"{name.replace('.', '/')}.py:{line}  {room} -> {_room(target)}  ({target})")
    return found


def test_no_modules_import_each_other(imports: Imports) -> None:
    try:
        TopologicalSorter({name: [*targets] for name, targets in imports.items()}).prepare()
    except CycleError as error:
        pytest.fail(f"these import each other: {' '.join(error.args[1])}")


def _room(name: str) -> str:
    """`kernel` of heddle.kernel.fib; empty for heddle itself."""
    return [*name.split("."), ""][1]


@pytest.fixture(scope="module")
def imports() -> Imports:
    return imports_of(ROOT)


def test_every_folder_is_a_room_that_has_a_place_in_the_order() -> None:
    folders = {path.name for path in (ROOT / "heddle").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= set(ROOMS)
    assert [path.name for path in (ROOT / "heddle").glob("*.py")] == ["__init__.py"]


def test_no_module_imports_from_a_later_room(imports: Imports) -> None:
    assert not (arrows := arrows_against(imports)), "\n".join(["these imports go against the order:", *arrows])
