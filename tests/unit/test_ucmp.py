"""Unequal-cost multipath: what BGP says of a link, what weights FRR makes of it, and where which number counts."""

from __future__ import annotations

from typing import Any

import pytest

from heddle.fabric.model import Fabric
from heddle.fabric.nexthops import Group, edges_of
from heddle.fabric.shapes import build
from heddle.fabric.ucmp import announcements, expected_weights, weights_of
from heddle.render.render import rendered
from heddle.spec.shapes.clos import ClosSpec
from tests.answers import Answers


def fabric_of(exceptions: dict[str, str] | None = None, **keys: Any) -> Fabric:
    link = {"host": "100mbit", "fabric": "100mbit", "exceptions": exceptions or {}}
    data = {"name": "t", "racks": 3, "ctsw": 4, "link": link, "routing": {"ucmp": True}, **keys}
    return build(ClosSpec.model_validate(data))


def bandwidths(fabric: Fabric, switch: str, rack: int, dead: tuple[str, ...] = ()) -> tuple[int, ...]:
    groups = fabric.groups_without(dead)[switch]
    return next(group.bandwidths for group in groups if rack in edges_of(group.edges))


THREE: dict[str, Any] = {"zones": 2, "racks": 2, "ctsw": 3, "atsw": 2}


def test_bandwidths_follow_the_narrow_links_at_both_ends() -> None:
    assert bandwidths(fabric_of(), "rtsw1", 2) == (100, 100, 100, 100)
    fabric = fabric_of(**THREE)
    assert bandwidths(fabric, "rtsw1", 2) == (100, 100, 100)
    assert bandwidths(fabric, "rtsw1", 3) == (600, 600, 600), "what two ATSWs and three CTSWs carry"
    assert bandwidths(fabric, "ctsw1", 3) == (300, 300)
    # A narrow link counts at both ends and once.
    fabric = fabric_of({"ctsw2": "50mbit", "rtsw1:eth3": "10mbit"})
    assert bandwidths(fabric, "rtsw1", 2) == (100, 50, 10, 100), "its own links"
    assert bandwidths(fabric, "rtsw2", 1) == (100, 50, 10, 100), "those of the rack that it sends to"
    assert bandwidths(fabric, "rtsw2", 3) == (100, 50, 100, 100)
    # A wide link counts no more than the links behind it.
    fabric = fabric_of({"rtsw1:eth1": "400mbit", "ctsw4": "200mbit"})
    assert bandwidths(fabric, "rtsw1", 2) == (100, 100, 100, 200)
    assert bandwidths(fabric, "rtsw2", 1) == (100, 100, 100, 200)
    # A narrow path into a zone is known at distant switches.
    fabric = fabric_of({"ctsw1:eth3": "50mbit"}, **THREE)
    assert bandwidths(fabric, "atsw1", 1) == (50, 100, 100)
    assert bandwidths(fabric, "ctsw4", 1) == (250, 300)
    assert bandwidths(fabric, "ctsw1", 3) == (150, 300), "and the other way half of what the ATSW can carry"
    assert bandwidths(fabric, "rtsw1", 3) == (450, 600, 600)
    # The remaining bandwidth of a zone is advertised after a link failure.
    fabric = fabric_of(**THREE)
    assert bandwidths(fabric, "ctsw4", 1, dead=("ctsw1:eth3",)) == (200, 300)
    assert bandwidths(fabric, "rtsw3", 1, dead=("ctsw1:eth3",)) == (500, 500, 500)


def test_weights_are_those_that_each_release_makes(answers: Answers) -> None:
    answers(lambda release: weights_of((100, 50, 10, 100), tuple(release)))


def test_weights_are_equal_or_one_at_least_and_in_lowest_terms_without_a_release() -> None:
    found = [weights_of((100, 100), release) for release in ((8, 4), (10, 0), (10, 3), (10, 5))]
    assert found == [(50, 50), (255, 255), (254, 254), (255, 255)]
    # No weight is zero and a single next hop has none.
    assert weights_of((1000, 1), (8, 4)) == (99, 1)
    assert weights_of((1000, 1), (10, 3)) == (254, 1)
    assert weights_of((7,), (8, 4)) == (1,)
    assert weights_of((), (8, 4)) == ()
    # Weights without a release are bandwidths in lowest terms.
    assert expected_weights(Group(("eth1", "eth2", "eth3", "eth4"), 1, (100, 50, 10, 100))) == (10, 5, 1, 10)
    assert expected_weights(Group(("eth1", "eth2"), 1), (8, 4)) == (1, 1)


def test_only_what_no_sum_says_is_configured() -> None:
    fabric = fabric_of({"rtsw1:eth3": "10mbit"})
    said = announcements(fabric)
    assert {ref for ref in said if not ref.startswith("rtsw")} == {"ctsw3:eth1"}
    (rule,) = said["ctsw3:eth1"]
    assert (set(edges_of(rule.edges)), rule.mbit) == ({2, 3}, 10)
    config = rendered(fabric)["ctsw3/frr.conf"]
    assert "neighbor eth1 route-map eth1 out" in config
    assert "ip prefix-list eth1-10 permit 10.0.1.0/24\nip prefix-list eth1-10 permit 10.0.2.0/24\n" in config
    assert " set extcommunity bandwidth 10\n" in config
    assert "route-map" not in rendered(fabric)["ctsw1/frr.conf"]
    assert " set extcommunity bandwidth 100\n" in rendered(fabric)["rtsw2/frr.conf"]
    assert r"start zebra 'router bgp\|route-map\|" in rendered(fabric)["ctsw1/start.sh"], "only bgpd knows bandwidths"


def test_without_ucmp_nothing_of_it_is_rendered_and_ipv6_matches_its_own_prefixes() -> None:
    files = rendered(fabric_of({"ctsw2": "50mbit"}, routing={}))
    assert not any("route-map" in text for name, text in files.items() if name.endswith("frr.conf"))
    # Ipv6 fabrics match their own prefixes.
    config = rendered(fabric_of(family="ipv6"))["rtsw1/frr.conf"]
    assert " match ipv6 address prefix-list eth1-100\n" in config
    assert "\nipv6 prefix-list eth1-100 permit fd00:" in config


@pytest.mark.parametrize("rate", ["10gbit", "12500kbit"])
def test_rates_beyond_what_bgp_can_say_keep_their_proportions(rate: str) -> None:
    half = {"10gbit": "5gbit", "12500kbit": "6250kbit"}[rate]
    link = {"fabric": rate, "exceptions": {"ctsw1": half}}
    fabric = fabric_of(link=link, **THREE)
    for groups in fabric.next_hop_groups.values():
        assert all(each <= 25_600 for group in groups for each in group.bandwidths)
    one, two, three = bandwidths(fabric, "rtsw1", 2)
    assert two == three
    assert one / two == pytest.approx(0.5, abs=1e-3)
    assert all(1 <= rule.mbit <= 25_600 for rules in announcements(fabric).values() for rule in rules)


def test_the_sums_of_the_widest_fabric_fit_into_what_bgp_can_announce() -> None:
    link = {"fabric": "100mbit", "exceptions": {"ctsw2": "50mbit", "rtsw1:eth3": "10mbit"}}
    fabric = fabric_of(link=link, zones=2, racks=3, ctsw=18, atsw=18)
    groups = fabric.groups_without()
    # 79 for 100 Mbit/s, so that 18 times 18 of them can still be said.
    assert {group.bandwidths[:3] for group in groups["rtsw2"]} == {
        (79, 40, 8), (79, 40, 79), (79 * 324, 79 * 324 // 2, 79 * 324),
    }  # fmt: skip
