"""The verb `fault`: set, list and clear faults of the links of a running lab."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heddle.base.problems import InputError, Problem
from heddle.cli import helptexts as words
from heddle.cli.console import Console
from heddle.cli.verbs import verb


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
    from heddle.lab import impairments
    from heddle.lab.opening import open_lab
    from heddle.spec.impairments import KINDS, read_fault
    from heddle.views.faulttext import faults_text

    typed = dict(zip(KINDS, (delay, jitter, loss, corrupt, duplicate, reorder), strict=True))
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
        changed = impairments.clear_faults(where, ports)
        out.say(f"cleared the faults of {len(changed)} port{'' if len(changed) == 1 else 's'}")
    elif given:
        if not port:
            hint = f"./inv fault {example} --loss 1/256"
            raise InputError(Problem("", f"--{next(iter(given))}", "needs a port", hint))
        wanted = read_fault(given, f"./inv fault {example} --clear", lambda key, text: ("", f"--{key} {text}"))
        impairments.set_fault(where, ports, wanted)
    found = impairments.read_faults(where)
    if port and not clear:
        named = {each.ref for each in impairments.ports_of(where.fabric, ports)}
        found = [each for each in found if each.port in named]
    k = where.fabric.policy.k
    out.result(
        {"lab": where.name, "k": k, "faults": [each.to_json() for each in found]}, faults_text(found, k, example)
    )


def _both(lab: Any, port: Sequence[str]) -> list[str]:
    """The named ports, and those at the other ends of their links."""
    from heddle.lab.impairments import ports_of

    return list(dict.fromkeys(ref for each in ports_of(lab.fabric, port) for ref in (each.ref, each.peer_ref)))
