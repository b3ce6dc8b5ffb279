"""No shape outside its shape: the words of a Clos stand in its two modules, and elsewhere only in examples.

An example is the name of a node (`rtsw1`, `ctsw1:eth3`, `ctsw*`) in a docstring or a comment, or any of the words there
between backquotes. In other strings, which code might compare or print, there is none but in the files of EXAMPLES.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ("heddle/fabric/shapes/clos.py", "heddle/spec/shapes/clos.py")
FORMS = "plugins/readers/fabrics/"  # the forms of each shape in files of other tools
EXAMPLES = ("heddle/cli/helptexts.py", "templates/help/examples.txt")  # help texts
WORD = re.compile(r"(?<![a-z])(rtsw|ctsw|atsw)", re.IGNORECASE)
NODE = re.compile(r"(?<![a-z])(rtsw|ctsw|atsw)([0-9]+|\*)")
QUOTED = re.compile(r"`[^`]*`")


def texts(root: Path) -> list[Path]:
    """Every text of the package and of its templates, but the shapes' own, and their forms elsewhere."""
    found = [p for top in ("heddle", "plugins", "templates") for p in sorted((root / top).rglob("*")) if p.is_file()]
    names = {p: str(p.relative_to(root)) for p in found if "__pycache__" not in p.parts and p.suffix != ".o"}
    return [p for p, name in names.items() if name not in SHAPES and not name.startswith(FORMS)]


def without_examples(text: str) -> str:
    return NODE.sub("", QUOTED.sub("", text))


def prose(tree: ast.AST) -> set[int]:
    """Lines on which docstrings begin, those of attributes too."""
    found = set()
    for node in ast.walk(tree):
        for statement in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                found.add(statement.value.lineno)
    return found


def wrong_in(name: str, text: str) -> Iterator[str]:
    """`file:line: what` for each word that has no business there."""
    if not name.endswith(".py"):
        for number, line in enumerate(text.splitlines(), 1):
            if WORD.search(NODE.sub("", line) if name in EXAMPLES or name.endswith("/examples.txt") else line):
                yield f"{name}:{number}: {line.strip()}"
        return
    if not WORD.search(text):
        return
    docstrings = prose(ast.parse(text))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if not WORD.search(token.string):
            continue
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.start[0] in docstrings):
            bad = WORD.search(without_examples(token.string))
        elif token.type == tokenize.STRING and name in EXAMPLES:
            bad = WORD.search(NODE.sub("", token.string))
        else:
            bad = WORD.search(token.string)
        if bad:
            yield f"{name}:{token.start[0]}: {bad.group()}"


def test_no_module_outside_its_shape_knows_a_tier() -> None:
    wrong = [each for path in texts(ROOT) for each in wrong_in(str(path.relative_to(ROOT)), _text(path))]
    assert not wrong, "\n".join(wrong)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""  # built, as the programs' objects


def test_every_exception_is_still_needed() -> None:
    for name in (*SHAPES, *EXAMPLES):
        assert WORD.search(_text(ROOT / name)), name
