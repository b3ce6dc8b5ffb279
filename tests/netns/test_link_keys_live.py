"""Keys below `link` of a fabric file, and the verb `fault`: both set faults of links, which act on packets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

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
from tests.netns.static_fabric import address
from tests.typed import typed

pytestmark = pytest.mark.root

NO_NETEM: Final = portfaults.missing()
needs_netem = pytest.mark.skipif(bool(NO_NETEM), reason=NO_NETEM)
CABLES: Final = ("link.length={host: 200m, fabric: 2km}", "link.delay_at=link")  # 1 us and 10 us: 4 ms and 40 ms here
SHARES: Final = {"loss.fabric": "1/32", "duplicate.fabric": "1/32", "corrupt.host": "1/64"}


@pytest.fixture
def name(lab_name: Callable[[], str]) -> Iterator[str]:
    found = lab_name()
    yield found
    if state.lab_dir(found).exists():
        life.down(found)


def up(name: str, *overrides: str) -> Lab:
    return life.up(load_fabric("tiny", name=name, overrides=overrides)).lab


def test_up_sets_the_shares_of_the_file_on_every_link_and_a_run_survives_them(name: str) -> None:
    words = [word for key, share in SHARES.items() for word in ("--set", f"link.{key}={share}")]
    done = typed("up", "tiny", "--name", name, *words, "--format", "json")
    assert done.returncode == 0, done.stderr
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
    listed = json.loads(typed("fault", "--lab", name, "--format", "json").stdout)["faults"]
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
    assert "--place vm" in done.stderr
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


WRONG: Final = (
    "--loss 1/256",
    "--both --loss 1/256",
    "--both",
    "rtsw1:eth1 --clear --loss 1/256",
    "rtsw1:eth1 --loss 2 --corrupt often --duplicate 1/0 --delay 5 --jitter fast --reorder -1%",
    "rtsw1:eth1 --loss 0",
    "rtsw1:eth1 --delay 20ms",
    "rtsw1:eth1 --reorder 1%",
    "rtsw1:eth1 --delay 1us --jitter 5us",
    "rtsw1:eth1,rtsw1:eth9,ctws1 --loss 1%",
    "leaf*:eth1 --loss 1%",
    "rtsw1:eth9 --clear",
    "rtsw1:eth9 --both --loss 1%",
    "rtsw1:eth9",
)


@pytest.fixture(autouse=True)
def cleared(tiny: Lab) -> Iterator[None]:
    yield
    outages.clear_faults(tiny)


def fault(lab: Lab, *words: str) -> list[dict[str, Any]]:
    """The rows that the verb lists afterwards."""
    done = typed("fault", *words, "--lab", lab.name, "--format", "json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["lab"], data["k"]) == (lab.name, lab.fabric.policy.k)
    return list(data["faults"])


def test_a_fault_is_set_on_one_direction_listed_with_counters_replaced_and_cleared(tiny: Lab) -> None:
    assert fault(tiny) == []
    (row,) = fault(tiny, "rtsw1:eth1", "--loss", "1/256", "--duplicate", "0.5%")
    counts = row.pop("counts")
    peer = tiny.fabric.by_name["rtsw1"].port("eth1").peer_ref
    assert row == {"port": "rtsw1:eth1", "peer": peer, "by": "fault", "fault": {"loss": 1 / 256, "duplicate": 0.005}}
    assert set(counts) == {"packets", "lost", "corrupted", "duplicated", "delayed", "waiting"}
    assert [each["fault"] for each in fault(tiny, "rtsw1:eth1", "--corrupt", "1/100")] == [{"corrupt": 0.01}]
    assert fault(tiny, "--clear") == []
    assert packets.read_faults(tiny) == []


def test_both_sets_and_clears_the_two_directions_of_a_link_and_no_other(tiny: Lab) -> None:
    peer = tiny.fabric.by_name["rtsw1"].port("eth1").peer_ref
    fault(tiny, "rtsw2:eth1", "--loss", "1/100")
    fault(tiny, "rtsw1:eth1", "--both", "--loss", "1/256")
    assert {row["port"] for row in fault(tiny)} == {"rtsw1:eth1", peer, "rtsw2:eth1"}
    fault(tiny, peer, "--both", "--clear")
    assert [row["port"] for row in fault(tiny)] == ["rtsw2:eth1"]


def test_ports_are_names_nodes_and_patterns_and_a_list_shows_those_named(tiny: Lab) -> None:
    rows = fault(tiny, "ctsw*:eth1,host2", "--loss", "1/256")
    assert [row["port"] for row in rows] == ["ctsw1:eth1", "ctsw2:eth1", "host2:eth1"]
    assert [row["port"] for row in fault(tiny, "ctsw1")] == ["ctsw1:eth1"]
    assert fault(tiny, "rtsw1") == []
    assert [row["port"] for row in fault(tiny, "ctsw*", "--clear")] == ["host2:eth1"]
    done = typed("fault", "host2", "--clear", "--lab", tiny.name)
    assert "cleared the faults of 1 port\n" in done.stderr
    assert done.stdout.startswith("no fault of packets is set on any link; set one as in ./inv fault ")


def test_wrong_words_are_explained_and_nothing_is_set(tiny: Lab, golden: Callable[[str, str], None]) -> None:
    said = []
    for words in WRONG:
        done = typed("fault", *words.split(), "--lab", tiny.name)
        assert (done.returncode, done.stdout) == (2, "")
        said.append(f"./inv fault {words}\n{done.stderr}".replace(tiny.name, "tiny"))
    assert packets.read_faults(tiny) == []
    golden("runs/fault_verb.log", "\n".join(said))


@pytest.mark.skipif(not portfaults.missing(), reason="this kernel has sch_netem")
def test_without_netem_a_delay_ends_with_exit_code_3_and_the_place_that_has_it(tiny: Lab) -> None:
    done = typed("fault", "rtsw1:eth1", "--delay", "10us", "--lab", tiny.name)
    assert (done.returncode, done.stdout) == (3, "")
    assert "a delay on a link is not possible: this kernel has no sch_netem" in done.stderr
    assert "--place vm" in done.stderr
    assert fault(tiny) == []
