"""The verb `demo`; demo.py has what it runs."""

from __future__ import annotations

from heddle.cli.console import Console
from heddle.cli.verbs import verb
from heddle.host import packages


@verb(packages=packages.FABRIC, root=True)
def demo(out: Console) -> None:
    """Show Heddle in a minute: a fabric, three all-reduces, and the proof of every path.

    The same ring all-reduce runs with ECMP and 1 QP, with ECMP and 16 QPs, and with E-ECMP and 16 QPs. The lab is
    taken down at the end.
    """
    from heddle.cli.demo import demo as run_demo

    result = run_demo(out.observer, out.show)
    out.result(result.to_json(), result.text())
    out.fail(*result.problems)
