"""Keys below `link` of a fabric file set faults of links, which act on packets."""

from __future__ import annotations

import re
from typing import Final

import pytest

from heddle.base import state
from heddle.base.events import Silent
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as life
from heddle.lab import outages
from heddle.lab.faults import packets
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.status import status
from heddle.runs.parts.queues import QueueUse
from heddle.runs.run import run
from heddle.runs.store import paths_of
from heddle.spec.impairments import LinkFault
from heddle.switch.links import portfaults
from heddle.traffic.options import RunOptions
from heddle_plugins.testing.pool import ResetResult, processes_of, reset
from tests.conftest import Borrow
from tests.machine import patience, rc_timeout
from tests.netns.collectives import proven, total
from tests.netns.live import document, fault
from tests.netns.static_fabric import address
from tests.typed import typed

NO_NETEM: Final = portfaults.missing()
needs_netem = pytest.mark.skipif(bool(NO_NETEM), reason=NO_NETEM)
CABLES: Final = ("link.length={host: 200m, fabric: 2km}", "link.delay_at=link")  # 1 us and 10 us: 4 ms and 40 ms here
SHARES: Final = {"loss.fabric": "1/32", "duplicate.fabric": "1/32", "corrupt.host": "1/64"}


def up(name: str, *overrides: str) -> Lab:
    return life.up(load_fabric("tiny", name=name, overrides=overrides)).lab


def test_up_sets_the_shares_of_the_file_on_every_link_and_a_run_survives_them(name: str) -> None:
    words = [word for key, share in SHARES.items() for word in ("--set", f"link.{key}={share}")]
    document("up", "tiny", "--name", name, *words)
    lab = open_lab(name)
    switches, hosts = LinkFault(loss=1 / 32, duplicate=1 / 32), LinkFault(corrupt=1 / 64)
    found = {each.port: each for each in packets.read_faults(lab)}
    assert {ref: (each.fault, each.by) for ref, each in found.items()} == {
        port.ref: (hosts if "host" in port.ref + port.peer_ref else switches, "file")
        for node in lab.fabric.nodes
        for port in node.ports
    }
    result = run(lab, RunOptions(sizes=(1 << 18,), iters=1, warmup=0, timeout=rc_timeout(14)), Silent())
    counts = [each.counts for each in packets.read_faults(lab) if each.counts is not None]
    assert result.wrong == 0
    assert all(sum(each[key] for each in counts) > 0 for key in ("lost", "duplicated", "corrupted"))
    assert 0 < result[QueueUse].drops["fault"] <= sum(each["lost"] for each in counts)
    copies = sum(each["corrupted"] + each["duplicated"] for each in counts)  # a corrupt packet may be duplicated later
    assert result.icrc_errors is not None and 0 < result.icrc_errors <= copies
    listed = fault(lab)["faults"]
    assert {row["by"] for row in listed} == {"file"}
    assert "(file): set by `link` of the fabric file" in typed("fault", "--lab", name).stdout
    # What the file sets can be cleared, and is there again after a reset.
    fresh = processes_of(lab)
    assert "rtsw1:eth1" in outages.clear_faults(lab, ["rtsw1:eth1"])
    (row,) = status(name)
    assert len(row.link_faults) == len(found) - 1
    assert reset(lab, fresh) == ResetResult()
    assert {each.port for each in packets.read_faults(lab)} == set(found)


@pytest.mark.skipif(not NO_NETEM, reason="this kernel has sch_netem")
def test_without_netem_up_with_delays_on_links_is_refused_and_makes_nothing(name: str) -> None:
    words = [word for each in CABLES for word in ("--set", each)]
    done = typed("up", "tiny", "--name", name, *words)
    assert (done.returncode, done.stdout) == (3, "")
    assert "link.delay_at: link is not possible: this kernel has no sch_netem" in done.stderr
    assert "--on vm" in done.stderr
    assert state.read_record(name) is None


@needs_netem
@pytest.mark.needs("iputils-ping")
def test_each_link_delays_all_packets_by_its_cable_times_k(name: str) -> None:
    """From rack to rack two host links and two of switches are passed: 22 us, 88 ms here, each way."""
    lab = up(name, *CABLES, "link.jitter.fabric=100ns")
    k = lab.fabric.policy.k
    assert k == 4000
    found = {each.port: each.fault for each in packets.read_faults(lab)}
    fabric = LinkFault(delay_ns=10_000, jitter_ns=100)
    assert {found["host1:eth1"], found["ctsw1:eth1"]} == {LinkFault(delay_ns=1_000), fabric}
    assert len(found) == sum(len(node.ports) for node in lab.fabric.nodes)
    for node in lab.fabric.nodes:
        lines = portfaults.read(lab.handle(node.name).netns).values()
        assert sorted(line.values["delay"] for line in lines) == sorted(
            k * found[port.peer_ref].delay_ns for port in node.ports
        )
    there = address(lab.fabric.hosts[-1])
    said = lab.output("host1", ["ping", "-c", "3", "-W", "60", there], timeout=patience(60))
    times = [float(each) for each in re.findall(r"time=([0-9.]+) ms", said)]
    assert len(times) == 3
    assert min(times) >= 2 * 4000 * (2 * 1_000 + 2 * (10_000 - 100)) / 1e6, said
    result = run(lab, RunOptions(sizes=(1 << 17,), iters=1, warmup=0), Silent())
    assert result.wrong == 0
    assert total(result, "retransmitted") == 0
    # Each step of a ring waits for a packet from another host, and one of two or more from another rack.
    assert result.rows[0].time_us >= 2 * 2 * 1_000 * k / 1e3
    assert result.propagation is not None and paths_of(lab).agree


@pytest.fixture(scope="module")
def lab(borrow: Borrow) -> Lab:
    return borrow("tiny", "link.delay=shape")


@pytest.mark.deep
def test_a_small_ring_takes_the_delays_of_its_steps(lab: Lab) -> None:
    """6 steps of 4 ranks: a chunk passes 3 paths in a rack (4 ms each) and 3 between racks (12 ms)."""
    result = run(lab, RunOptions(sizes=(16,), iters=2, warmup=0), Silent())
    assert result.wrong == 0
    assert result.rows[0].time_us >= 6 * 8_000
    assert result.propagation is not None and result.propagation.bdp_packets == 73
    assert total(result, "retransmitted") == 0
    proven(lab)

    # Larger messages keep their order and come whole.
    result = run(lab, RunOptions(sizes=(1 << 20,), iters=1, warmup=0, qps=4), Silent())
    assert result.wrong == 0
    assert {(flow.counters["out_of_order"], flow.counters["retransmitted"]) for flow in result.flows} == {(0, 0)}
    proven(lab)
