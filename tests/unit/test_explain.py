"""Steps in plain integers against the arrays' arithmetic; flows in words."""

from __future__ import annotations

import numpy as np
import pytest

from heddle.base.problems import InputError
from heddle.fabric.shapes import clos
from heddle.predict.hashes import bounds, jhash2, jhash_steps, siphash24, siphash_steps
from heddle.predict.walk import element, ports_of, spreads
from heddle.runs.flowword import made_up
from heddle.spec.shapes.clos import ClosSpec

FABRIC = clos.build(ClosSpec(name="tiny", racks=2, ctsw=2, hosts_per_rack=2))


def test_steps_end_where_the_arrays_arithmetic_ends() -> None:
    chance = np.random.default_rng(5)
    for length in range(1, 12):
        words = chance.integers(0, 1 << 32, (1, length), dtype=np.uint64).astype(np.uint32)
        rows, value = jhash_steps([int(word) for word in words[0]], 0xA5FF9E0C)
        assert value == int(jhash2(words, 0xA5FF9E0C)[0])
        assert all(0 <= state < 1 << 32 for _, states in rows for state in states)
    for length in (6, 9):
        long = chance.integers(0, 1 << 63, (1, length), dtype=np.uint64)
        key = 0xA5FF9E0C << 32 | 0xA5FF9E0C
        rows, value = siphash_steps([int(word) for word in long[0]], key)
        assert value == int(siphash24(long, key, key)[0]) and len(rows) == length + 3


def test_the_example_of_the_documentation_is_what_the_steps_say() -> None:
    rows, value = jhash_steps([0x0A000001, 0x0A000101, 0xC00012B7, 0x000411DE], 2784992780)
    assert value == 0xA6D2BBB9
    assert rows[0][1] == (0x84AD5D0B,) * 3
    assert rows[1][1] == (0x8EAD5D0C, 0x8EAD5E0C, 0x44AD6FC2)
    assert rows[7][1] == (0x95D90711, 0x67E6F5C0, 0xB71D5A61)
    assert bounds([1, 1, 1, 1]) == [536870911, 1073741823, 1610612735, 2147483647]
    assert bounds([1, 1, 1]) == [715827882, 1431655764, 2147483647]


def test_a_flow_is_named_by_its_ends_and_what_differs_from_the_usual() -> None:
    flow = made_up(FABRIC, "host1,host4,qpn=0x101,sport=50000")
    assert (flow.src, flow.dst, flow.qpn, flow.sport, flow.dport) == ("host1", "host4", 0x101, 50000, 4791)
    assert flow.first_hop == FABRIC.by_name["host1"].ports[0].peer_ref
    assert made_up(FABRIC, "host1:eth1,host4").src_ip == flow.src_ip


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("host1,host9", "host9, which is not a host"),
        ("host1,rtsw1", "rtsw1, which is not a host"),
        ("host1,host1", "has the same NIC at both ends"),
        ("host1,host2:eth9", "host2:eth9, which is not a port"),
        ("host1,host2,host3", "names 3 ends"),
        ("host1,qpn=5", "names 1 ends"),
        ("host1,host2,qp=5", "'qp', which is no key"),
        ("host1,host2,qpn=five", "'five', which is no number"),
        ("host1,host2,qpn=16777216", "0 to 16777215"),
        ("host1,host2,sport=-1", "0 to 65535"),
        (",", "names 0 ends"),
    ],
)
def test_a_flow_that_cannot_be_is_refused_and_says_why(word: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        made_up(FABRIC, word)


def test_steps_of_a_path_are_written_and_read() -> None:
    for ports, word in (
        (["rtsw1:eth1"], "rtsw1:eth1"),
        (["rtsw1:eth1", "rtsw1:eth3"], "rtsw1:{eth1,eth3}"),
        (["ctsw1:eth2", "ctsw2:eth2"], "{ctsw1:eth2,ctsw2:eth2}"),
    ):
        assert element(ports) == word
        assert list(ports_of(word)) == ports
        assert spreads([word]) is (len(ports) > 1)
