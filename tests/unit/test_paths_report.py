"""The verdict on paths, from evidence made by hand: what counts as proof, and what is said when it is none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from heddle.base.families import Network
from heddle.base.problems import CheckError
from heddle.fabric.model import Fabric
from heddle.fabric.shapes import clos
from heddle.kernel.fib import Fib, NextHop
from heddle.lab.snapshot import NodeSnapshot, Snapshot
from heddle.predict.predict import predict
from heddle.proof.evidence import PARTS, Evidence, misfit
from heddle.proof.verdict import PathsResult, prove
from heddle.spec.queuepolicy import QueuePolicy, TrimmingPolicy
from heddle.spec.routingpolicy import HashOptions, Udf
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.counters import FlowCount, PortCount, SwitchCounters
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.switch.queues.cells import Tally
from heddle.traffic.flow import Flow, Sent
from heddle.views.pathstext import paths_text
from tests.answers import Answers
from tests.pages import text_of

DATA_CLASS = 3  # of the packets of queue pairs, by their DSCP
FABRIC = clos.build(ClosSpec(name="made", racks=2, ctsw=2, hosts_per_rack=1))
HASHING = {s.name: SwitchHashing(s.name, "flow", s.hash_seed or 1, 3, 0x37, kernel_seed=1) for s in FABRIC.switches}


def fibs(fabric: Fabric = FABRIC) -> dict[str, Fib]:
    """What BGP would give this fabric."""
    found = {}
    for switch in fabric.switches:
        routes: dict[Network, tuple[NextHop, ...]] = {
            prefix: tuple(NextHop(p.name, i, "169.254.0.1") for i, p in enumerate(switch.ports) if p.name in ports)
            for prefix, ports in fabric.expected_next_hops[switch.name].items()
        }
        for port in switch.ports:
            if port.address is not None:
                routes[port.address.network] = (NextHop(port.name, 9, ""),)
        found[switch.name] = Fib(switch.name, routes)
    return found


def flow(sport: int = 50_000, qpn: int = 7) -> Flow:
    a, b = (host.ports[0].address for host in FABRIC.hosts)
    assert a is not None and b is not None
    return Flow("host1", "host2", str(a.ip), str(b.ip), sport, qpn, "rtsw1:eth3")


def snapshot(
    routes: Mapping[str, Fib],
    hashing: Mapping[str, SwitchHashing],
    counters: Mapping[str, SwitchCounters] | None = None,
    drops: Mapping[str, int] | None = None,
    backlog: int = 0,
) -> Snapshot:
    """The made fabric at one moment. drops: of the class of data, by `rtsw1:eth1`."""

    def dropped(name: str) -> dict[str, int]:
        return {ref.partition(":")[2]: n for ref, n in (drops or {}).items() if ref.startswith(f"{name}:")}

    nodes = {
        name: NodeSnapshot(
            name,
            fib=fib,
            hashing=hashing[name],
            epoch=1,
            statistics={},
            counters=(counters or {}).get(name, SwitchCounters(name, (), (), 0)),
            drops=dropped(name),
            class_drops={port: {DATA_CLASS: count} for port, count in dropped(name).items()},
        )
        for name, fib in routes.items()
    }
    return Snapshot("made", PARTS, nodes, backlog)


def with_routing(
    found: Evidence, routes: Mapping[str, Fib] | None = None, hashing: Mapping[str, SwitchHashing] | None = None
) -> Evidence:
    """The same with other routes or hashing before and after the run."""
    states = [
        replace(
            state,
            nodes={
                name: replace(node, fib=(routes or state.fibs)[name], hashing=(hashing or state.hashing)[name])
                for name, node in state.nodes.items()
            },
        )
        for state in (found.before, found.after)
    ]
    return replace(found, before=states[0], after=states[1])


def with_counters(found: Evidence, counters: Mapping[str, SwitchCounters]) -> Evidence:
    """The same with other counters after the run; before it there were none."""
    return replace(found, after=found.after.with_counters({**found.after.counters, **counters}))


def with_class_drops(found: Evidence, port: str, classes: Mapping[int, int] | None) -> Evidence:
    """The same where the drops of one port were of these classes; None where only their sum is known."""
    switch, _, name = port.partition(":")
    states = []
    for state in (found.before, found.after):
        nodes = dict(state.nodes)
        known = None if classes is None else {name: classes if state is found.after else {}}
        nodes[switch] = replace(nodes[switch], class_drops=known)
        states.append(replace(state, nodes=nodes))
    return replace(found, before=states[0], after=states[1])


def evidence(sent: list[Sent], counts: tuple[int, ...] = (), drops: dict[str, int] | None = None) -> Evidence:
    """Every flow where it is predicted, counted as often as it was sent; or `counts` along the first one's path."""
    paths = predict(FABRIC, fibs(), HASHING, [s.flow for s in sent])
    rows: dict[str, list[FlowCount]] = {s.name: [] for s in FABRIC.switches}
    for one, path in zip(sent, paths, strict=True):
        for i, ref in enumerate(path):
            switch, _, port = ref.partition(":")
            packets = counts[i] if counts else one.packets
            if packets:
                rows[switch].append(FlowCount(port, *one.flow.key, packets, packets * 100))
    tables = {}
    for name, found in rows.items():
        ports = tuple(PortCount(r.port, r.packets + 1, r.bytes + 60, r.packets, r.bytes) for r in found)
        tables[name] = SwitchCounters(name, tuple(found), ports, 0)
    before, after = snapshot(fibs(), HASHING), snapshot(fibs(), HASHING, tables, drops)
    return Evidence(before, after, tuple(sent), tuple(paths))


