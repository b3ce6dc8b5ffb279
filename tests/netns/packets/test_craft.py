"""Packets by hand on a live fabric: the answer of each kind, what the responder counts, and the proof of the path."""

from __future__ import annotations

from typing import Any

import pytest

from heddle.base.problems import MachineError
from heddle.lab.lab import Lab
from heddle.lab.outages import link_down, link_up
from heddle.wire.layout import NAK_ACCESS, NAK_INVALID, NAK_SEQUENCE
from heddle_plugins.testing import craft
from tests.typed import typed


def crafted(lab: Lab, *hosts: str, **fields: Any) -> Any:
    return craft(lab, *hosts, **fields)


def kinds(done: Any) -> list[tuple[str, Any]]:
    return [(each.what.kind, each.what.fields.get("syndrome")) for each in done.answers]


def test_each_kind_of_packet_gets_its_answer_and_its_path_is_proven(tiny: Lab) -> None:
    right = crafted(tiny, "host1", "host3")
    assert kinds(right) == [("RoCE ACK", 0x1F)]
    assert (right.responder.executed, right.responder.written) == (1, "0x10000 to 0x1001f")
    assert right.proof.agree and len(right.proof.flows) == 2 and len(right.path) == 3
    assert [each.ttl for each in (*right.sent, *right.arrived)] == [64, 61]
    asked: list[tuple[dict[str, Any], int]] = [
        ({"psn": 9}, NAK_SEQUENCE), ({"rkey": 1}, NAK_ACCESS), ({"opcode": "RC_RDMA_WRITE_MIDDLE"}, NAK_INVALID),
    ]  # fmt: skip
    for fields, syndrome in asked:
        done = crafted(tiny, "host1", "host3", **fields)
        assert kinds(done) == [("RoCE NAK", syndrome)] and done.responder.written == ""
        assert done.path == right.path and done.proof.agree
    assert [kind for kind, _ in kinds(crafted(tiny, "host1", "host3", ecn="ce"))] == ["RoCE CNP", "RoCE ACK"]


def test_a_read_answers_with_what_was_written_before(tiny: Lab) -> None:
    done = crafted(tiny, "host1", "host2", opcode="RC_RDMA_WRITE_ONLY,RC_RDMA_READ_REQUEST", payload="heddle",
                 set={"dmalen": 6})  # fmt: skip
    assert done.answers[-1].layers["Raw"]["load"] == b"heddle".hex()
    assert done.proof.agree and len(done.path) == 1


def test_a_packet_without_an_answer_is_still_proven(tiny: Lab) -> None:
    done = crafted(tiny, "host1", "host3", icrc="wrong", wait=0.3)
    assert not done.answers and done.responder.icrc_errors == 1 and [p.icrc for p in done.arrived] == ["wrong"]
    assert done.proof.agree
    done = crafted(tiny, "host1", "host3", qpn=7, count=3, responder=False, wait=0.3)
    assert not done.answers and done.responder is None and len(done.arrived) == 3
    assert done.flow.counted == (3, 3, 3) and done.flow.flow.qpn == 7
    done = crafted(tiny, "host1", "host3", ttl=1, wait=0.3)
    assert [each.what.text for each in done.answers] == ["time exceeded"] and not done.arrived and not done.path
    done = crafted(tiny, "host1", "host3", set={"UDP.dport": 4792}, wait=0.3)
    assert done.proof is None and done.answers[0].what.kind == "ICMP"


def test_the_command_prints_packets_responder_and_path(tiny: Lab) -> None:
    done = typed("craft", "host1", "host3", "--psn=9", "--fields", f"--lab={tiny.name}")
    assert done.returncode == 0, done.stderr
    for word in ("sequence  ICRC right", "1 out of order; 1 NAK sent", "counters agree; packets 1 1 1)", "kind=NAK"):
        assert word in done.stdout
    wrong = typed("craft", "host1", "hots3", f"--lab={tiny.name}")
    assert wrong.returncode == 2 and "did you mean host3?" in wrong.stderr


def test_a_link_that_is_down_is_named(tiny: Lab) -> None:
    link_down(tiny, "rtsw1:eth3")
    try:
        with pytest.raises(MachineError, match=r"link (may be|is) down"):
            crafted(tiny, "host1", "host3", wait=0.3)
    finally:
        link_up(tiny, "rtsw1:eth3")
