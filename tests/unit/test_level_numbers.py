"""What a level means is a fact of `Level`: no module outside the shapes and the wiring compares its number.

Refused are a comparison of a `level` with a number, a choice by whether it is 0, and a number or a slice of numbers as
an index of `levels`. A constant of the module in capitals is a number, too. Two levels may be compared: above, below.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.answers import Answers
from tests.unit.trees import tree_of

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("parsed_once")
# The wiring gives levels their numbers, and files of it are checked by them.
WIRING = {"heddle/fabric/wiring.py", "heddle/fabric/policydata.py"}
SHAPES = ROOT / "heddle/fabric/shapes"
# No level of a fabric.
OTHERS = {"heddle/cli/explain_verb.py": "headings of a page"}


def numbers_in(tree: ast.AST) -> Iterator[ast.expr]:
    """The expressions of a module that name a level by its number."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
            if any(_is(part, "level") for part in parts) and any(_number(part) for part in parts):
                yield node
        elif isinstance(node, ast.Subscript) and _is(node.value, "levels") and _number(node.slice):
            yield node
        elif isinstance(node, ast.If | ast.IfExp | ast.While) and _is(node.test, "level"):
            yield node.test


def _is(node: ast.expr, name: str) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == name) or (isinstance(node, ast.Name) and node.id == name)


def _number(node: ast.expr | None) -> bool:
    """A number, a constant in capitals, a sum or a sequence of these, or a slice with one."""
    if isinstance(node, ast.Slice):
        return any(_number(part) for part in (node.lower, node.upper))
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(_number(part) for part in node.elts)
    if isinstance(node, ast.BinOp):
        return _number(node.left) and _number(node.right)
    if isinstance(node, ast.UnaryOp):
        return _number(node.operand)
    constant = isinstance(node, ast.Constant) and isinstance(node.value, int)
    return constant or (isinstance(node, ast.Name) and node.id.isupper())


def test_a_number_of_a_level_is_found(answers: Answers) -> None:
    answers(lambda text: [ast.unparse(found) for found in numbers_in(ast.parse(text))])


def test_two_levels_can_be_compared(answers: Answers) -> None:
    answers(lambda text: [*numbers_in(ast.parse(text))])


def test_no_module_outside_the_wiring_compares_the_number_of_a_level() -> None:
    found = {}
    for path in sorted(path for room in ("heddle", "plugins") for path in (ROOT / room).rglob("*.py")):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        if path.parent != SHAPES and "level" in text:
            found[name] = [f"{name}:{each.lineno}  {ast.unparse(each)}" for each in numbers_in(tree_of(path))]
    allowed = {*WIRING, *OTHERS}
    wrong = [each for name, lines in found.items() if name not in allowed for each in lines]
    assert not wrong, "\n".join(["use a fact of Level:", *wrong])
    assert all(found[name] for name in allowed), "an exception is no longer needed"
