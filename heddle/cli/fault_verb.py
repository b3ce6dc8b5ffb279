"""The verb `fault`: set, list and clear faults of the links of a running lab."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from heddle.base.problems import InputError, Problem
from heddle.cli import helptexts as words
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.fabric.linkfault import LinkFault

_TIMES: Final = ("delay", "jitter")
_SHARES: Final = ("loss", "corrupt", "duplicate", "reorder")


@verb(help=words.FAULT, positional=["port"], root=True)
def fault(
    out: Console,
    port: Sequence[str] = (),
    delay: str | None = None,
    jitter: str | None = None,
    loss: str | None = None,
    corrupt: str | None = None,
    duplicate: str | None = None,
    reorder: str | None = None,
    both: bool = False,
    clear: bool = False,
    lab: str | None = None,
) -> None:
    """Let a link lose, corrupt, duplicate, delay or reorder packets; without words, list the faults that are set.

    A fault concerns packets that leave by the port, after its queue: shaping, ECN marks, PFC and counters stay exact.
    Setting a fault replaces the port's earlier one. Delay, jitter and reordering need a kernel with netem.
    """
    from heddle.lab import linkfaults
    from heddle.lab.opening import open_lab
    from heddle.views.faulttext import faults_text

    typed = dict(zip((*_TIMES, *_SHARES), (delay, jitter, loss, corrupt, duplicate, reorder), strict=True))
    given = {key: value for key, value in typed.items() if value is not None}
    where = open_lab(lab)
    example = where.fabric.switches[0].ports[0].ref
    if clear and given:
        flag = f"--{next(iter(given))}"
        raise InputError(Problem("", f"--clear and {flag}", "exclude each other", f"./inv fault {example} --clear"))
    if both and not port:
        raise InputError(Problem("", "--both", "needs a port", f"./inv fault {example} --both --loss 1/256"))
    ports = _both(where, port) if both else port
    if clear:
        changed = linkfaults.clear_faults(where, ports)
        out.say(f"cleared the faults of {len(changed)} port{'' if len(changed) == 1 else 's'}")
    elif given:
        if not port:
            hint = f"./inv fault {example} --loss 1/256"
            raise InputError(Problem("", f"--{next(iter(given))}", "needs a port", hint))
        linkfaults.set_fault(where, ports, _parsed(given, example))
    found = linkfaults.read_faults(where)
    if port and not clear:
        named = {each.ref for each in linkfaults.ports_of(where, ports)}
        found = [each for each in found if each.port in named]
    k = where.fabric.policy.k
    out.result(
        {"lab": where.name, "k": k, "faults": [each.to_json() for each in found]}, faults_text(found, k, example)
    )


def _both(lab: Any, port: Sequence[str]) -> list[str]:
    """The named ports, and those at the other ends of their links."""
    from heddle.lab.linkfaults import ports_of

    return list(dict.fromkeys(ref for each in ports_of(lab, port) for ref in (each.ref, each.peer_ref)))


def _parsed(given: dict[str, str], example: str) -> LinkFault:
    """The typed values; InputError with every wrong one. example: a port, for hints."""
    from heddle.base.units import parse_duration, parse_share
    from heddle.fabric.linkfault import LinkFault

    readers: dict[str, Callable[[str], int] | Callable[[str], float]] = {
        **dict.fromkeys(_TIMES, parse_duration),
        **dict.fromkeys(_SHARES, parse_share),
    }
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, text in given.items():
        try:
            values[f"{key}_ns" if key in _TIMES else key] = readers[key](text)
        except ValueError as error:
            why, _, hint = str(error).partition("; ")
            problems.append(Problem("", f"--{key} {text[:40]}", why, hint))
    if problems:
        raise InputError(*problems)
    fault = LinkFault(**values)
    key, why, hint = fault.complaint()
    if why:
        raise InputError(Problem("", f"--{key} {given[key]}", why, hint))
    if not fault:
        raise InputError(Problem("", "fault", "sets nothing: every value is 0", f"./inv fault {example} --clear"))
    return fault
