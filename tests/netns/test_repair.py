"""A running lab that was broken by hand: `up` reports at once what is wrong, and `up --repair` repairs it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError, MachineError
from heddle.checks.validate import validate
from heddle.endpoints.runoptions import run_options
from heddle.lab import convergence, linkstate, outages
from heddle.lab import lifecycle as life
from heddle.lab.convergence import revive
from heddle.lab.facts import known_facts, parts
from heddle.lab.faults.orders import clear, lost_faults, set_kind
from heddle.lab.imported.imported import import_topology
from heddle.lab.lab import Lab
from heddle.lab.linkstate import state_of
from heddle.lab.snapshot import LabPart
from heddle.lab.status import status
from heddle.runs.run import run as run_collective
from heddle.switch.hashing import hashing
from heddle.switch.pfc import control as pfc
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.classes import policies_of
from heddle.views import labtext
from tests.conftest import Up
from tests.listener import Listener
from tests.machine import patience, until
from tests.netns.live import failed, in_node
from tests.own_topologies import mini_clos


@pytest.fixture(scope="module")
def own(lab_name: Callable[[], str], up: Up) -> Iterator[Lab]:
    """A lab of this module alone: its daemons are ended and started again."""
    name = lab_name()
    try:
        yield up(name).lab
    finally:
        life.down(name)


@pytest.fixture
def whole(own: Lab) -> Iterator[Lab]:
    """The module's lab, which a test must leave repaired."""
    yield own
    end = time.monotonic() + patience(60)
    while left := failed(own):  # what a link lost is in the counters until the agent takes it out a second later
        assert set(left) == {"depths"} and time.monotonic() < end, left
        time.sleep(0.2)


def test_up_reports_a_link_that_is_down_before_it_waits_for_routes(whole: Lab, up: Up) -> None:
    in_node(whole, "rtsw1", "ip link set eth1 down")
    steps = Listener()
    said = rf"^rtsw1:eth1  the link is down\n.*hint: \./inv up --repair --name {whole.name} sets it up$"
    with pytest.raises(CheckError, match=said):
        up(whole.name, observer=steps)
    assert "converge" not in steps.begun, "routes are not waited for"
    assert "is down" in status(whole.name)[0].faults[0], "status reports the same"
    done = up(whole.name, repair=True)
    assert done.repaired is not None and not done.created and done.converged
    assert done.repaired.done == ("rtsw1:eth1: link set up",)


def test_everything_that_can_be_repaired_is_repaired_at_once_and_reported(whole: Lab, up: Up) -> None:
    routes = in_node(whole, "host1", "ip route")
    in_node(whole, "host1", "ip link set eth1 down")
    in_node(whole, "rtsw2", "tc qdisc del dev eth2 root")
    in_node(whole, "rtsw2", "tc qdisc del dev eth1 clsact")
    in_node(whole, "ctsw2", "ip -6 route del fe80::/64 dev eth2")
    assert "ctsw2:eth2  the route fe80::/64 is missing" in "\n".join(status(whole.name)[0].faults)
    assert "ctsw2:eth2  the route fe80::/64 is missing" in validate(whole, ["routes"])[1].detail
    (block,) = re.findall(r"ingress_block (\d+)", in_node(whole, "host4", "tc qdisc show dev eth1"))
    in_node(whole, "host4", f"tc filter del block {block} pref 10")
    for node, daemon in (("rtsw1", "zebra"), ("ctsw1", "bgpd")):
        whole.output(node, ["sh", "-c", f"kill -9 $(cat /run/frr/{daemon}.pid)"])
    agent = pfc.alive(whole.name)
    assert agent.agent and agent.keeper
    for pid in (agent.keeper, agent.agent):  # the keeper first: each would start the other again
        os.kill(pid, signal.SIGSTOP)
    # What a `queues set` and a `hashing` leave that were killed after they were recorded.
    with LabQueues.pinned(whole.fabric) as live:
        live.set_policies(policies_of(whole.fabric, own={"ctsw2": replace(whole.fabric.policy.queues, alpha=0.5)}))
    row = hashing.hashing_of(whole.fabric, whole.fabric.by_name["ctsw2"], "e-ecmp")
    hashing.change(whole.name, [(whole.handle("ctsw2"), row)])
    stopped = f"is stopped or frozen (process {agent.agent} or {agent.keeper})"
    assert any(f"the PFC agent does not work: it {stopped}" in fault for fault in status(whole.name)[0].faults)
    assert f"the PFC keeper does not work: it {stopped}" in failed(whole)["pauses"]
    done = up(whole.name, repair=True).repaired
    assert done is not None
    assert done.done == (
        "ctsw2:eth2: route fe80::/64 added",
        "host1:eth1: link set up",
        "rtsw2:eth1, host4:eth1: programs installed again",
        "rtsw2:eth2: queues installed again",
        "the PFC agent and its keeper: started again",
        "ctsw2: hashing set again, as recorded",
        "thresholds of queues set again, as recorded",
        "host1: route 10.0.0.0/8 via 10.0.0.0 dev eth1 added",
        "rtsw1: zebra did not answer; FRR started again",
        "ctsw1: bgpd did not answer; FRR started again",
    )
    assert in_node(whole, "host1", "ip route") == routes, "a host's routes go with its port"
    assert failed(whole) == {}
    result = run_collective(whole, run_options(size="256K", qps=4, iters=2), Silent())
    assert result.wrong == 0 and not result.warnings
    again = up(whole.name, repair=True)
    assert again.repaired is not None and again.repaired.done == again.repaired.left == ()
    assert "nothing to repair" in labtext.up_text(again)