def judge(sent: list[Sent], found: Evidence) -> PathsResult:
    return prove(FABRIC, replace(found, sent=tuple(sent)))


SENT = [Sent(flow(), 10, 1000)]
FIRST = predict(FABRIC, fibs(), HASHING, [SENT[0].flow])[0][0]  # the port by which the flow leaves its switch


@pytest.mark.parametrize(
    ("dropped", "classes", "why"),
    [
        (3, {3: 3}, ""),
        (3, {0: 3}, f"3 packets vanished after {FIRST}, whose queue dropped 0 of class 3"),
        (5, {3: 5}, "whose queue dropped 5 of class 3, perhaps of other traffic: not attributable"),
        (3, None, "of which class is not recorded: not attributable"),
    ],
)
def test_a_loss_is_explained_by_as_many_drops_of_its_class(
    dropped: int, classes: Mapping[int, int] | None, why: str
) -> None:
    result = judge(SENT, with_class_drops(evidence(SENT, (10, 7, 7), {FIRST: dropped}), FIRST, classes))
    assert result.agree == (not why) and why in result.flows[0].why
    if result.agree:
        assert result.lost == {FIRST: 3}
        assert f"3 packets were lost after {FIRST}; its queue dropped 3 of class 3" in result.notes
    assert judge(SENT, evidence(SENT, drops={FIRST: dropped})).agree, "flows that lost nothing need no explanation"


def test_three_sources_and_the_right_counts_are_a_proof() -> None:
    result = judge(SENT, evidence(SENT))
    assert result.agree
    row = result.to_json()["flows"][0]
    assert row["predicted"] == row["oracle"] == row["measured"] and len(row["measured"]) == 3
    assert row["measured"][0].startswith("rtsw1:") and row["measured"][-1] == "rtsw2:eth3"
    assert (row["packets"], row["counted"]) == (10, [10, 10, 10])
    assert "agree on the paths of all 1 QPs" in paths_text(result)
    # Runs without the reports of nics say so.
    assert result.to_json()["delivery"] == {"qps": 1, "counted": 10, "received": None}
    assert "how many the receiving NICs got is not known" in paths_text(result)
    # What was lost before the last port is not counted there.
    lost = judge(SENT, evidence(SENT, (10, 0, 0), {FIRST: 10}))
    assert lost.to_json()["delivery"] == {"qps": 1, "counted": 0, "received": None}


