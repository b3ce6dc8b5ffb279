"""axe-core, the accessibility checks of Deque, run in a page: https://github.com/dequelabs/axe-core (MPL 2.0).

The JavaScript comes with the package axe-playwright-python, which is used for nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import files
from pathlib import Path
from typing import Any, Final

CARRIER: Final = "axe-playwright-python"
# What a page must meet: WCAG 2.2 A and AA, and the best practices of axe-core.
RUN: Final = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ['violations', 'incomplete']}).then(
    found => done({violations: found.violations, passes: found.passes.length}),
    error => done({error: String(error)}));
"""


def source() -> str:
    """The text of axe.min.js."""
    found = [each for each in files(CARRIER) or () if each.name == "axe.min.js"]
    return Path(str(found[0].locate())).read_text(encoding="utf-8")


def sentences(violations: Sequence[Mapping[str, Any]]) -> list[str]:
    """One paragraph for each element that breaks a rule: the rule, the element, what to do."""
    return [
        f"{rule['id']} ({rule['impact']}): {rule['help']}\n    at {' '.join(map(str, node['target']))}\n"
        f"    {node['html'][:200]}\n    {' '.join(str(node['failureSummary']).split())}"
        for rule in violations
        for node in rule["nodes"]
    ]