def test_addresses_rules_and_routes_are_as_up_has_set_them(whole: Lab, up: Up) -> None:
    """Each is restored, or removed; a port without IPv6 gets it again before its route."""
    before = in_node(whole, "host1", "ip route"), in_node(whole, "rtsw1", "ip -4 addr")
    in_node(whole, "host1", "ip addr flush dev eth1 scope global")  # and its route
    in_node(whole, "rtsw1", "ip addr add 10.0.1.1/32 dev lo")
    in_node(whole, "rtsw1", "ip rule add pref 7 from 10.0.0.0/8 prohibit")
    in_node(whole, "rtsw2", "ip link set eth3 arp off")
    in_node(whole, "ctsw1", "sysctl -qw net.ipv6.conf.eth1.disable_ipv6=1")
    done = up(whole.name, repair=True).repaired
    assert done is not None
    assert {*done.done} == {
        "host1: addr 10.0.0.1/31 dev eth1 added",
        "host1: route 10.0.0.0/8 via 10.0.0.0 dev eth1 added",
        "rtsw1: addr 10.0.1.1/32 dev lo removed",
        "rtsw1: rule pref 7 from 10.0.0.0/8 prohibit removed",
        "rtsw2:eth3: ARP set to on again",
        "ctsw1: net.ipv6.conf.eth1.disable_ipv6 set again",
    }
    assert (in_node(whole, "host1", "ip route"), in_node(whole, "rtsw1", "ip -4 addr")) == before
    assert failed(whole) == {}