def test_counts_that_do_not_sum_are_no_proof(answers: Answers) -> None:
    def why(counts: list[int]) -> str:
        result = judge(SENT, evidence(SENT, tuple(counts)))
        assert not result.agree
        text = " ".join(paths_text(result).split())  # its lines are wrapped
        assert "NOT PROVEN" in text and result.flows[0].why in text
        return result.flows[0].why

    answers(why)


def test_a_different_oracle_result_is_no_proof() -> None:
    found = evidence(SENT)
    other = ("rtsw1:eth9", *found.oracle[0][1:])
    result = judge(SENT, replace(found, oracle=(other,)))
    assert not result.agree
    assert result.flows[0].why == (
        f"the prediction differs from the kernels: predicted {found.oracle[0][0]}, kernel rtsw1:eth9, "
        f"counted {found.oracle[0][0]}"
    )
    assert "rtsw1:eth9" in paths_text(result)


def test_packets_where_or_as_they_should_not_be_are_no_proof() -> None:
    found = evidence(SENT)
    f = SENT[0].flow
    used = found.oracle[0][0].partition(":")[2]
    other = "eth1" if used == "eth2" else "eth2"
    table = found.counters["rtsw1"]
    stray = FlowCount(other, *f.key, 2, 200)
    result = judge(SENT, with_counters(found, {"rtsw1": replace(table, flows=(stray, *table.flows))}))
    assert not result.agree
    assert result.flows[0].why == f"also seen at rtsw1:{other} (2 packets)"
    # A flow whose source port changed in transit is not proven.
    wrong = {
        name: replace(table, flows=tuple(replace(r, sport=r.sport ^ (r.key == f.key)) for r in table.flows))
        for name, table in found.counters.items()
    }
    result = judge(SENT, with_counters(found, wrong))
    assert not result.agree and result.flows[0].why and not result.flows[0].measured
    # Uncounted packets spoil every proof.
    result = judge(SENT, with_counters(found, {"ctsw1": replace(found.counters["ctsw1"], misses=4)}))
    assert not result.agree
    assert "4 packets were not counted: a counter map was full" in result.notes


def test_the_same_qp_number_with_another_source_port_is_another_flow() -> None:
    """Another 5-tuple takes other paths: its packets are neither a stray of the flow nor a part of its count."""
    found = evidence(SENT)
    f = SENT[0].flow
    used = found.oracle[0][0].partition(":")[2]
    other = "eth1" if used == "eth2" else "eth2"
    for port in (used, other):
        row = FlowCount(port, f.src_ip, f.dst_ip, f.sport ^ 1, f.qpn, 2, 200)
        table = found.counters["rtsw1"]
        result = judge(SENT, with_counters(found, {"rtsw1": replace(table, flows=(row, *table.flows))}))
        assert result.agree
        assert sum(link.packets for link in result.links if link.port == f"rtsw1:{other}") == sum(
            sent.packets for sent, path in zip(SENT, found.oracle, strict=True) if f"rtsw1:{other}" in path
        )


