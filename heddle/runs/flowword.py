"""Parse a flow: a QP number of a run, or `host1,host5,qpn=0x101,sport=50000`.

In:  a lab, the word, and which run. Out: a Flow; InputError with the reason and valid forms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import Port
from heddle.traffic.flow import Flow
from heddle.wire.layout import ROCE_PORT

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_LIMITS: Final = {"qpn": (1 << 24) - 1, "sport": (1 << 16) - 1}
_DEFAULTS: Final = {"qpn": 0x100, "sport": 0xC000}
_HINT: Final = "a QP number of the run, or host1,host5,qpn=0x101,sport=50000"


def flow_of(lab: Lab, word: str, run: str | None = None) -> Flow:
    """The flow that a word names. run: where a QP number is looked up; None is the last run."""
    if "," not in word:
        return _of_run(lab, word, _number(word, word, "qpn"), run)
    if run is not None:
        why = f"cannot be combined with {word}, which is not a QP number of a run"
        raise InputError(Problem("", f"--run {run}", why, "name a QP number of that run, or leave --run out"))
    return made_up(lab.fabric, word)


def made_up(fabric: Fabric, word: str) -> Flow:
    """Parse `SRC,DST[,qpn=N][,sport=N]`: hosts, or their ports (host1:eth2). Defaults: QP 0x100, port 49152."""
    names = [part.strip() for part in word.split(",") if "=" not in part and part.strip()]
    values = dict(_DEFAULTS)
    for key, _, text in (part.partition("=") for part in word.split(",") if "=" in part):
        if key not in values:
            raise InputError(Problem("", f"--explain {word}", f"has {key!r}, which is no key", "use qpn or sport"))
        values[key] = _number(word, text, key)
    if len(names) != 2:
        raise InputError(Problem("", f"--explain {word}", f"names {len(names)} ends of a flow, not two", _HINT))
    (src, src_ip), (dst, dst_ip) = (nic_named(fabric, f"--explain {word}", name) for name in names)
    if src.ref == dst.ref:
        raise InputError(Problem("", f"--explain {word}", "has the same NIC at both ends", _HINT))
    return Flow(
        src.node, dst.node, src_ip, dst_ip,
        sport=values["sport"], qpn=values["qpn"], first_hop=src.peer_ref, dport=ROCE_PORT,
    )  # fmt: skip


def nic_named(fabric: Fabric, typed: str, name: str) -> tuple[Port, str]:
    """A host's NIC, the first when none is named, and its address. typed: for the InputError when there is none."""
    host, _, port = name.partition(":")
    node = fabric.by_name.get(host)
    if node is None or node.role is Role.SWITCH:
        hint = did_you_mean(host, [each.name for each in fabric.hosts])
        raise InputError(Problem("", typed, f"names {host}, which is not a host of this lab", hint))
    nics = fabric.nics_of[host]
    ports = [(each, str(each.address.ip)) for each in nics if each.address and port in ("", each.name)]
    if not ports:
        why = f"names {name}, which is not a port with an address"
        raise InputError(Problem("", typed, why, f"{host} has {', '.join(p.name for p in nics)}"))
    return ports[0]


def _number(word: str, text: str, key: str) -> int:
    try:
        number = int(text, 0)
    except ValueError:
        raise InputError(Problem("", f"--explain {word}", f"has {text!r}, which is no number", _HINT)) from None
    if not 0 <= number <= _LIMITS[key]:
        why = f"has {text}, and a {'QP number' if key == 'qpn' else 'UDP port'} is 0 to {_LIMITS[key]}"
        raise InputError(Problem("", f"--explain {word}", why))
    return number


def _of_run(lab: Lab, word: str, qpn: int, run: str | None) -> Flow:
    from heddle.runs.store import load

    stored = load(lab, run)
    flows = [sent.flow for sent in stored.evidence.sent if sent.flow.has_qp]
    found = [flow for flow in flows if flow.qpn == qpn]
    if len(found) == 1:
        return found[0]
    if not found:
        some = ", ".join(str(flow.qpn) for flow in flows[:4]) or "none"
        hint = f"it had {some}{', ...' if len(flows) > 4 else ''}; or {_HINT.partition(', or ')[2]}"
        raise InputError(Problem("", f"--explain {word}", f"is no QP number of run {stored.id}", hint))
    hint = "; or ".join(f"{f.src},{f.dst},qpn={f.qpn},sport={f.sport}" for f in found[:4])
    raise InputError(Problem("", f"--explain {word}", f"is a QP number of {len(found)} hosts", hint))
