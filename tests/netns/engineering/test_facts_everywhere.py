"""Every fact of facts.py, on a live lab with that fault, is in `status`, in a run's warning, in `validate`, and in
`diagnose`; each names the same place. A consumer that leaves a fact out fails here.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from os import kill
from typing import Final

import pytest

from heddle.base.events import Silent
from heddle.base.problems import Problem
from heddle.checks.validate import CHECKS, validate
from heddle.host.delivery import chosen
from heddle.kernel import inorder
from heddle.lab import agents, fabricstate, facts, linkstate, spread
from heddle.lab import status as statuses
from heddle.lab.fabricstate import FabricReading, FabricState
from heddle.lab.facts import FACTS
from heddle.lab.faults import record
from heddle.lab.health import repair
from heddle.lab.lab import Lab
from heddle.lab.outages import set_fault
from heddle.spec.impairments import LinkFault
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.classes import policies_of
from heddle_plugins.attach.attaching import attach, detach
from heddle_plugins.engineering.diagnosis import case
from heddle_plugins.engineering.diagnosis.diagnosis import CAUSES, diagnose
from tests import incidents
from tests.machine import until
from tests.netns.attach.endpoints import ip, namespaces
from tests.netns.live import in_node

Break = Callable[[Lab], AbstractContextManager[object]]
PORT: Final = "rtsw1:eth1"


@contextmanager
def repaired(lab: Lab, node: str, words: str) -> Iterator[None]:
    in_node(lab, node, words)
    try:
        yield
    finally:
        repair(lab, Silent())
        linkstate.wait(lab)


def by_command(node: str, words: str) -> Break:
    return lambda lab: repaired(lab, node, words)


@contextmanager
def frozen_agent(lab: Lab) -> Iterator[None]:
    state = agents.alive(lab)
    pids = [pid for pid in (state.agent, state.keeper) if pid]
    for pid in pids:
        kill(pid, signal.SIGSTOP)
    until(lambda: agents.alive(lab).fault("agent"))
    try:
        yield
    finally:
        for pid in pids:
            kill(pid, signal.SIGCONT)
        until(lambda: not agents.alive(lab).fault("agent"))


@contextmanager
def learned(lab: Lab) -> Iterator[None]:
    """The MTU of a link was small while hosts sent full packets; it is right again, and the hosts remember."""
    for ref in ("ctsw1:eth1", "ctsw2:eth1"):
        in_node(lab, ref.partition(":")[0], "ip link set eth1 mtu 1500")
    validate(lab, {"reachability"})
    for ref in ("ctsw1:eth1", "ctsw2:eth1"):
        in_node(lab, ref.partition(":")[0], "ip link set eth1 mtu 4200")
    try:
        yield
    finally:
        repair(lab, Silent())


@contextmanager
def in_maps(lab: Lab, *, classes: bool) -> Iterator[None]:
    """Thresholds of one switch, or the class of data, written into the maps past Heddle."""
    queues = lab.fabric.policy.queues
    with LabQueues.pinned(lab.fabric) as live:
        if classes:
            live.set_classes(replace(queues, dscp={24: 0}))
        else:
            own = replace(queues, pfc=replace(queues.pfc, xoff=queues.pfc.xoff + 1000))
            live.set_policies(policies_of(lab.fabric, own={"rtsw1": own}))
    try:
        yield
    finally:
        repair(lab, Silent())


@contextmanager
def one_path(lab: Lab) -> Iterator[None]:
    with incidents.few_paths_at(lab, "rtsw1"):
        yield


@contextmanager
def unheard(lab: Lab) -> Iterator[None]:
    """One machine has no shards, so the reading of their tunnels is made up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facts, "lost_carriers", lambda _: [Problem("shard b", "shard a at 10.1.1.1", "is not heard")])
        yield


@contextmanager
def without_gro(lab: Lab) -> Iterator[None]:
    on = inorder.read(lab.handle("host1").netns, ["eth1"], chosen().delivery)["eth1"].gro
    inorder.set_gro(lab.handle("host1").netns, ["eth1"], on=not on)
    try:
        yield
    finally:
        repair(lab, Silent())


@contextmanager
def unrecorded_loss(lab: Lab) -> Iterator[None]:
    """A link loses packets, and the file with its fault was removed."""
    set_fault(lab, [PORT], LinkFault(loss=0.01))
    record.write(lab.dir, ())
    try:
        yield
    finally:
        repair(lab, Silent())


def incident(kind: str, node_or_port: str) -> Break:
    def around(lab: Lab) -> AbstractContextManager[object]:
        for seed in range(400):
            found = getattr(incidents, kind)(lab, random.Random(seed))
            if node_or_port in found.objects:
                return found.around()  # type: ignore[no-any-return]
        raise AssertionError(f"no {kind} at {node_or_port}")

    return around