def test_mmr_counts_idle_uplinks_and_entropy_what_a_hash_can_tell_apart() -> None:
    sent = [Sent(flow(sport=50_000 + i, qpn=i), 10, 1000) for i in range(32)]
    result = judge(sent, evidence(sent))
    uplinks = {link.port: link for link in result.links if link.uplink}
    assert set(uplinks) == {"rtsw1:eth1", "rtsw1:eth2", "rtsw2:eth1", "rtsw2:eth2"}
    most = max(link.flows for link in uplinks.values())
    assert result.mmr.flows == result.mmr.bytes == round(most / 8, 4)
    assert result.per_leaf["rtsw1"].flows == round(most / 16, 4)
    assert result.per_leaf["rtsw2"].flows is None
    assert sum(link.packets for link in uplinks.values()) == 320
    text = paths_text(result)
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "16 of 32 QPs are shown; --all shows all, and --qp, --host, --port select some" in text
    # What a hash of 5 tuples can tell apart is said: Sixteen QPs on four source ports: two bits of four.
    sent = [Sent(flow(sport=50_000 + i % 4, qpn=i), 10, 1000) for i in range(16)]
    result = judge(sent, evidence(sent))
    assert result.to_json()["entropy"] == {"flows": 16, "distinct": 4, "bits": 2.0, "of": "5-tuples"}
    assert "5-tuples: 4 distinct of 16, entropy 2.00 of 4.00 bits" in paths_text(result)
    assert "5-tuples" not in paths_text(judge([], evidence([])))


@pytest.mark.parametrize(
    ("mode", "policy", "fields", "options", "text"),
    [
        ("flow", 3, 0x37, HashOptions(), "5-tuples: 4 distinct of 16, entropy 2.00 of 4.00 bits"),
        ("flow", 0, 0x37, HashOptions(), "addresses: 1 distinct of 16, entropy 0.00 of 4.00 bits"),
        ("flow", 3, 0x03, HashOptions(), "hash.fields: 1 distinct of 16, entropy 0.00 of 4.00 bits"),
        ("e-ecmp", 1, 0x37, HashOptions(), "5-tuples and QPs: 16 distinct of 16, entropy 4.00 of 4.00 bits"),
        ("e-ecmp", 1, 0x37, HashOptions(udf=Udf("l4", 2, 2)), "5-tuples and hash.udf: 4 distinct of 16, entropy 2.00"),
        ("spray", 1, 0x37, HashOptions(), "5-tuples: 4 distinct of 16, entropy 2.00 of 4.00 bits"),
        ("e-ecmp", 1, 0x37, HashOptions(udf=Udf("bth", 8, 4)), "5-tuples: 4 distinct of 16, entropy 2.00 of 4.00"),
    ],
)
def test_entropy_is_that_of_the_fields_that_switches_hash(
    mode: str, policy: int, fields: int, options: HashOptions, text: str
) -> None:
    """Of 5-tuples where packets of one flow differ in the fields, and where switches have several rules."""
    sent = [Sent(flow(sport=50_000 + i % 4, qpn=i), 10, 1000) for i in range(16)]
    rows = {s.name: SwitchHashing(s.name, mode, 1, policy, fields, options) for s in FABRIC.switches}
    result = judge(sent, with_routing(evidence(sent), hashing=rows))
    assert text in paths_text(result)
    mixed = judge(sent, with_routing(evidence(sent), hashing={**HASHING, "rtsw1": rows["rtsw1"]}))
    assert "5-tuples: 4 distinct of 16, entropy 2.00 of 4.00 bits" in paths_text(mixed)


def test_evidence_survives_json_and_another_format_is_refused() -> None:
    found = replace(evidence(SENT, (10, 7, 7), {"rtsw1:eth1": 3}), received=(7,), seconds=1.5, choices={"kernel": 3})
    again = Evidence.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    assert (again.counters, again.drops, again.changed) == (found.counters, found.drops, found.changed)
    for other in (1, 3):
        with pytest.raises(ValueError, match=f"it has format {other}, and this Heddle reads 2"):
            Evidence.from_json({**found.to_json(), "format": other})


def test_a_difference_of_counters_is_what_moved() -> None:
    def counters(misses: int, *rows: tuple[str, int, int, int]) -> SwitchCounters:
        flows = tuple(FlowCount(port, "a", "b", 7, qpn, packets, size) for port, qpn, packets, size in rows)
        return SwitchCounters("s", flows, (PortCount("eth1", 4, 40, 2, 20),) if misses > 1 else (), misses)

    now = counters(0, ("eth1", 1, 3, 30))
    assert now.since(counters(0, ("eth1", 1, 500, 5000))).flows == now.flows, "they began again"
    now = counters(3, ("eth1", 1, 5, 50), ("eth1", 2, 7, 80), ("eth2", 3, 1, 9))
    diff = now.since(counters(1, ("eth1", 1, 5, 50), ("eth1", 2, 5, 50)))
    assert diff == counters(2, ("eth1", 2, 2, 30), ("eth2", 3, 1, 9)), "what did not move is left out"


