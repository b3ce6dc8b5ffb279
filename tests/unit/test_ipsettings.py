"""Addresses, rules and routes have one spelling, whether a command sets them or the kernel reports them."""

from __future__ import annotations

import pytest

from heddle.base.process import run
from heddle.kernel.fib import read_names
from heddle.kernel.ipsettings import commanded, ip_settings
from heddle.kernel.namespace import THIS_NAMESPACE, nameless
from heddle.kernel.netlink import RouteSocket
from tests.answers import Answers

COMMANDS = (
    "ip addr add 10.0.0.1/31 dev eth1",
    "ip addr add 10.0.0.5/31 dev eth2",
    "ip addr add fd00:1::1/64 dev eth1",
    "ip route add 10.0.0.0/8 nexthop via 10.0.0.0 dev eth1 nexthop via 10.0.0.4 dev eth2",
    "ip -6 route add fd00::/16 via fd00:1::2 dev eth1",
    "ip route add 10.0.0.0/8 via 10.0.0.4 dev eth2 table 102",
    "ip rule add from 10.0.0.1 table 101",
    "ip rule add from 10.0.0.5 table 102",
    "sh /etc/frr/start.sh",
)
USUAL = {f"rule pref {pref} from all table {table}" for pref, table in ((0, 255), (32766, 254), (32767, 253))}


def test_commands_become_lines(answers: Answers) -> None:
    found = commanded(COMMANDS)
    assert {line for line in found if "from all" in line and not line.startswith("-6")} == USUAL
    answers({"lines": "\n".join(sorted(line for line in found if "from all" not in line))})


@pytest.mark.root
def test_the_kernel_reports_the_same_lines_and_what_was_added() -> None:
    """Without loopback, link-local and the kernel's own routes."""
    made = [
        "ip link set lo up",
        "ip link add eth1 type veth peer name eth2",
        "ip link set eth1 up",
        "ip link set eth2 up",
    ]
    added = ["ip rule add pref 7 from 10.0.0.0/8 iif eth1 blackhole", "ip route add blackhole 10.9.0.0/16"]
    with nameless():
        for line in (*made, *COMMANDS[:-1], *added):
            run(line.split())
        with RouteSocket(THIS_NAMESPACE, here=True) as netlink:
            found = ip_settings(netlink, read_names(netlink), 0)
    assert found - commanded(COMMANDS) == {
        "rule pref 7 from 10.0.0.0/8 iif eth1 blackhole",
        "route blackhole 10.9.0.0/16",
    }
    assert {line for line in commanded(COMMANDS) - found if not line.startswith("-6 rule")} == set()
