"""The daemons of FRR on a switch: end them, start them, stop them and let them continue; commands entered since `up`.

In:  a Lab and a switch. Each command is one shell in the node. MachineError when it fails. With `routing.daemons:
shared` they are the daemons of all switches of the group.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from heddle.base import state
from heddle.base.problems import InputError, MachineError, Problem
from heddle.base.tables import some_of
from heddle.fabric.model import Role
from heddle.fabric.wiring import Node
from heddle.lab.daemons import DAEMONS, ESTABLISHED
from heddle.lab.spread import spread, union
from heddle.runtimes.netns_topology import read_topology
from heddle.runtimes.vrf import in_vrf

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

STOP: Final = "STOP"
CONTINUE: Final = "CONT"
_END_S: Final = 30.0
_PAUSE_S: Final = 0.05
_ANNOUNCES: Final = re.compile("  network ").match
# Lines of `show running-config` that configure nothing.
_NO_LINES: Final = ("!", "end", "exit", "Building configuration", "Current configuration")
_LOADED: Final = "frr.json"  # in the lab's directory: what `configurations` returned when the lab had come up

# Whether a process is a daemon of the node that this runs in. A PID in a file may belong to another process by now, or
# to the daemon of another node. A container has its own PIDs, and may not read the namespace of another user's process
# (no CAP_SYS_PTRACE).
_OURS: Final = r"""
ours() {
  [ "$(cat "/proc/$2/comm" 2> /dev/null)" = "$1" ] || return 1
  space=$(readlink "/proc/$2/ns/net")
  [ -z "$space" ] || [ "$space" = "$(readlink /proc/self/ns/net)" ]
}
"""

# Ends the daemons. A stopped daemon reacts only to SIGKILL.
_END_DAEMONS: Final = r"""
for signal in TERM KILL; do
  tries=0
  while [ "$tries" -lt 30 ]; do
    left=
    for file in /run/frr/*.pid; do
      [ -e "$file" ] || continue
      daemon=$(basename "$file" .pid) pid=$(cat "$file")
      ours "$daemon" "$pid" || continue
      left=1
      [ "$tries" -gt 0 ] || kill "-$signal" "$pid"
    done
    [ -n "$left" ] || break 2
    tries=$((tries + 1))
    sleep 0.1
  done
done
rm -f /run/frr/*.pid
"""

# A daemon of FRR 10.3 may keep the output of its start script open; a pipe would never reach its end. The file is not
# in /run/frr, where user frr could place a link.
_START_DAEMONS: Final = r"""
said=$(mktemp)
trap 'rm -f "$said"' EXIT
"$0" "$@" < /dev/null > "$said" 2>&1 && exit 0
code=$?
cat "$said" >&2
exit $code
"""

# Sends a signal, if there is one, and prints each daemon with the state of its process (proc(5)).
_SIGNAL_DAEMONS: Final = r"""
for file in /run/frr/*.pid; do
  [ -e "$file" ] || continue
  daemon=$(basename "$file" .pid) pid=$(cat "$file")
  ours "$daemon" "$pid" || continue
  [ -z "$0" ] || kill "-$0" "$pid"
  echo "$daemon $(sed 's/.*) \(.\).*/\1/' "/proc/$pid/stat")"