def test_a_path_that_does_not_reach_its_destination_is_no_proof() -> None:
    found = evidence(SENT)
    first = found.oracle[0][0]
    ctsw = "ctsw" + first[-1]
    lost = Fib(ctsw, {})
    cut = evidence(SENT, (10, 0, 0))
    result = judge(SENT, replace(with_routing(cut, {**fibs(), ctsw: lost}), oracle=((first,),)))
    assert not result.agree
    assert result.flows[0].why == f"the path ends after {first}, which does not lead to {SENT[0].flow.dst_ip}"


def test_bytes_must_sum_as_well_as_packets_and_an_idle_qp_must_not_be_seen_anywhere() -> None:
    assert not judge([replace(SENT[0], bytes=1001)], evidence(SENT)).agree
    found = evidence(SENT)
    table = found.counters["rtsw2"]
    other = replace(table, flows=tuple(replace(row, bytes=row.bytes - 4) for row in table.flows))
    assert "1000 bytes became 996" in judge(SENT, with_counters(found, {"rtsw2": other})).flows[0].why
    idle = [Sent(flow(), 0, 0)]
    assert judge(idle, evidence(idle)).agree
    assert "also seen at" in judge(idle, evidence(idle, (0, 3, 3))).flows[0].why


def test_a_loss_in_the_backlog_of_the_machine_is_not_attributable() -> None:
    """The kernel counts those drops for all traffic of all namespaces together."""
    found = evidence(SENT, (10, 9, 8))
    result = judge(SENT, replace(found, after=replace(found.after, machine_drops=2)))
    assert not result.agree
    assert "1 packet vanished after rtsw1:" in result.flows[0].why
    assert "the machine's backlog dropped 2 of any traffic: not attributable" in result.flows[0].why


@pytest.mark.parametrize(
    ("of_the_other", "drops", "agrees"), [(0, 3, True), (2, 3, False), (2, 5, True), (2, 4, False)]
)
def test_drops_are_shared_with_another_flow_that_lost_packets_there(
    of_the_other: int, drops: int, agrees: bool
) -> None:
    """Three packets of ours are missing behind the port, and some of a flow that is not of this run.

    Equal numbers of drops and losses of the class prove nothing when the drops can be those of the other flow.
    """
    found = evidence(SENT, (10, 7, 7), {FIRST: drops})
    f, (first, second) = SENT[0].flow, found.oracle[0][:2]
    tables = dict(found.after.counters)
    for ref, packets in ((first, 10), (second, 10 - of_the_other)):
        switch, _, name = ref.partition(":")
        row = FlowCount(name, f.src_ip, f.dst_ip, f.sport, 99, packets, packets * 100)
        tables[switch] = replace(tables[switch], flows=(*tables[switch].flows, row))
    result = judge(SENT, with_counters(found, tables))
    assert result.agree == agrees, result.flows[0].why
    assert agrees or "perhaps of other traffic: not attributable" in result.flows[0].why