@contextmanager
def device_down(lab: Lab) -> Iterator[None]:
    with namespaces("heddlegray"):
        attach(lab, ["host1"], "netns", ["heddlegray"])
        try:
            ip("heddlegray", "link set hd-host1 down")
            yield
        finally:
            detach(lab, [])


# Kind -> where the fact is, or the words of one that concerns the lab; and how it comes about.
BREAKS: Final[Mapping[str, tuple[str, Break]]] = {
    "daemons": ("ctsw1", incident("frozen", "ctsw1")),
    "agent": ("the PFC agent", frozen_agent),
    "tunnel": ("shard b", unheard),
    "link": (PORT, by_command("rtsw1", "ip link set eth1 down")),
    "mtu": (PORT, by_command("rtsw1", "ip link set eth1 mtu 1500")),
    "path-mtu": ("host3", learned),
    "mac": ("rtsw1:eth3", by_command("rtsw1", "ip link set eth3 address 02:00:00:00:00:77")),
    "neighbour": (
        "rtsw2:eth3",
        by_command("rtsw2", "ip neigh replace 10.0.1.1 lladdr 02:00:00:00:00:99 dev eth3 nud permanent"),
    ),
    "arp": ("rtsw2:eth3", by_command("rtsw2", "ip link set eth3 arp off")),
    "address": ("host1:eth1", by_command("host1", "ip addr del 10.0.0.1/31 dev eth1")),
    "port": (PORT, by_command("rtsw1", "tc qdisc del dev eth1 root")),
    "programs": (PORT, by_command("rtsw1", "tc qdisc del dev eth1 clsact")),
    "thresholds": ("rtsw1", lambda lab: in_maps(lab, classes=False)),
    "classes": ("DSCP 24 (data)", lambda lab: in_maps(lab, classes=True)),
    "drained": ("ctsw1", incident("drained", "ctsw1")),
    facts.SESSION: (PORT, incident("session_down", PORT)),
    "link-route": (PORT, by_command("rtsw1", "ip -6 route del fe80::/64 dev eth1")),
    "route": ("rtsw1", incident("misrouted", "rtsw1")),
    facts.NEXT_HOPS: ("rtsw1", one_path),
    "hashing": ("rtsw1", incident("wrong_seed", "rtsw1")),
    "sysctl": ("rtsw1", by_command("rtsw1", "sysctl -qw net.ipv4.conf.default.rp_filter=1")),
    "offloads": ("host1:eth1", by_command("host1", "ethtool -K eth1 tx on")),
    "order": ("host1:eth1", without_gro),
    facts.RECORDED: (PORT, unrecorded_loss),
    "attached": ("host1:eth1", device_down),
}
_MAC: Final = "lladdr 02:00:00:00:00:99"
# More faults of some kinds: kind, where the fact is, words that it has, and how it comes about.
MORE: Final[tuple[tuple[str, str, str, str, str], ...]] = (
    ("neighbour", "rtsw2:eth3", "02:00:00:00:00:99", "rtsw2", f"ip neigh replace 10.0.1.1 {_MAC} dev eth3 nud noarp"),
    ("address", "host1", "the route 10.0.0.0/8 via 10.0.0.0", "host1", "ip route del 10.0.0.0/8"),
    ("address", "rtsw1", "the address 10.0.1.1/32 dev lo", "rtsw1", "ip addr add 10.0.1.1/32 dev lo"),
    ("address", "rtsw1", "pref 100 from all blackhole", "rtsw1", "ip rule add pref 100 blackhole"),
    ("address", "rtsw1", "pref 32766", "rtsw1", "ip rule del pref 32766"),
    ("address", "rtsw1", "local 10.0.1.1/32", "rtsw1", "ip route add local 10.0.1.1 dev lo table local proto static"),
    ("address", "host1", "blackhole 10.0.1.0/24", "host1", "ip route add blackhole 10.0.1.0/24"),
    ("sysctl", "rtsw2", "net.ipv4.conf.eth3.forwarding", "rtsw2", "sysctl -qw net.ipv4.conf.eth3.forwarding=0"),
    ("sysctl", "rtsw1", "net.ipv6.conf.eth1.disable_ipv6", "rtsw1", "sysctl -qw net.ipv6.conf.eth1.disable_ipv6=1"),
    ("mtu", PORT, "data packets need 4160", "rtsw1", "ip link set eth1 mtu 1500"),
    ("arp", PORT, "is off", "rtsw1", "ip link set eth1 arp off"),
)  # fmt: skip


def in_status(lab: Lab, kind: str) -> str:
    found = statuses.status(lab.name)[0]
    assert not found.converged
    return "; ".join([*found.faults, *found.gaps, *(each.text() for each in found.missing_sessions)])