done
"""


def end_daemons(lab: Lab, switch: str) -> None:
    """End all daemons of a switch, also stopped ones. MachineError for daemons that cannot be started again."""
    _start_of(lab, switch)
    _in_home(lab, switch, "sh", "-c", _OURS + _END_DAEMONS)


def start_daemons(lab: Lab, switch: str) -> None:
    """Start the daemons of a switch that do not run."""
    _in_home(lab, switch, "sh", "-c", _START_DAEMONS, *_start_of(lab, switch))


def restart_daemons(lab: Lab, switch: str) -> None:
    """End all daemons of a switch, also stopped ones, and start them. MachineError as `end_daemons`."""
    _in_home(lab, switch, "sh", "-c", _OURS + _END_DAEMONS + _START_DAEMONS, *_start_of(lab, switch))


def home_of(lab: Lab, switch: str) -> str:
    """The node that its daemons run in: the switch, or the one of its group (`frr1`)."""
    return read_topology(lab.topology).home(switch)


def switches_of(lab: Lab, home: str) -> Sequence[str]:
    """The switches whose daemons run in a node."""
    shared = read_topology(lab.topology).shared
    return shared[home].daemons_of if home in shared else (home,)


def check_own(lab: Lab, switch: str, fault: str) -> None:
    """InputError for a switch that shares its daemons: a fault of these would be one of all switches of the group."""
    if (home := home_of(lab, switch)) != switch:
        others = some_of([each for each in switches_of(lab, home) if each != switch])
        why = f"is not possible: its daemons are those of {others}, too (routing.daemons: shared, {home})"
        hint = "use ./inv fault down for its links, or bring the lab up with --set routing.daemons=own"
        raise InputError(Problem(switch, fault, why, hint))


def _in_home(lab: Lab, switch: str, *words: str) -> str:
    return lab.runtime.output(lab.name, lab.topology, home_of(lab, switch), words, 2 * _END_S)


def _start_of(lab: Lab, switch: str) -> Sequence[str]:
    """The command that starts the daemons."""
    start = read_topology(lab.topology).spaces[home_of(lab, switch)].start[:2]
    if not start:
        hint = f"./inv down {lab.name}, then up again"
        raise MachineError(Problem(switch, "FRR", "is not started by Heddle, but by its image", hint))
    return start


def on_daemons(lab: Lab, switch: str, signal: str = "") -> dict[str, str]:
    """Send a signal to all daemons of a switch; returns daemon -> state of its process: `S`, `T` if it is stopped."""
    lines = _in_home(lab, switch, "sh", "-c", _OURS + _SIGNAL_DAEMONS, signal).splitlines()
    return dict(line.split(maxsplit=1) for line in lines)


def announce(lab: Lab, timeout: float) -> None:
    """Let daemons that `up` has just started for several switches announce their networks, once all sessions are up.

    Routes then come from all neighbours at once, and each is installed once. While sessions come up one by one, each
    switch sends all it has to each new neighbour, and a route is installed again for each of its next hops.
    timeout: seconds to wait for sessions without any change, and for a bgpd that is too busy to answer.
    """
    groups = read_topology(lab.topology).shared.values()
    held = [each for each in groups if not any(map(_ANNOUNCES, _running(lab, each.daemons_of[0])))]
    pending = [name for each in held for name in each.daemons_of]
    seen, moved = (0, 0), time.monotonic()
    while pending and time.monotonic() - moved < timeout:
        states = [*(lab.daemons.sessions(pending[0]) or {"": ""}).values()]
        if (now := (len(pending), states.count(ESTABLISHED))) != seen:
            seen, moved = now, time.monotonic()
        if now[1] == len(states):
            pending.pop(0)
        else:
            time.sleep(_PAUSE_S)
    late, moved = [each.daemons_of for each in held], time.monotonic()
    while late and time.monotonic() - moved < timeout:
        if len(still := [names for names in late if not _entered(lab, names)]) < len(late):
            moved = time.monotonic()
        late = still


def _entered(lab: Lab, switches: Sequence[str]) -> bool:
    """Enter the networks of switches that share a bgpd; False if it was too busy to answer: they may be entered again.

    A bgpd that has ended is reported by the wait for routes.
    """
    lines = [line for name in switches for line in _networks(lab, lab.fabric.by_name[name])]
    try:
        lab.daemons.answer(switches[0], "bgpd", "enable", "configure terminal", *lines)
    except (TimeoutError, BlockingIOError):
        return False
    except (OSError, MachineError):
        return True
    return True


def _networks(lab: Lab, node: Node) -> list[str]:
    family = lab.fabric.policy.ip
    some = [f"{node.loopback}/{family.bits}", *([str(node.prefix)] if node.prefix is not None else [])]
    router = in_vrf(f"router bgp {node.asn}", node.name)
    return [router, f"address-family {family.word} unicast", *(f"network {each}" for each in some)]


def _running(lab: Lab, switch: str) -> Sequence[str]:
    """The running configuration of a bgpd."""
    try:
        return lab.daemons.answer(switch, "bgpd", "enable", "show running-config").splitlines()
    except (OSError, MachineError):
        return ()


@spread(union)
def configurations(lab: Lab) -> dict[str, list[str]]:
    """Node that runs daemons -> the lines of their running configurations. One that does not answer is absent."""
    found: dict[str, list[str]] = {}
    for node in (each for each in lab.own_nodes if each.role is not Role.HOST):
        if (home := home_of(lab, node.name)) in found:
            continue
        with suppress(OSError, MachineError):
            texts = [lab.daemons.answer(node.name, each, "enable", "show running-config") for each in DAEMONS]
            found[home] = [line for text in texts for line in flat_lines(text)]
    return found


def flat_lines(text: str) -> Iterator[str]:
    """The lines of a configuration, each after the blocks that it is in: `router bgp 65001 / timers bgp 1 3`."""
    blocks = list[str]()
    for line in text.splitlines():
        word = line.strip()
        if word and not word.startswith(_NO_LINES):
            blocks = [*blocks[: len(line) - len(line.lstrip())], word]
            yield " / ".join(blocks)


def record_loaded(lab: Lab) -> None:
    """Record the configurations of a lab that has just come up. FRR writes other lines than the files that it reads."""
    state.write_file(lab.dir / _LOADED, json.dumps(configurations(lab)))


def entered(lab: Lab) -> dict[str, list[str]]:
    """Node that runs daemons -> lines that came since they were loaded; then `no` and those that have gone.

    A lab without that record has none.
    """
    try:
        read: Any = json.loads((lab.dir / _LOADED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    loaded, found = read if isinstance(read, dict) else {}, dict[str, list[str]]()
    for switch, now in configurations(lab).items():
        if isinstance(before := loaded.get(switch), list):
            more = [line for line in now if line not in before]
            found[switch] = more + [f"no {line}" for line in before if line not in now]
    return {switch: lines for switch, lines in found.items() if lines}


def reload_rendered(lab: Lab, switch: str) -> None:
    """Start FRR of a switch again with its rendered configuration, also where FRR has written another one since."""
    from heddle.render.render import rendered

    file = lab.topology.parent / home_of(lab, switch) / "frr.conf"
    right = rendered(lab.fabric)[f"{file.parent.name}/{file.name}"]
    if lab.runtime.here and file.read_text(encoding="utf-8") != right:
        file.write_text(right, encoding="utf-8")  # in place: the node has this file bound
    restart_daemons(lab, switch)