@pytest.mark.parametrize(
    ("dropped", "taken", "agrees"), [(4, 4, True), (5, 4, False), (3, 4, False), (4, 5, False), (4, 0, False)]
)
def test_acknowledgements_that_the_senders_kernel_did_not_get_are_part_of_the_drops(
    dropped: int, taken: int, agrees: bool
) -> None:
    """host2 lost 3 of the 10 segments of a stream, and one of 5 acknowledgements of its own stream, at one port."""
    data = Flow.counted((*(flow().src_ip, flow().dst_ip), 50_000, 6 << 24 | 10_001), "host1", "host2", "rtsw1:eth3")
    own = Flow.counted((data.dst_ip, data.src_ip, 50_001, 6 << 24 | 10_002), "host2", "host1", "rtsw2:eth3")
    sent = [Sent(replace(each, dscp=24), 10, 1000) for each in (data, own)]
    found = evidence(sent, (), {"rtsw2:eth3": dropped})
    tables = dict(found.after.counters)
    for switch, port in (("rtsw1", "eth1"), ("ctsw1", "eth2"), ("rtsw2", "eth3")):
        row = FlowCount(port, *own.reverse, 5, 500)
        tables[switch] = replace(tables[switch], flows=(*tables[switch].flows, row))
    result = judge(sent, replace(with_counters(found, tables), received=(7, 10), answered=(9, taken)))
    assert result.agree == agrees, result.flows[0].why
    assert agrees or "not attributable" in result.flows[0].why or "queue dropped 3" in result.flows[0].why


def tallied(port: str, *tally: int, counts: tuple[int, ...], received: int | None = None) -> Evidence:
    """Evidence where the class of data at one port had this tally."""
    found = evidence(SENT, counts, {port: tally[1]} if not port.startswith("host") else {})
    taken = () if received is None else (received,)
    return replace(found, tallies={port: {DATA_CLASS: Tally(*tally)}}, received=taken)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        # offered, lost, copies: a link between switches that duplicates, loses, or both.
        (tallied(FIRST, 10, 0, 3, counts=(10, 13, 13)), ""),
        (tallied(FIRST, 10, 2, 3, counts=(10, 11, 11)), ""),
        (tallied(FIRST, 10, 3, 3, counts=(10, 10, 10)), ""),
        (
            tallied(FIRST, 10, 0, 2, counts=(10, 13, 13)),
            "more packets after rtsw1:eth1 than at it: 3 too many, and its",
        ),
        (tallied(FIRST, 10, 0, 4, counts=(10, 13, 13)), "perhaps of other traffic: not attributable"),
        (tallied(FIRST, 10, 1, 3, counts=(10, 13, 13)), "perhaps of other traffic: not attributable"),
        # The link to the receiver; the NIC counts copies and packets with a wrong ICRC.
        (tallied("rtsw2:eth3", 10, 0, 2, counts=(10, 10, 10), received=12), ""),
        (tallied("rtsw2:eth3", 10, 4, 1, counts=(10, 10, 10), received=7), ""),
        (tallied("rtsw2:eth3", 10, 0, 2, counts=(10, 10, 10), received=11), "perhaps of other traffic"),
        # The link from the sender.
        (tallied("host1:eth1", 10, 0, 2, counts=(12, 12, 12)), ""),
        (tallied("host1:eth1", 10, 3, 0, counts=(7, 7, 7)), ""),
        (tallied("host1:eth1", 10, 2, 0, counts=(7, 7, 7)), "10 packets were sent, the first hop counted 7"),
    ],
)
def test_what_link_faults_took_and_added_is_part_of_the_sums(found: Evidence, why: str) -> None:
    result = judge(SENT, found)
    assert result.agree == (not why) and why in result.flows[0].why
    assert Evidence.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_other_packets_of_the_class_make_equal_sums_worthless_unless_no_flow_is_theirs() -> None:
    """A flow that is not of this run was copied there too: all copies of all classes are those of both."""
    for offered, copies, agrees in ((13, 3, False), (13, 5, True), (13, 4, False), (10, 3, True)):
        found = tallied(FIRST, offered, 0, copies, counts=(10, 13, 13))
        f, (first, second) = SENT[0].flow, found.oracle[0][:2]
        tables = dict(found.after.counters)
        for ref, packets in ((first, 3), (second, 5)):
            switch, _, name = ref.partition(":")
            row = FlowCount(name, f.src_ip, f.dst_ip, f.sport, 99, packets, packets * 100)
            tables[switch] = replace(tables[switch], flows=(*tables[switch].flows, row))
        assert judge(SENT, with_counters(found, tables)).agree == agrees, (offered, copies)