def in_run(lab: Lab, kind: str) -> str:
    """What a run reads of the lab before its first packet, and warns of."""
    reading = FabricReading.of(lab, lab.snapshot(fabricstate.state_parts(lab)))
    assert not reading.converged
    return "; ".join([*FabricState(reading, reading).warnings(), *reading.faults, *reading.gaps])


def in_validate(lab: Lab, kind: str) -> str:
    (_, result) = validate(lab, {FACTS[kind].check})
    return "" if result.ok else result.detail


def in_diagnose(lab: Lab, kind: str) -> str:
    probes = Silent() if kind == facts.RECORDED else None  # a diagnosis reads no record: it finds that fault by probes
    found = diagnose(None, lab, probes)
    assert found.fault
    rows = [each for each in found.findings if each.cause in FACTS[kind].causes]
    return "; ".join(f"{each.object} {each.what} {line.text}" for each in rows for line in each.evidence)


CONSUMERS: Final[Mapping[str, Callable[[Lab, str], str]]] = {
    "status": in_status, "run": in_run, "validate": in_validate, "diagnose": in_diagnose,
}  # fmt: skip


def test_every_fact_has_a_check_a_cause_and_a_fault_here() -> None:
    assert BREAKS.keys() == FACTS.keys()
    assert {each.check for each in FACTS.values()} <= CHECKS.keys()
    assert {name for each in FACTS.values() for name in each.causes} <= CAUSES.keys()


@pytest.mark.deep
@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=pytest.mark.needs("ethtool") if each == "offloads" else ()) for each in FACTS]
)
def test_a_fact_is_in_all_four(tiny: Lab, kind: str) -> None:
    where, broken = BREAKS[kind]
    assert not facts.facts(tiny, tiny.snapshot(facts.parts(tiny)))
    with broken(tiny):
        until(lambda: any(each.kind == kind for each in facts.facts(tiny, tiny.snapshot(facts.parts(tiny)))))
        texts = {name: consumer(tiny, kind) for name, consumer in CONSUMERS.items()}
    assert {name for name, text in texts.items() if where not in text} == set(), texts
    until(lambda: not facts.facts(tiny, tiny.snapshot(facts.parts(tiny))))


def test_a_lab_that_several_processes_read_is_the_same(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    one = tiny.snapshot(facts.parts(tiny))
    monkeypatch.setattr(spread, "_LEAST_PORTS", 1)
    now = tiny.snapshot(facts.parts(tiny))
    assert [*now.nodes] == [*one.nodes]
    for part in (
        "fibs", "hashing", "epochs", "shapers", "programs", "links", "addresses", "sessions", "drained", "shut",
        "silent", "down",
    ):  # fmt: skip
        assert getattr(now, part) == getattr(one, part)
    with repaired(tiny, "rtsw2", "sysctl -qw net.ipv4.conf.eth3.forwarding=0"):
        in_node(tiny, "rtsw2", "ip link set dev eth3 mtu 2000")  # a fact of the other process
        (found,) = facts.wrong_sysctls(tiny).problems
        kinds = [each.kind for each in facts.facts(tiny, tiny.snapshot(facts.parts(tiny)))]
    assert (found.where, found.what, found.why) == ("rtsw2", "net.ipv4.conf.eth3.forwarding", "is 0, not 1")
    assert [kind for kind in facts.FACTS if kind in kinds] == kinds == ["mtu", "sysctl"]


@pytest.mark.long("in the gate: every kind has one fault, test_a_fact_is_in_all_four")
@pytest.mark.parametrize(("kind", "where", "words", "node", "command"), MORE)
def test_another_fault_of_a_kind_is_in_all_four_and_is_repaired(
    tiny: Lab, kind: str, where: str, words: str, node: str, command: str
) -> None:
    with repaired(tiny, node, command):
        texts = {name: consumer(tiny, kind) for name, consumer in CONSUMERS.items()}
    assert {name for name, text in texts.items() if where not in text or words not in text} == set(), texts
    until(lambda: not facts.facts(tiny, tiny.snapshot(facts.parts(tiny))))


# Where each consumer gets its facts: what leaves one out must be seen.
SOURCES: Final = {
    "status": (statuses, "known_facts"), "run": (facts, "facts"), "validate": (facts, "facts"),
    "diagnose": (case, "facts"),
}  # fmt: skip


@pytest.mark.deep
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_a_consumer_that_leaves_a_fact_out_is_seen(tiny: Lab, consumer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name = SOURCES[consumer]
    every = getattr(module, name)

    def fewer(*args: object) -> object:
        return tuple(each for each in every(*args) if each.kind != "mtu")

    where, broken = BREAKS["mtu"]
    with broken(tiny):
        assert where in CONSUMERS[consumer](tiny, "mtu")
        monkeypatch.setattr(module, name, fewer)
        try:
            text = CONSUMERS[consumer](tiny, "mtu")
        except AssertionError:  # without it the lab looks converged
            text = ""
        assert where not in text
        monkeypatch.undo()
