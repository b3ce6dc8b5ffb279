"""The verb `fault`: links that are down or that damage packets, and switches that BGP drains."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from heddle.base.problems import InputError, Problem, nearest
from heddle.base.tables import some_of
from heddle.cli import helptexts as words
from heddle.cli.console import Console
from heddle.cli.helptexts import EXAMPLE_PORT, EXAMPLE_SWITCH
from heddle.cli.verbs import verb
from heddle.spec.impairments import KINDS

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


def _with_kinds(function: Callable[..., None]) -> Callable[..., None]:
    """Give the verb a flag for each kind of fault, in the place of `**typed`."""
    signature = inspect.signature(function)
    kinds = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str") for key in KINDS]
    own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()]
    at = 1 + [each.name for each in own].index("port")
    found = [own[0].replace(kind=inspect.Parameter.POSITIONAL_ONLY), *own[1:at], *kinds, *own[at:-1]]
    function.__signature__ = signature.replace(parameters=found)  # type: ignore[attr-defined]
    return function


@verb(group="Traffic", help=words.FAULT, positional=["action", "port"], root=True)
@_with_kinds
def fault(
    out: Console,
    action: str | None = None,
    port: Sequence[str] = (),
    both: bool = False,
    clear: bool = False,
    timeout: float | None = None,
    lab: str | None = None,
    **typed: str | None,
) -> None:
    """Break a link or drain a switch; without words, list the faults that are set.

    ./inv fault down rtsw1:eth1 takes a link down, ./inv fault drain ctsw1 drains a switch by BGP; up and undrain undo
    it. They return when every kernel has the routes that follow, else with exit code 1, and the change is undone.
    ./inv fault rtsw1:eth1 --loss 1/256 lets a link lose, corrupt, duplicate, delay or reorder packets. This concerns
    packets that leave by the port, after its queue: shaping, ECN marks, PFC and counters stay exact. Setting a fault
    replaces the port's earlier one. Delay, jitter and reordering need a kernel with netem.
    """
    from heddle.lab.opening import open_lab
    from heddle.lab.outages import ACTIONS, DRAINS, SECONDS

    given = {key: value for key, value in typed.items() if value is not None}
    flags = [*(f"--{key}" for key in given), *["--both"] * both, *["--clear"] * clear]
    if action is None or action not in ACTIONS:
        ports = [action, *port] if action is not None else []
        where = open_lab(lab)
        near = nearest(action, ACTIONS) if port and action is not None else ""
        if near and str(action) not in where.fabric.by_name:
            hint = f"did you mean ./inv fault {near} {' '.join(port)}?"
            raise InputError(Problem("", f"fault {action}", "is not an action of fault", hint))
        return _impair(out, where, ports, given, both=both, clear=clear)
    if flags:
        why = "exclude each other"
        raise InputError(Problem("", f"{action} and {flags[0]}", why, f"use two commands: ./inv fault {action} ..."))
    if not port:
        what = EXAMPLE_SWITCH if action in DRAINS else EXAMPLE_PORT
        raise InputError(Problem("", f"fault {action}", "needs a name", f"./inv fault {action} {what}"))
    if timeout is not None and timeout <= 0:
        hint = "use a positive number of seconds, for example --timeout 60"
        raise InputError(Problem("", f"--timeout {timeout:g}", "leaves no time to converge", hint))
    return _outage(out, open_lab(lab), action, port, SECONDS if timeout is None else timeout)


def _outage(out: Console, where: Lab, action: str, names: Sequence[str], timeout: float) -> None:
    """Take links down or up, drain or undrain switches, and wait for the effect."""
    from heddle.fabric.naming import matching_names, split_words
    from heddle.lab import impairments, outages

    began = time.monotonic()
    if action in outages.DRAINS:
        switches = [node.name for node in where.fabric.switches]
        found = matching_names(split_words(names), switches, f"is not a switch of {where.name}")
        (outages.drain if action == "drain" else outages.undrain)(where, *found, timeout=timeout)
    else:
        found = [each.ref for each in impairments.ports_of(where.fabric, names)]
        (outages.link_down if action == "down" else outages.link_up)(where, *found, timeout=timeout)
    seconds = time.monotonic() - began
    state = outages.state_of(where)
    document = {"lab": where.name, "action": action, "names": found, "seconds": round(seconds, 3)}
    are = "is" if len(found) == 1 else "are"
    text = f"{some_of(found)} {are} {outages.ACTIONS[action]}; BGP and all kernels followed in {seconds:.1f} s"
    rest = f"now: {state.text() or 'no link is down, and no switch is drained'}"
    out.result({**document, "down": list(state.dead), "drained": list(state.drained)}, f"{text}\n{rest}")


def _impair(
    out: Console, where: Lab, port: Sequence[str], given: Mapping[str, str], *, both: bool, clear: bool
) -> None:
    """Set, clear or list what links do to packets."""
    from heddle.lab import impairments
    from heddle.lab.outages import State, state_of
    from heddle.spec.impairments import read_fault
    from heddle.views.labtext import faults_text

    example = where.fabric.switches[0].ports[0].ref
    if clear and given:
        flag = f"--{next(iter(given))}"
        raise InputError(Problem("", f"--clear and {flag}", "exclude each other", f"./inv fault {example} --clear"))
    if both and not port:
        raise InputError(Problem("", "--both", "needs a port", f"./inv fault {example} --both --loss 1/256"))
    ports = port
    if both:  # the ports at the other ends of the links, too
        ends = (ref for each in impairments.ports_of(where.fabric, port) for ref in (each.ref, each.peer_ref))
        ports = list(dict.fromkeys(ends))
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
    state = state_of(where) if where.blueprint.rendered else State((), ())
    text = "\n\n".join([*([state.text()] if state.text() else []), faults_text(found, k, example)])
    document = {"lab": where.name, "k": k, "faults": [each.to_json() for each in found]}
    out.result({**document, "down": list(state.dead), "drained": list(state.drained)}, text)
