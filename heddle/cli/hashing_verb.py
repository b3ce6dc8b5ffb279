"""The verb `hashing`; hashing_change.py has what it does."""

from __future__ import annotations

from collections.abc import Sequence

from heddle.cli import helptexts as words
from heddle.cli.argv import Tool
from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb(
    group="Paths",
    help=words.HASHING,
    positional=["mode"],
    root=True,
    files_in=["table"],
    tool=Tool(
        "Show the hashing mode, seed and counters of each switch of a lab.",
        without=("mode", "set", "table", "entry", "clear", "explain", "run"),
    ),
)
def hashing(
    out: Console,
    mode: str | None = None,
    switch: Sequence[str] = (),
    set_: Sequence[str] = (),
    table: str | None = None,
    entry: Sequence[str] = (),
    clear: bool = False,
    explain: str | None = None,
    run: str | None = None,
    lab: str | None = None,
) -> None:
    """Show how every switch chooses among equal-cost paths; with a mode, change it while the lab runs, without loss.

    ./inv hashing flowlet --set gap=20ms --switch rtsw1,rtsw2. Other options stay as in the fabric file; docs/hashing.md
    explains the modes. ./inv hashing exact-match --table te.csv replaces the tables of the switches in the file.
    ./inv hashing --explain host1,host5,qpn=0x101,sport=50000 shows each step for a flow; exit 1 when a kernel differs.

    Columns: policy is the kernel's fib_multipath_hash_policy; options has those that differ from the default; exact is
    the number of rows of the exact-match table. The others count since the lab came up. Packets: steered (the program
    chose the port), fell back (left to the kernel's ECMP), misses (no row, or no space for the flowlet). Flowlets:
    re-picks (new ones after a gap).
    """
    from heddle.cli.hashing_change import HashingWords, explain_flow, run_hashing

    asked = HashingWords(mode, switch, set_, table, entry, clear, run)
    if explain is not None:
        return explain_flow(out, lab, explain, asked)
    return run_hashing(out, lab, asked)
