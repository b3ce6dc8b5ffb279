"""The verbs of paths: `paths`, of a run or as its QPs would take them now; and `hashing`, whose actions
hashing_change.py has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.base.problems import InputError, Problem
from heddle.cli import helptexts as words
from heddle.cli.argv import Tool
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.proof.selection import QpSelection


@dataclass(frozen=True, slots=True)
class Shown:
    """The QPs to show, as typed: --all, and the words after --qp, --host, --port."""

    all: bool = False
    qp: Sequence[str] = ()
    host: Sequence[str] = ()
    port: Sequence[str] = ()

    def selection(self, fabric: Fabric) -> QpSelection:
        """The selection. InputError for words that match nothing, and for --all with another flag."""
        from heddle.proof.selection import read_selection

        some = [flag for flag, typed in (("--qp", self.qp), ("--host", self.host), ("--port", self.port)) if typed]
        if self.all and some:
            raise InputError(
                Problem("", f"--all and {some[0]}", "exclude each other", f"{some[0]} shows all that match")
            )
        return read_selection(fabric, self.qp, self.host, self.port)

    @property
    def rows(self) -> dict[str, None]:
        """The keyword argument for a view without a limit; empty for the default limit."""
        return {"rows": None} if self.all else {}


@verb(
    group="Paths",
    help=words.PATHS,
    root=True,
    tool=Tool(
        "Show the path of each QP of a run from three sources (prediction, kernels, counters), link utilization, "
        "MMR. In a large run, choose QPs by qp, host or port.",
        runs=("run",),
        without=("all",),
    ),
)
def paths(
    out: Console,
    lab: str | None = None,
    run: str | None = None,
    now: bool = False,
    all_: bool = False,
    qp: Sequence[str] = (),
    host: Sequence[str] = (),
    port: Sequence[str] = (),
) -> None:
    """Show the path of every QP of a run: predicted, kernel lookup, measured. Exit 1 when they differ.

    The run is the last one, or --run ID (./inv runs lists them). With --now: the paths that its QPs would take now, and
    how many of them have moved since the run.
    16 QPs are shown; --all shows all, and --qp, --host and --port select some. The exit code is for all QPs.
    ./inv predict shows what a fabric would do that does not run.
    """
    return show_paths(out, lab, run, Shown(all_, qp, host, port), now=now)


def show_paths(out: Console, lab: str | None, run: str | None, shown: Shown, *, now: bool) -> None:
    """`./inv paths`, of the run or now. Exit 1 when the sources differ for any QP, shown or not.

    now: the sources are prediction and kernel lookup. A QP that would not reach its destination is exit code 1, too.
    """
    from heddle.lab.opening import open_lab
    from heddle.runs import moved
    from heddle.runs.store import load
    from heddle.views.linkloads import describe_run
    from heddle.views.pathstext import now_text, paths_text

    where = open_lab(lab)
    chosen = shown.selection(where.fabric)
    stored = load(where, run)
    if now:
        found = moved.now(where, stored)
        result, data, text = found.result, found.to_json(), now_text(found, chosen, **shown.rows)
    else:
        result = stored.needed(stored.proof)
        data, text = result.to_json(), paths_text(result, chosen, **shown.rows)
    which = f"run {stored.id}: {describe_run(stored.record)}"
    flows = [row for row, wanted in zip(data["flows"], chosen.mask(result), strict=True) if wanted]
    count = {"flows": len(flows), "of": len(data["flows"])}
    document = {"run_id": stored.id, **data, "flows": flows, "shown": count, "filter": chosen.to_json()}
    out.result(document, f"{text}\n\n{which}")
    out.exit_code = 0 if result.agree else 1


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
