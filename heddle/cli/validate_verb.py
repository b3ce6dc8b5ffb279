"""The verb `validate`: every check on a running lab."""

from __future__ import annotations

from heddle.cli.argv import Tool
from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb(
    positional=["lab"],
    root=True,
    tool=Tool("Run every check on a running lab. `ok` is false if one fails."),
)
def validate(out: Console, lab: str | None = None) -> None:
    """Check a running lab: links, queues, programs, routes, paths and more; exit 1 when a check fails."""
    from heddle.checks.validate import validate as check
    from heddle.lab.opening import open_lab
    from heddle.views import labtext as views

    where = open_lab(lab)
    checks = check(where)
    ok = all(each.ok for each in checks)
    out.result({"ok": ok, "lab": where.name, "checks": [c.to_json() for c in checks]}, views.checks_text(checks))
    out.exit_code = 0 if ok else 1