def test_what_cannot_be_repaired_is_an_error(whole: Lab, up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    in_node(whole, "rtsw1", "ip rule add pref 7 blackhole")
    with monkeypatch.context() as patch:
        patch.setattr("heddle.lab.health._addresses", lambda _: [])
        with pytest.raises(
            CheckError, match=r"the rule pref 7 from all blackhole was not set by `up`\n.*down .*up again"
        ):
            up(whole.name, repair=True)
    done = up(whole.name, repair=True).repaired
    assert done is not None and done.done == ("rtsw1: rule pref 7 from all blackhole removed",)


@pytest.mark.deep
def test_an_imported_link_too_small_for_data_packets_is_named_and_repaired(
    tmp_path: Path, runtime: str, name: str
) -> None:
    """Both of its ends have the same MTU."""
    lab = life.up(import_topology(mini_clos(tmp_path), runtime, name), runtime=runtime).lab
    ends = ("leaf-1:eth1", "Spine-1:eth1")
    for node in ("leaf-1", "Spine-1"):
        lab.output(node, ["ip", "link", "set", "eth1", "mtu", "1400"])
    port = lab.fabric.by_name["leaf-1"].port("eth1")
    needed = lab.fabric.policy.ib_mtu + 64
    said = f"leaf-1:eth1  the MTU is 1400, not {port.mtu}; the other end, Spine-1:eth1, has 1400"
    (shown,) = status(name)
    assert not shown.converged and f"{said}; data packets need {needed}" in shown.faults
    assert [each.partition(" ")[0] for each in shown.faults] == [*ends], "and no other link"
    assert {ref for ref in ends if ref in failed(lab)["mtu"]} == {*ends}
    done = life.repair_lab(name).repaired
    assert done is not None and done.done[:2] == tuple(f"{ref}: the MTU set to {port.mtu} again" for ref in ends)
    assert failed(lab) == {}


@pytest.mark.deep
def test_up_and_status_have_one_verdict_on_switches_without_a_configuration(
    tmp_path: Path, runtime: str, name: str
) -> None:
    if runtime != "netns":
        pytest.skip("an image may have a configuration")
    (tmp_path / "daemons").write_text("bgpd=yes\n")
    nodes = "".join(f"    sw{n}: {{binds: [daemons:/etc/frr/daemons]}}\n" for n in (1, 2))
    (tmp_path / "bare.clab.yml").write_text(
        f"name: bare\ntopology:\n  defaults: {{kind: linux}}\n  nodes:\n{nodes}"
        '  links:\n    - endpoints: ["sw1:eth1", "sw2:eth1"]\n'
    )
    done = life.up(import_topology(tmp_path / "bare.clab.yml", runtime, name), runtime=runtime)
    assert done.converged is None and status(name)[0].converged is None
    assert "nothing to converge" in labtext.up_text(done) and len(status(name)[0].gaps) == 2
    done.lab.output("sw1", ["ip", "link", "set", "eth1", "mtu", "1400"])
    with pytest.raises(CheckError, match="the MTU is 1400"):
        life.up(import_topology(tmp_path / "bare.clab.yml", runtime, name), runtime=runtime)
    assert status(name)[0].converged is False


def missing_routes(lab: Lab) -> list[convergence.Gap]:
    wanted = convergence.ExpectedRoutes.of(lab.fabric)
    return convergence.gaps(lab.fabric, lab.snapshot(LabPart.FIBS).fibs, wanted)


@pytest.mark.deep
def test_commands_that_were_entered_in_frr_are_undone_and_named(whole: Lab, up: Up) -> None:
    """`maximum-paths 1` takes next hops from every route; the configuration file of the switch gets it, too."""
    bgp = ["-c", "configure terminal", "-c", "router bgp"]
    family = ["-c", "address-family ipv4 unicast", "-c", "maximum-paths 1", "-c", "end", "-c", "write memory"]
    whole.output("rtsw1", ["vtysh", *bgp, *family])
    until(lambda: len(missing_routes(whole)) >= 1)
    assert "up --repair" in str(known_facts(whole, whole.snapshot(parts(whole)))[0].problem)
    whole.output("ctsw2", ["vtysh", *bgp, "-c", "neighbor eth1 shutdown"])
    done = up(whole.name, repair=True)
    assert done.repaired is not None and done.converged
    assert [line.partition(":")[0] for line in done.repaired.done] == ["rtsw1", "ctsw2"]
    assert "address-family ipv4 unicast / maximum-paths 1" in done.repaired.done[0]
    assert "neighbor eth1 shutdown" in done.repaired.done[1]
    assert failed(whole) == {}
    again = up(whole.name, repair=True)
    assert again.repaired is not None and again.repaired.done == ()


@pytest.mark.long("10 seconds and more")
def test_a_drain_and_a_session_shut_by_a_fault_are_no_commands_by_hand(whole: Lab, up: Up) -> None:
    """Both outlast a restart of FRR for another command."""
    with outages.drain(whole, "ctsw2"):
        set_kind(whole, "bgp-down", ["ctsw1:eth1"], {})
        before = up(whole.name, repair=True).repaired
        assert before is not None and before.done == ()
        for switch in ("ctsw1", "ctsw2"):
            words = ["-c", "configure terminal", "-c", "router bgp", "-c", "timers bgp 7 21"]
            whole.output(switch, ["vtysh", *words])
        done = up(whole.name, repair=True).repaired
        assert done is not None and [line.partition(":")[0] for line in done.done][:2] == ["ctsw1", "ctsw2"]
        assert all("timers bgp 7 21" in line for line in done.done[:2])
        assert "ctsw2" in state_of(whole).drained
        assert not lost_faults(whole)
        clear(whole, ["ctsw1:eth1"])


@pytest.mark.long("10 seconds and more")
def test_a_stopped_daemon_is_ended_and_started_again(whole: Lab, up: Up) -> None:
    whole.output("ctsw2", ["sh", "-c", "kill -STOP $(cat /run/frr/bgpd.pid)"])
    missing = status(whole.name)[0].missing_sessions
    assert [(each.a.ref, each.b.state) for each in missing] == [
        ("rtsw1:eth2", "no answer"),
        ("rtsw2:eth2", "no answer"),
    ]
    assert {each.why for each in missing} == {"bgpd of ctsw2 does not answer"}
    with pytest.raises(CheckError, match=r"ctsw2  bgpd does not answer\n.*--repair"):
        up(whole.name)
    done = up(whole.name, repair=True).repaired
    assert done is not None and done.done == ("ctsw2: bgpd did not answer; FRR started again",)


@pytest.mark.deep
def test_links_taken_down_by_heddle_are_left_down_and_named(whole: Lab, up: Up) -> None:
    with outages.link_down(whole, "rtsw1:eth1"), outages.drain(whole, "ctsw2"):
        in_node(whole, "rtsw2", "ip link set eth3 down")
        with pytest.raises(CheckError, match=r"rtsw1:eth1  the link is down on purpose"):
            up(whole.name)
        done = up(whole.name, repair=True)
        assert done.repaired is not None and not done.converged
        assert done.repaired.done == ("rtsw2:eth3: link set up",)
        assert [line.split(":")[0] for line in done.repaired.left] == ["rtsw1", "ctsw2"]
        assert "left      rtsw1:eth1: the link is down on purpose" in labtext.up_text(done)
        assert labtext.up_json(done)["left"] == list(done.repaired.left)
    done = up(whole.name, repair=True)
    assert done.repaired is not None and done.converged and done.repaired.left == ()


@pytest.mark.deep
def test_a_session_that_is_missing_is_named_first(whole: Lab, up: Up) -> None:
    asn = whole.fabric.by_name["rtsw1"].asn
    configure = ["vtysh", "-d", "bgpd", "-c", "configure terminal", "-c", f"router bgp {asn}", "-c"]
    heard = Listener()
    whole.output("rtsw1", [*configure, "neighbor eth1 shutdown"])
    try:
        until(lambda: len(missing_routes(whole)) >= 1)
        with pytest.raises(CheckError) as caught:
            up(whole.name, observer=heard, timeout=2.0)
        assert "no BGP session: rtsw1:eth1 (Idle (Admin)) - ctsw1:eth1" in heard.warnings[0]
        first = caught.value.problems[0]
        assert (first.what, "rtsw1:eth1" in first.why) == ("BGP", True), first
        # The reason that is shown meanwhile: the first gaps, and their BGP states.
        assert "rtsw1: 10.0.1.0/24 has no next hop over eth1 to ctsw1 (BGP: Idle" in heard.reasons[-1]
        done = revive(whole.daemons, whole.handles(), ["rtsw1:eth1", "rtsw1:eth2"])
        assert done == ["rtsw1:eth1: its BGP session stayed in Idle (Admin); restarted"]
        in_node(whole, "ctsw1", "ip -6 route del fe80::/64 dev eth1")
        done = revive(whole.daemons, whole.handles(), ["rtsw1:eth1"])
        assert done == ["ctsw1:eth1: its route fe80::/64 was missing; added"]
    finally:
        whole.output("rtsw1", [*configure, "no neighbor eth1 shutdown"])
        linkstate.wait(whole)


@pytest.mark.deep
def test_nodes_ports_and_programs_that_are_gone_need_down_and_up(name: str, up: Up, runtime: str) -> None:
    lab = up(name).lab
    down_up = rf"hint: \./inv down {name}, then up again: this cannot be repaired"
    shutil.rmtree(hashing.PINS / name / "rtsw1")
    with pytest.raises(MachineError, match=rf"hash is missing: it was removed\n.*{down_up}"):
        up(name, repair=True)
    in_node(lab, "host2", "ip link del eth1")
    with pytest.raises(MachineError, match=rf"host2:eth1  the port is missing: it was removed\n.*{down_up}"):
        up(name, repair=True)
    if runtime == "netns":
        subprocess.run(["ip", "netns", "del", lab.handle("ctsw1").netns.name], check=True)
        with pytest.raises(MachineError, match=rf"ctsw1  its namespace is missing.*\n.*{down_up}"):
            up(name, repair=True)
