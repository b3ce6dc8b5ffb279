"""Numbers of ports: one each, the same from the same fabric, and those of a node in a row."""

from __future__ import annotations

from itertools import pairwise

import pytest

from heddle.base.problems import InputError
from heddle.fabric.shapes import build
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.queues.portids import classid, numbered_ports, port_ids, row


def test_ports_are_numbered_from_1_in_the_order_of_the_fabric() -> None:
    fabric = build(ClosSpec(name="tiny", racks=2, ctsw=4))
    ids = port_ids(fabric)
    assert list(ids.values()) == list(range(1, len(ids) + 1))
    assert [(port.node, port.name) for _, port in numbered_ports(fabric)] == list(ids)
    for node in fabric.nodes:
        assert all(b - a == 1 for a, b in pairwise(ids[node.name, port.name] for port in node.ports))
    assert ids == port_ids(build(ClosSpec(name="tiny", racks=2, ctsw=4)))


def test_a_number_is_written_as_tc_reads_it() -> None:
    assert (classid(1), classid(31), classid(65535)) == ("0:1", "0:1f", "0:ffff")
    assert row(2, 3) == 19


def test_more_ports_than_a_classid_can_name_are_refused_with_both_numbers() -> None:
    fabric = build(ClosSpec(name="wide", racks=256, ctsw=128, hosts_per_rack=1))
    with pytest.raises(InputError, match=r"wide has \d+ ports; the maximum is 65535"):
        port_ids(fabric)
