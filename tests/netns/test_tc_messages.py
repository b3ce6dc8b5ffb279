"""The queues that our netlink messages make are those that tc makes from the same lines.

Releases of tc round the time of a burst differently, by less than a microsecond: 4,202 bytes at 1.25 MB/s are 52,515
ticks of 64 ns in an older one, and 52,526 in a newer one.
"""

from __future__ import annotations

import sys

import pytest

from heddle.base.process import run
from heddle.base.units import parse_rate
from heddle.fabric.wiring import Port
from heddle.kernel import netlink as nl
from heddle.kernel import uapi
from heddle.kernel.fib import read_names
from heddle.kernel.namespace import THIS_NAMESPACE, nameless
from heddle.spec.queuepolicy import QueuePolicy
from heddle.switch.queues.portqueues import DISCIPLINES, ets_missing
from heddle.switch.queues.tcmessages import message

POLICIES = {"htb": QueuePolicy(weights={3: 4}), "ets": QueuePolicy(lossless=(), weights={1: 3})}


TICKS_A_US = 16
# Where struct tc_tbf_qopt and struct tc_htb_opt have times of bursts, behind the header of an attribute.
TIMES = {"tbf": (32,), "class": (28, 32)}
Row = tuple[object, ...]


def state(netlink: nl.RouteSocket, ifindex: int) -> tuple[list[Row], list[int]]:
    """Handles, kinds and options of all qdiscs and classes of a port, without counters; times of bursts in ticks."""
    rows, ticks = list[Row](), list[int]()

    def options(kind: str, data: bytes) -> bytes:
        for at in TIMES.get(kind, ()):
            ticks.append(int.from_bytes(data[at : at + 4], sys.byteorder))
            data = data[:at] + bytes(4) + data[at + 4 :]
        return data

    for each in nl.qdiscs(netlink):
        if each.ifindex == ifindex:
            data = options(each.kind, each.attrs.get(uapi.TCA_OPTIONS, b""))
            rows.append((each.handle, each.parent, each.kind, data))
    for body in netlink.dump(nl.RTM_GETTCLASS, uapi.TCMSG.pack(0, ifindex, 0, 0, 0)):
        _, _, handle, parent, leaf = uapi.TCMSG.unpack_from(body)
        attrs = nl.attributes(body, uapi.TCMSG.size)
        kind = "class" if attrs[uapi.TCA_KIND] == b"htb\0" else ""
        rows.append((handle, parent, leaf, options(kind, attrs.get(uapi.TCA_OPTIONS, b""))))
    return rows, ticks


@pytest.mark.parametrize(
    "name", ["htb", pytest.param("ets", marks=pytest.mark.skipif(bool(ets_missing()), reason=ets_missing()))]
)
@pytest.mark.parametrize("rate", ["10mbit", "333333333bit", "100gbit"])
def test_queues_by_messages_equal_those_by_tc(name: str, rate: str) -> None:
    with nameless(), nl.RouteSocket(THIS_NAMESPACE, here=True) as netlink:
        run(["ip", "link", "add", "x", "type", "veth", "peer", "name", "y"])
        indexes = {port: index for index, port in read_names(netlink).items()}
        lines = {
            port: DISCIPLINES[name].lines(Port("a", port, "", "b", "p", parse_rate(rate), 4200), POLICIES[name])
            for port in ("x", "y")
        }
        run(["tc", "-batch", "-"], stdin="\n".join(lines["x"]) + "\n")
        wrong: list[int] = []
        made = [message(line, indexes, hash) for line in lines["y"]]
        netlink.change_all(made, lambda number, _: wrong.append(number))
        assert not wrong
        (ours, own), (theirs, wanted) = (state(netlink, indexes[port]) for port in ("y", "x"))
        assert ours == theirs != []
        assert len(own) == len(wanted) and all(abs(a - b) < TICKS_A_US for a, b in zip(own, wanted, strict=True))
        assert name == "ets" or min(own) >= 0 < max(own)
        netlink.change_all(made[:2], lambda number, _: wrong.append(number))
        assert wrong == [0, 1]
