"""Lengths, delays and faults of links as keys of the fabric file."""

from __future__ import annotations

import json

import pytest

from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.fabric.policydata import dump_policy, load_policy
from heddle.spec.impairments import LinkFault
from heddle.spec.linkspec import delay_of_length, format_length, read_length
from heddle.spec.plain import differences, dump_spec, load_spec
from heddle.switch.links.portfaults import file_faults, line_of
from heddle.switch.queues.classes import port_ids
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import build_plan
from tests.answers import Answers

LINK = "link.delay_at=link"
ALL = ("link.loss=1/256", "link.corrupt=0.1%", "link.duplicate=0.005", "link.reorder=2%", "link.jitter=50ns")


def fabric(preset: str, *overrides: str) -> Fabric:
    return load_fabric(preset, overrides=overrides).fabric


def test_a_length_is_light_in_glass(answers: Answers) -> None:
    def millimetres_and_ns(text: str) -> tuple[int, int]:
        return read_length(text), delay_of_length(read_length(text))

    answers(millimetres_and_ns)


def test_lengths_are_light_in_glass() -> None:
    assert [format_length(each) for each in (0, 1, 2500, 30_000, 2_000_000)] == ["0", "0.001m", "2.5m", "30m", "2000m"]
    # One end may have a length and the other a delay.
    assert fabric("tiny", "link.length.host=20m", "link.delay.fabric=1us").policy.delays == (100, 1000, 1000)


def test_a_length_sets_the_delay_that_the_receiving_nic_adds(answers: Answers) -> None:
    def delays(said: str) -> object:
        policy = fabric("tiny", f"link.length={said}").policy
        assert (policy.link_faults, policy.delayed_on_links) == ((), False)
        return policy.delays

    answers(delays)


@pytest.mark.parametrize("given", ["link.length={host: 3m, fabric: 100m}", "link.delay={host: 15ns, fabric: 500ns}"])
def test_with_delay_at_link_the_delay_is_on_each_link_and_no_nic_adds_it(given: str) -> None:
    there, here = fabric("tiny", given, LINK), fabric("tiny", given)
    assert there.policy.link_faults == (LinkFault(delay_ns=15), *[LinkFault(delay_ns=500)] * 2)
    assert there.policy.delayed_on_links
    at_link, at_nic = (build_plan(each, RunOptions()) for each in (there, here))
    assert {qp.delay_s for qp in at_link.qps} == {0.0}
    assert 0.0 not in {qp.delay_s for qp in at_nic.qps}
    assert [qp.rtt_s for qp in at_link.qps] == [2 * qp.delay_s for qp in at_nic.qps]
    assert at_link.propagation == at_nic.propagation, "window and timeout follow the same path"
    assert at_link.timeout_s == at_nic.timeout_s


@pytest.mark.parametrize("scale", [4000, 8000])
def test_the_real_length_of_a_cable_is_scaled_by_k(scale: int) -> None:
    """100 m are 500 ns on hardware, and k times as long in netem."""
    built = fabric("tiny", "link.length={host: 3m, fabric: 100m}", LINK, "link.jitter.fabric=20ns", f"scale={scale}")
    ids, wanted = port_ids(built), file_faults(built)
    lines = {
        port.ref: line_of(port, ids[port.node, port.name], wanted[port.ref], built.policy.k)
        for node in built.nodes
        for port in node.ports
    }
    assert lines["host1:eth1"].netem() == f"netem limit 1000000 delay {15 * scale}ns rate 100gbit"
    uplink = next(port for port in built.by_name["rtsw1"].ports if port.peer_node == "ctsw1")
    assert lines[uplink.ref].netem() == f"netem limit 1000000 delay {500 * scale}ns {20 * scale}ns rate 100gbit"
    assert lines[uplink.ref].port == uplink.peer_port


def test_a_fault_is_on_both_directions_of_every_link_of_its_kind_and_of_no_other() -> None:
    built = fabric("tiny", "link.loss.host=1%", "link.duplicate.fabric=1/256")
    kinds = {
        port.ref: any(each.startswith("host") for each in (port.node, port.peer_node))
        for node in built.nodes
        for port in node.ports
    }
    found = file_faults(built)
    assert found == {ref: LinkFault(loss=0.01) if host else LinkFault(duplicate=1 / 256) for ref, host in kinds.items()}
    # Without these keys no link has a fault.
    assert fabric("dc").policy.link_faults == ()
    assert file_faults(fabric("tiny", "link.loss=0", "link.delay=shape")) == {}
    # Links between switches of all levels have the fault of fabric.
    assert fabric("dc", "link.loss.fabric=1/256").policy.link_faults == (LinkFault(), *[LinkFault(loss=1 / 256)] * 2)


def test_all_keys_together_survive_records() -> None:
    loaded = load_fabric("dc", overrides=["link.length={host: 20m, fabric: 2km}", LINK, *ALL])
    fault = LinkFault(delay_ns=100, jitter_ns=50, loss=1 / 256, corrupt=0.001, duplicate=0.005, reorder=0.02)
    policy = loaded.fabric.policy
    assert policy.link_faults[0] == fault
    assert load_policy(json.loads(json.dumps(dump_policy(policy)))) == policy
    spec = load_spec(json.loads(json.dumps(dump_spec(loaded.spec))))
    assert spec == loaded.spec
    keys = {path for path, *_ in differences(load_fabric("dc").spec, spec)}
    words = ("length", "jitter", "loss", "corrupt", "duplicate", "reorder")
    assert keys == {"link.delay_at", *(f"link.{word}.{kind}" for word in words for kind in ("host", "fabric"))}
