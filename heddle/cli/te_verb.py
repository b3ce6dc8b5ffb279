"""The verb `te`: central traffic engineering. te_live.py has its actions."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.cli import completion
from heddle.cli.argv import Option, Options, Tool
from heddle.cli.console import Console
from heddle.cli.verbs import verb


@dataclass(frozen=True, slots=True)
class TeWords:
    """The words after `./inv te ACTION`."""

    lab: str | None = None
    run: str | None = None
    interval: str | None = None
    workload: str | None = None
    out: str | None = None
    all: bool = False


# Action -> its function of (Console, TeWords).
ACTIONS: Final[Mapping[str, str]] = {
    "plan": "heddle.cli.te_live:plan",
    **{action: f"heddle.cli.te_live:{action}" for action in ("apply", "watch", "off", "show")},
}

_HELP: Final[Options] = {
    "action": Option(
        "plan: entries for a demand, and their effect; apply: put them in force; watch: do so repeatedly; off; show",
        tuple(ACTIONS),
    ),
    "run": "the demand is what this run sent: an ID or number that ./inv runs lists (default: last)",
    "interval": Option(
        "the demand is what switches count in this time from now on: 2s; with watch: time between two plans (30s)",
        value="TIME",
    ),
    "workload": Option(
        "the demand is one iteration of a workload: a file, a name of traffic/, or a word, as in predict",
        completion.workloads,
    ),
    "out": Option("write all entries to this file, for hashing exact-match --table", value="FILE"),
    "all": "show all changes or entries, not only 16",
}


def files_in(typed: Mapping[str, Any]) -> Sequence[str]:
    """The files of the workload."""
    from heddle.endpoints.workloadfile import files_of

    return files_of(typed["workload"])


@verb(
    group="Paths",
    help=_HELP,
    positional=["action"],
    root=True,
    files_in=files_in,
    files_out=["out_"],
    tool=Tool(
        "Show the entries of traffic engineering in force; with a run, a workload or an interval, plan entries for it.",
        without=("action", "all"),
        runs=("run",),
    ),
)
def te(
    out: Console,
    action: str | None = None,
    run: str | None = None,
    interval: str | None = None,
    workload: str | None = None,
    out_: str | None = None,
    all_: bool = False,
    lab: str | None = None,
) -> None:
    """Choose paths for the flows of a running lab centrally: exact-match entries, with BGP's ECMP as fall-back.

    ./inv te plan shows the entries for the flows of the last run, and the use of links before and after. The topology
    is what BGP and the links say now. --interval 2s takes the flows from the switches' counters. --workload takes them
    from a file. apply puts the plan in force, without loss. watch does so at an interval, and when a link or a route
    changes. off restores the hashing from before. show, the default, prints what is in force. docs/te.md has more.
    """
    action = action or ("plan" if run or interval or workload else "show")
    if action not in ACTIONS:
        raise InputError(Problem("", f"te {action}", "is not an action of te", did_you_mean(action, ACTIONS)))
    act: Callable[[Console, TeWords], None] = pkgutil.resolve_name(ACTIONS[action])
    act(out, TeWords(lab, run, interval, workload, out_, all_))
