"""Which of Heddle's own plugins are not in this checkout, and which tests need them: these are left out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from heddle.base.resources import HERE, PLUGINS

TESTS: Final = Path(__file__).parent
_NAMED: Final = re.compile(rf"{PLUGINS}\.(\w+)")


def plugins_away() -> frozenset[str]:
    """The plugins that pyproject.toml names and that have no folder here."""
    named = _NAMED.findall(HERE.beside("pyproject.toml").read_text(encoding="utf-8"))
    return frozenset(name for name in named if not (HERE.plugins / name / "__init__.py").is_file())


def left_out(away: frozenset[str]) -> list[str]:
    """Paths below tests: folders of these plugins, folders whose conftest.py needs one, and modules that need one.

    A module needs a plugin when its text has the plugin's module name, or that of a module of tests that needs one. Of
    a conftest.py only lines without indentation count: what its fixtures import is needed by the tests that use them.
    """
    if not away:
        return []
    texts = {path: path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py") if path != TESTS / "conftest.py"}
    texts |= {path: re.sub(r"(?m)^\s.*$", "", text) for path, text in texts.items() if path.name == "conftest.py"}
    names = {path: ".".join(("tests", *path.relative_to(TESTS).with_suffix("").parts)) for path in texts}
    found = [path for name in away for path in TESTS.glob(f"*/{name}")]
    lost, new = set[str](), {f"{PLUGINS}.{name}" for name in away}
    while new:
        lost |= new
        parts = (each.rpartition(".") for each in new)
        needs = re.compile("|".join(rf"\b{re.escape(where)}(?:\.| import ){name}\b" for where, _, name in parts))
        needing = [path for path, text in texts.items() if names[path] not in lost and needs.search(text)]
        found += [path.parent if path.name == "conftest.py" else path for path in needing]
        new = {names[path] for path in needing}
    return sorted({path.relative_to(TESTS).as_posix() for path in found})
