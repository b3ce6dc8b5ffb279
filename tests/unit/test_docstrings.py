"""Every public method says what it does, where it is declared: an override needs no second text (D102 asks for one)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.trees import statements, tree_of

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("parsed_once")
PLAIN = {"to_json", "from_json"}  # one meaning everywhere: plain data, for JSON
Classes = dict[str, list[tuple[Path, ast.ClassDef]]]


def classes(*roots: Path) -> Classes:
    """All classes of trees, by name."""
    found: Classes = {}
    for path in sorted(path for root in roots for path in root.rglob("*.py")):
        for node in statements(tree_of(path).body):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append((path, node))
    return found


def bases(node: ast.ClassDef) -> Iterator[str]:
    """Names of the bases, without what is in brackets and before dots."""
    for base in node.bases:
        yield ast.unparse(base).partition("[")[0].rpartition(".")[2]


def explained(known: Classes, name: str, method: str, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a base of the classes of this name explains the method."""
    for _, node in known.get(name, []):
        for base in set(bases(node)) - seen:
            for _, above in known.get(base, []):
                if any(
                    isinstance(f, ast.FunctionDef) and f.name == method and ast.get_docstring(f) for f in above.body
                ):
                    return True
            if explained(known, base, method, seen | {name}):
                return True
    return False


def silent(known: Classes) -> list[str]:
    """Public methods that neither they nor their bases explain."""
    return [
        f"{path.name}:{each.lineno} {name}.{each.name}"
        for name, several in known.items()
        if not name.startswith("_")
        for path, node in several
        for each in node.body
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_") and not ast.get_docstring(each)
        and each.name not in PLAIN and not any("setter" in ast.unparse(by) for by in each.decorator_list)
        and not any("overload" in ast.unparse(by) for by in each.decorator_list)
        and not explained(known, name, each.name)
    ]  # fmt: skip


def test_public_methods_are_explained_where_they_are_declared() -> None:
    assert silent(classes(ROOT / "heddle", ROOT / "plugins")) == []


def test_a_method_without_a_text_is_found(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text(
        'class Base:\n    def said(self): "It is said."\n'
        "class One(Base):\n    def said(self): ...\n    def other(self): ...\n"
    )
    assert silent(classes(tmp_path)) == ["some.py:5 One.other"]
