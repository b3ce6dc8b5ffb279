"""The verb `fault`: faults on purpose of links, switches, hosts and sessions; which there are, and their end."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from keyword import iskeyword
from typing import TYPE_CHECKING, Final

from heddle.base.plugins import missing
from heddle.base.problems import InputError, Problem, nearest
from heddle.base.tables import some_of
from heddle.cli import completion
from heddle.cli.argv import Option, Options, Tool
from heddle.cli.console import Console
from heddle.cli.helptexts import EXAMPLE_PORT, EXAMPLE_SWITCH
from heddle.cli.verbs import verb
from heddle.spec.faultsettings import SETTINGS
from heddle.spec.impairments import DRAIN, KINDS, OUTAGES, PACKETS, read_fault

if TYPE_CHECKING:
    from heddle.lab.faults.kind import NamedFault
    from heddle.lab.lab import Lab

LIST, CLEAR = "list", "clear"
_HELP: Final[Options] = {
    "action": Option(
        "the kind of fault (docs/fault-kinds.md); up and undrain end down and drain; list; clear; none: "
        "faults of packets",
        completion.fault_words,
    ),
    "port": Option(
        f"where: ports ({EXAMPLE_PORT}, a node for all its ports, a pattern in quotes; several with commas), switches "
        "or hosts",
        completion.ports_or_switches,
    ),
    "timeout": "seconds to wait for the effect and for routes (default: 60)",
    **{key: each.help for key, each in SETTINGS.items()},
    **{key: kind.help for key, kind in KINDS.items()},
    "both": "set or clear it in both directions of the links",
    "clear": "clear the faults of ports, or all that no run has set",
}


def _with_kinds(function: Callable[..., None]) -> Callable[..., None]:
    """Give the verb a flag for each setting of a fault, in the place of `**typed`."""
    signature = inspect.signature(function)
    keys = [f"{key}_" if iskeyword(key) else key for key in (*SETTINGS, *KINDS)]
    kinds = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str") for key in keys]
    own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()]
    at = 1 + [each.name for each in own].index("port")
    found = [own[0].replace(kind=inspect.Parameter.POSITIONAL_ONLY), *own[1:at], *kinds, *own[at:-1]]
    function.__signature__ = signature.replace(parameters=found)  # type: ignore[attr-defined]
    return function


@verb(
    group="Traffic",
    help=_HELP,
    positional=["action", "port"],
    root=True,
    tool=Tool(
        "Set a fault on purpose in a lab, and return the evidence of its effect and the command that ends it; "
        "`list` shows what is set, `clear` ends the faults of a place, or all.",
        without=("timeout", "clear"),
        changes=True,
    ),
)
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
    """Set a fault on purpose; list or clear what is set.

    ./inv fault KIND WHERE sets one: down, drain, bgp-down, slow-link, ...; docs/fault-kinds.md lists all kinds.
    Each is verified by its effect before the command returns. Otherwise it is undone, and the exit code is 1.
    ./inv fault list shows what is set, ./inv fault clear [WHERE] ends it. up and undrain end down and drain.
    ./inv fault rtsw1:eth1 --loss 1/256 lets a link lose, corrupt, duplicate, delay or reorder packets. This concerns
    packets that leave by the port, after its queue: shaping, ECN marks, PFC and counters stay exact. Setting a fault
    replaces the port's earlier one. Delay, jitter and reordering need a kernel with netem.
    """
    from heddle.lab.faults.registry import KINDS as NAMED
    from heddle.lab.opening import open_lab

    given = {key.rstrip("_"): value for key, value in typed.items() if value is not None}
    flags = [*(f"--{key}" for key in given), *["--both"] * both, *["--clear"] * clear]
    named = [name for name in NAMED if name not in (*OUTAGES, PACKETS)]
    if action in named and action is not None and not clear:
        return _named(out, open_lab(lab), NAMED[action], port, given, both=both, timeout=timeout)
    if action in (LIST, CLEAR) and action is not None:
        if flags or (action == LIST and port):
            what = f"{action} and {[*flags, *port][0]}"
            raise InputError(Problem("", what, "exclude each other", f"write ./inv fault {action}"))
        if action == CLEAR:
            return _clear(out, open_lab(lab), port, timeout)
        return _impair(out, open_lab(lab), (), {}, both=False, clear=False)
    if action in KINDS and action is not None:
        own = "rate" if KINDS[action].unit == "share" else action
        if action not in given and own not in given:
            hint = f"add --{own} {'1/256' if own == 'rate' else '10us'}"
            raise InputError(Problem("", f"fault {action}", f"needs --{own}", hint))
        given.setdefault(action, given.pop("rate", ""))
        action, port = (port[0] if port else None), port[1:]
    legal = [*OUTAGES, *named, *KINDS, LIST, CLEAR]
    if "rate" in given or set(given) - set(KINDS):
        _check_kind(action, port, legal, a_word=False)
        flag = next(key for key in given if key not in KINDS)
        hint = f"write ./inv fault KIND WHERE --{flag} {SETTINGS[flag].example}"
        raise InputError(Problem("", f"--{flag}", "is for a kind of fault", hint))
    if action is not None and (problem := missing("fault", action)) is not None:
        raise InputError(problem)
    if action is None or action not in OUTAGES:
        ports = [action, *port] if action is not None else []
        where = open_lab(lab)
        if action not in where.fabric.by_name:
            _check_kind(action, port, legal, a_word=not flags)
        return _impair(out, where, ports, given, both=both, clear=clear)
    if flags:
        why = "exclude each other"
        raise InputError(Problem("", f"{action} and {flags[0]}", why, f"use two commands: ./inv fault {action} ..."))
    if not port:
        what = EXAMPLE_SWITCH if DRAIN in action else EXAMPLE_PORT
        raise InputError(Problem("", f"fault {action}", "needs a name", f"./inv fault {action} {what}"))
    return _outage(out, open_lab(lab), action, port, _seconds(timeout))


def _check_kind(action: str | None, port: Sequence[str], legal: Sequence[str], *, a_word: bool) -> None:
    """InputError for a mistyped kind before a place. a_word: also for a word that is like none."""
    if action is None or not port or action in legal:
        return
    near = nearest(action, legal)
    if near or (a_word and action.isalpha()):
        hint = f"did you mean ./inv fault {near} {' '.join(port)}?" if near else f"allowed: {', '.join(legal)}"
        raise InputError(Problem("", f"fault {action}", "is not a kind of fault", hint))


def _seconds(timeout: float | None) -> float:
    from heddle.lab.linkstate import SECONDS

    if timeout is not None and timeout <= 0:
        hint = "use a positive number of seconds, for example --timeout 60"
        raise InputError(Problem("", f"--timeout {timeout:g}", "leaves no time to converge", hint))
    return SECONDS if timeout is None else timeout


def _named(
    out: Console, where: Lab, kind: NamedFault, words: Sequence[str], given: Mapping[str, str], *,
    both: bool, timeout: float | None,
) -> None:  # fmt: skip
    """Set a fault of a kind, and show the evidence of its effect."""
    from heddle.lab.faults import orders
    from heddle.lab.faults.kind import undo_of

    example = {"switch": EXAMPLE_SWITCH, "node": EXAMPLE_SWITCH, "host": "host1"}.get(kind.at, EXAMPLE_PORT)
    if not words:
        raise InputError(Problem("", f"fault {kind.name}", "needs a name", f"./inv fault {kind.name} {example}"))
    if both and kind.at != "port":
        why = f"is not for {kind.name}, which concerns a {kind.at}"
        raise InputError(Problem("", "--both", why, f"./inv fault {kind.name} {example}"))
    places = kind.places(where.fabric, words)
    if both:
        places = _both_ends(where, places)
    began = time.monotonic()
    done = orders.set_kind(where, kind.name, places, kind.read(given, lambda key: f"--{key} "), _seconds(timeout))
    seconds = time.monotonic() - began
    rows = [
        {"kind": each.kind, "where": each.where, "what": orders.text_of(where, each), "effect": evidence,
         "undo": undo_of(where.name, each)}
        for each, evidence in done
    ]  # fmt: skip
    lines = [f"{row['where']}: {row['what']}: {row['effect']}" for row in rows]
    undo = f"{rows[0]['undo']} ends it" if len(rows) == 1 else f"./inv fault clear --lab {where.name} ends all faults"
    document = {"lab": where.name, "action": kind.name, "seconds": round(seconds, 3), "set": rows}
    out.result(document, "\n".join([*lines, f"verified in {seconds:.1f} s; {undo}"]))


def _both_ends(where: Lab, refs: Sequence[str]) -> list[str]:
    """The ports, each followed by that at the other end of its link."""
    nodes, ends = where.fabric.by_name, (each.partition(":") for each in refs)
    return list(dict.fromkeys(ref for n, _, p in ends for ref in (f"{n}:{p}", nodes[n].port(p).peer_ref)))


def _clear(out: Console, where: Lab, words: Sequence[str], timeout: float | None) -> None:
    from heddle.lab.faults import orders

    done = orders.clear(where, words, _seconds(timeout))
    text = "\n".join([*(f"ended: {each}" for each in done), *([] if done else ["no fault was set there"])])
    out.result({"lab": where.name, "action": CLEAR, "ended": done}, text)


def _outage(out: Console, where: Lab, action: str, names: Sequence[str], timeout: float) -> None:
    """Take links down or up, drain or undrain switches, and wait for the effect."""
    from heddle.lab import outages
    from heddle.lab.faults.registry import KINDS as NAMED
    from heddle.lab.linkstate import state_of
    from heddle.lab.ports import ports_of

    began, fabric = time.monotonic(), where.fabric
    does = {"down": outages.link_down, "up": outages.link_up, "drain": outages.drain, "undrain": outages.undrain}
    drains = DRAIN in action
    found = NAMED[DRAIN].places(fabric, names) if drains else [each.ref for each in ports_of(fabric, names)]
    does[action](where, *found, timeout=timeout)
    seconds = time.monotonic() - began
    state = state_of(where)
    document = {"lab": where.name, "action": action, "names": found, "seconds": round(seconds, 3)}
    are = "is" if len(found) == 1 else "are"
    who = "BGP and all kernels" if fabric.policy.routing.by_bgp else "all kernels"
    text = f"{some_of(found)} {are} {OUTAGES[action]}; {who} followed in {seconds:.1f} s"
    rest = f"now: {state.text() or 'no link is down, and no switch is drained'}"
    if action in NAMED:
        rest += f"\n./inv fault clear {','.join(names)} --lab {where.name} ends it"
    out.result({**document, "down": list(state.dead), "drained": list(state.drained)}, f"{text}\n{rest}")


def _impair(
    out: Console, where: Lab, port: Sequence[str], given: Mapping[str, str], *, both: bool, clear: bool
) -> None:
    """Set, clear or list what links do to packets."""
    from heddle.lab import outages
    from heddle.lab.faults import orders, packets
    from heddle.lab.linkstate import State, state_of
    from heddle.lab.ports import ports_of
    from heddle.views.labtext import faults_text

    example = where.fabric.switches[0].ports[0].ref
    if clear and given:
        flag = f"--{next(iter(given))}"
        raise InputError(Problem("", f"--clear and {flag}", "exclude each other", f"./inv fault {example} --clear"))
    if both and not port:
        raise InputError(Problem("", "--both", "needs a port", f"./inv fault {example} --both --loss 1/256"))
    ports = port
    if both:  # the ports at the other ends of the links, too
        ports = _both_ends(where, [each.ref for each in ports_of(where.fabric, port)])
    if clear:
        changed = outages.clear_faults(where, ports)
        out.say(f"cleared the faults of {len(changed)} port{'' if len(changed) == 1 else 's'}")
    elif given:
        if not port:
            hint = f"./inv fault {example} --loss 1/256"
            raise InputError(Problem("", f"--{next(iter(given))}", "needs a port", hint))
        wanted = read_fault(given, f"./inv fault {example} --clear", lambda key, text: ("", f"--{key} {text}"))
        outages.set_fault(where, ports, wanted)
        out.say(f"./inv fault clear {','.join(ports)} --lab {where.name} ends it")
    found = packets.read_faults(where)
    if port and not clear:
        named = {each.ref for each in ports_of(where.fabric, ports)}
        found = [each for each in found if each.port in named]
    k = where.fabric.policy.k
    state = state_of(where) if where.blueprint.rendered else State((), ())
    rows = [row for row in orders.fault_rows(where) if not port or row["where"] in ports]
    lines = [f"{row['where']}: {row['what']}: {row['effect'] or 'no effect is seen now'}" for row in rows]
    above = [part for part in (state.text(), "\n".join(lines)) if part]
    text = "\n\n".join([*above, faults_text(found, k, example)])
    document = {"lab": where.name, "k": k, "set": rows, "faults": [each.to_json() for each in found]}
    out.result({**document, "down": list(state.dead), "drained": list(state.drained)}, text)
