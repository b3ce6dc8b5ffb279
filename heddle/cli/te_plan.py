"""`./inv te plan`: the demand of the user's words, and the plan for it.

In:  TeWords. Out: the plan as text or JSON, and a file with its entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from heddle.base.files import real
from heddle.base.problems import InputError, Problem
from heddle.base.units import parse_duration
from heddle.cli.console import Console
from heddle.cli.te_verb import TeWords

if TYPE_CHECKING:
    from heddle.engineering.te import TeDemand
    from heddle.lab.lab import Lab

_LEAST_S, _MOST_S = 0.05, 600.0
_FLAG: Final = "--out"


def plan(out: Console, asked: TeWords) -> None:
    """Print the plan; nothing is changed. Exit 1 when a flow has no path."""
    from heddle.engineering.te import plan_for
    from heddle.lab.opening import open_lab
    from heddle.views.graph import check_target, write_file
    from heddle.views.tetext import plan_text

    where = open_lab(asked.lab)
    if asked.out is not None:
        check_target(real(asked.out), asked.out, _FLAG)
    found = plan_for(where, demand_of(where, asked))
    text = plan_text(found, **({"rows": None} if asked.all else {}))
    if asked.out is not None:
        write_file(real(asked.out), found.csv().encode(), asked.out, flag=_FLAG)
        text += f"\n\nwrote {asked.out}: ./inv hashing exact-match --table {asked.out} sets these entries"
    out.result({**found.to_json(), "out": asked.out}, text)
    out.exit_code = 1 if found.without else 0


def demand_of(where: Lab, asked: TeWords) -> TeDemand:
    """The demand that the words name: of the last run, if they name none."""
    from heddle.engineering import te

    given = [f"--{key}" for key in ("run", "interval", "workload") if getattr(asked, key) is not None]
    if len(given) > 1:
        raise InputError(Problem("", f"{given[0]} and {given[1]}", "exclude each other", "keep one of them"))
    if asked.interval is not None:
        return te.of_interval(where, seconds_of(asked.interval))
    if asked.workload is not None:
        from heddle.endpoints.workloadfile import load_workload

        return te.of_workload(where, load_workload(asked.workload).workload)
    return te.of_run(where, asked.run)


def seconds_of(typed: str) -> float:
    """The time after --interval, in seconds. InputError when it is none, or out of range."""
    try:
        seconds = parse_duration(typed) / 1e9
    except ValueError as error:
        why, _, hint = str(error).partition("; ")
        raise InputError(Problem("", f"--interval {typed}", why, hint)) from None
    if not _LEAST_S <= seconds <= _MOST_S:
        why = f"is outside {_LEAST_S * 1000:g}ms to {_MOST_S:g}s"
        raise InputError(Problem("", f"--interval {typed}", why, "for example --interval 2s"))
    return seconds
