"""The queues that our netlink messages make are those that tc makes from the same lines."""

from __future__ import annotations

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


def state(netlink: nl.RouteSocket, ifindex: int) -> list[tuple[object, ...]]:
    """Handles, kinds and options of all qdiscs and classes of a port, without counters and handles of no one."""
    rows: list[tuple[object, ...]] = [
        (each.handle, each.parent, each.kind, each.attrs.get(uapi.TCA_OPTIONS))
        for each in nl.qdiscs(netlink)
        if each.ifindex == ifindex
    ]
    for body in netlink.dump(nl.RTM_GETTCLASS, uapi.TCMSG.pack(0, ifindex, 0, 0, 0)):
        _, _, handle, parent, leaf = uapi.TCMSG.unpack_from(body)
        rows.append((handle, parent, leaf, nl.attributes(body, uapi.TCMSG.size).get(uapi.TCA_OPTIONS)))
    return rows


@pytest.mark.parametrize("name", ["htb", pytest.param("ets", marks=pytest.mark.skipif(bool(ets_missing()), reason=""))])
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
        assert state(netlink, indexes["y"]) == state(netlink, indexes["x"]) != []
        netlink.change_all(made[:2], lambda number, _: wrong.append(number))
        assert wrong == [0, 1]