def test_a_lost_packet_and_a_copy_of_another_length_are_no_other_packets() -> None:
    found = tallied(FIRST, 10, 1, 1, counts=(10, 10, 10))
    table = found.after.counters["ctsw1"]
    shorter = replace(table, flows=tuple(replace(row, bytes=row.bytes - 60) for row in table.flows))
    changed = {
        "ctsw1": shorter,
        "rtsw2": replace(
            found.after.counters["rtsw2"],
            flows=tuple(replace(row, bytes=row.bytes - 60) for row in found.after.counters["rtsw2"].flows),
        ),
    }
    assert judge(SENT, with_counters(found, changed)).agree
    assert not judge(SENT, with_counters(replace(found, tallies={}), changed)).agree


def test_the_use_of_a_link_leaves_out_what_its_own_queue_dropped() -> None:
    found = replace(tallied(FIRST, 10, 6, 0, 4, 400, counts=(10, 4, 4)), seconds=1.0)
    result = judge(SENT, found)
    link = next(link for link in result.links if link.port == FIRST)
    assert (link.packets, link.bytes, link.seconds) == (6, 600, 600 * 8 / link.rate_bps), "two of six were lost later"
    assert result.agree and result.mmr.bytes == 4.0


@pytest.mark.parametrize(
    ("taken", "why"),
    [
        (8, "2 packets vanished after rtsw2:eth3, whose queue dropped 0 of class 3"),
        (
            11,
            "the NIC took 11 packets, rtsw2:eth3 counted 10; more packets after rtsw2:eth3 than at it: 1 too many, "
            "and its link copied 0 of class 3",
        ),
    ],
)
def test_packets_of_the_receiving_nic_are_compared_with_the_last_port(taken: int, why: str) -> None:
    dropped = judge(SENT, replace(evidence(SENT, drops={"rtsw2:eth3": 2}), received=(8,)))
    assert dropped.agree and dropped.lost == {"rtsw2:eth3": 2}, "its queue dropped what the counter has not seen"
    found = evidence(SENT)
    assert judge(SENT, replace(found, received=(10,))).agree
    result = judge(SENT, replace(found, received=(taken,)))
    assert not result.agree
    assert result.flows[0].why == why
    assert result.to_json()["flows"][0]["received"] == taken
    assert result.to_json()["delivery"] == {"qps": 1, "counted": 10, "received": taken}
    said = f"{taken} of the 10 packets that" if taken < 10 else f"{taken} packets, with copies;"
    assert f"the receiving NICs got {said} the last ports counted" in paths_text(result)


def test_under_another_policy_the_kernel_does_not_heed_the_program() -> None:
    mode = {s.name: SwitchHashing(s.name, "e-ecmp", s.hash_seed or 1, 3, 0x37) for s in FABRIC.switches}
    flows = [flow(sport=50_000 + i, qpn=i) for i in range(64)]
    assert predict(FABRIC, fibs(), mode, flows) == predict(FABRIC, fibs(), HASHING, flows)
    for odd in ({"policy": 4}, {"seed": 0}, {"mode": "mode 9"}):
        with pytest.raises(CheckError, match=r"rtsw1 hashes (by .* modelled|with a random seed that Linux does)"):
            predict(FABRIC, fibs(), {**mode, "rtsw1": replace(mode["rtsw1"], **odd)}, flows)


def test_the_page_explains_columns_that_are_printed() -> None:
    part = text_of("docs/paths.md").partition("## Utilization\n")[2].partition("\n\n<a ")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", part, re.MULTILINE) for name in re.findall(r"\w+", row)}
    (heading,) = re.findall(r"^uplink .*", paths_text(judge(SENT, evidence(SENT))), re.MULTILINE)
    assert len(named) == 4 and named <= {*heading.split()}


