"""Commands of FRR for one of several switches that share daemons."""

from __future__ import annotations

import pytest

from heddle.runtimes.vrf import in_vrf, vtysh_in_vrf


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ("show bgp summary json", "show bgp vrf sw1 summary json"),
        ("do show ip bgp 10.0.1.0/24", "do show ip bgp vrf sw1 10.0.1.0/24"),
        ("clear bgp eth1", "clear bgp vrf sw1 eth1"),
        ("show ip route bgp", "show ip route vrf sw1 bgp"),
        ("show ipv6  route", "show ipv6 route vrf sw1"),
        ("show route-map", "show route-map"),
        ("show bgp vrf all summary", "show bgp vrf all summary"),
        ("router bgp 65001", "router bgp 65001 vrf sw1"),
        ("interface eth1", "interface eth1 vrf sw1"),
        ("neighbor eth1 shutdown", "neighbor eth1 shutdown"),
        ("show running-config", "show running-config"),
    ],
)
def test_a_command_gets_the_vrf_where_frr_reads_it(typed: str, sent: str) -> None:
    assert in_vrf(typed, "sw1") == sent


def test_only_commands_of_vtysh_are_changed() -> None:
    words = ["vtysh", "-d", "bgpd", "-c", "conf t", "-c", "router bgp 1"]
    assert vtysh_in_vrf(words, "sw1") == [*words[:-1], "router bgp 1 vrf sw1"]
    assert vtysh_in_vrf(["echo", "-c", "show bgp"], "sw1") == ["echo", "-c", "show bgp"]