TRIMS = replace(FABRIC, policy=replace(FABRIC.policy, queues=QueuePolicy(trimming=TrimmingPolicy(queue=5))))


def trimmed(cut: int, row: Tally, received: int | None = None, queue: int = 0, at: str = FIRST) -> Evidence:
    """Evidence where bytes are missing behind the flow's first port. row: of `at`; queue: packets that came cut."""
    found = evidence(SENT, (10, 10, 10))
    tables = {
        name: replace(table, flows=tuple(replace(each, bytes=each.bytes - cut) for each in table.flows))
        for name, table in found.counters.items()
        if not FIRST.startswith(f"{name}:")
    }
    taken = () if received is None else (received,)
    return replace(with_counters(found, tables), tallies={at: {DATA_CLASS: row, 5: Tally(queue)}}, received=taken)


LAST = "rtsw2:eth3"


@pytest.mark.parametrize(
    ("found", "why"),
    [
        # offered, lost, copies, refused and its bytes, trimmed and its bytes
        (trimmed(300, Tally(10, 0, 0, 0, 0, 4, 300)), ""),
        (trimmed(300, Tally(10, 0, 0, 0, 0, 4, 304)), "1000 bytes became 700"),
        (trimmed(300, Tally(12, 0, 0, 0, 0, 4, 304)), ""),  # of others in that class
        (trimmed(300, Tally(12, 0, 0, 0, 0, 4, 299)), "1000 bytes became 700"),
        (trimmed(300, Tally(10)), "1000 bytes became 700"),
        # A NIC that takes trimmed packets, and one that does not: the port to it sent 4.
        (trimmed(0, Tally(10, 0, 0, 0, 0, 4, 300), 10, at=LAST), ""),
        (trimmed(0, Tally(10, 0, 0, 0, 0, 4, 300), 6, at=LAST), ""),
        (trimmed(0, Tally(10, 0, 0, 0, 0, 3, 300), 6, 1, at=LAST), ""),
        (trimmed(0, Tally(10, 0, 0, 0, 0, 3, 300), 6, at=LAST), "4 packets vanished after rtsw2:eth3"),
        (trimmed(0, Tally(10, 0, 0, 0, 0, 4, 300), 8, at=LAST), "2 packets vanished after rtsw2:eth3"),
    ],
)
def test_a_trimmed_packet_is_neither_lost_nor_another_one(found: Evidence, why: str) -> None:
    result = prove(TRIMS, found)
    assert result.agree == (not why) and why in result.flows[0].why
    assert not result.lost or why
    said = Evidence.from_json(json.loads(json.dumps(found.to_json())))
    assert said == found and prove(TRIMS, said).trimmed == result.trimmed


@pytest.mark.parametrize("again", [8, -1])
def test_packets_that_are_sent_again_in_another_class_are_trimmed_there(again: int) -> None:
    found = trimmed(300, Tally(6, 0, 0, 0, 0, 3, 200))
    found = replace(found, sent=tuple(replace(each, again=again) for each in found.sent))
    rows = {**found.tallies[FIRST], 0: Tally(4, 0, 0, 0, 0, 1, 100)}
    result = prove(TRIMS, replace(found, tallies={FIRST: rows}))
    assert result.agree == (again == 8) and ("1000 bytes became 700" in result.flows[0].why) == (again != 8)
    assert result.trimmed == {FIRST: 4 if again == 8 else 3}
    (link,) = (each for each in result.links if each.port == FIRST)
    assert link.bytes == 1000 - (300 if again == 8 else 200)
    said = Evidence.from_json(json.loads(json.dumps(found.to_json())))
    assert said.sent == found.sent


def test_a_dscp_that_no_packet_can_have_does_not_fit() -> None:
    found = evidence(SENT)
    assert not misfit(FABRIC, found)
    assert "DSCP" in misfit(FABRIC, replace(found, sent=tuple(replace(each, again=64) for each in found.sent)))
