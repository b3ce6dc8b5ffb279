"""More than 20,000 choices of this kernel, asked and sent, are as predicted; and what the self-test says of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from heddle.fabric.hashmodes import POLICY_CUSTOM
from heddle.kernel.fib import read_fib
from heddle.kernel.namespace import NETNS_DIR, NodeHandle
from heddle.predict.forwarding import FlowArrays, forwarding_of
from heddle.predict.hashes import kernel_hash
from heddle.predict.selftest import MAX_PACKETS, Trial, examine, some_flows, trial
from tests.marks import deep

WIDTHS = (2, 3, 4, 5, 7, 8, 11, 16, 23, 32)
FLOWS = 128


@pytest.fixture(scope="module")
def router() -> Iterator[Trial]:
    """A router with as many ports as a group may have here; the module's thread stands in its namespace."""
    with trial(max(WIDTHS)) as made:
        yield made


def predicted_ports(flows: FlowArrays, version: int, seed: int, policy: int, fields: int) -> list[int]:
    """The port of each flow by the table as it is read now and our arithmetic."""
    fib = read_fib(NodeHandle("router", Path("/proc/thread-self/ns/net")), 6 if version == 6 else 4)
    ((prefix, hops),) = [(p, hops) for p, hops in fib.routes.items() if len(hops) > 1]
    dealt = fib.buckets.get(prefix)
    taken = [hops[at] for at in dealt] if dealt else [hop for hop in hops if not hop.dead]
    ports = [int(hop.port.removeprefix("out")) for hop in taken]
    group = (ports, [1] * len(dealt) if dealt else [hop.weight for hop in taken], dealt is not None)
    names = [f"router:out{i}" for i in range(max(WIDTHS))]
    forwarding = forwarding_of(["router"], names, [-1] * len(names), np.zeros((1, 1), np.int32), [group])
    value = kernel_hash(flows, seed, policy, fields) >> np.uint32(1)
    return [int(port) for port in forwarding.choose(np.zeros(len(flows), dtype=np.int32), value)]


def answers(router: Trial, flows: FlowArrays, version: int, policy: int) -> list[int]:
    """The kernel's: asked, or by packets where the question would be answered for a packet of the machine's own."""
    asked = router.send if (version, policy) == (6, POLICY_CUSTOM) else router.ask
    return [int(port) for port in asked(flows)]


@pytest.mark.parametrize("version", [4, deep(6)])
def test_over_policies_fields_seeds_weights_widths_and_failures_the_kernel_chooses_as_predicted(
    router: Trial, version: int
) -> None:
    chance = random.Random(version)
    pairs = 0
    for width in WIDTHS:
        for weights in ([1] * width, [chance.randint(1, 16) for _ in range(width)]):
            router.route(version, weights)
            dead = chance.sample(range(width), (width - 1) // 4)
            for down in (False, True):
                for port in dead if down else ():
                    router.link(port, up=False)
                for policy, fields in ((0, 0x37), (1, 0x37), (3, 0x37), (3, chance.randint(1, 0x3F))):
                    seed = chance.randint(1, 2**32 - 1)
                    router.sysctl(version, policy, fields, seed)
                    flows = some_flows(FLOWS, version, seed)
                    expected = predicted_ports(flows, version, seed, policy, fields)
                    case = f"policy {policy}, fields {fields:#x}, seed {seed}, weights {weights}, {dead} down: {down}"
                    assert answers(router, flows, version, policy) == expected, case
                    assert down is False or not set(expected) & set(dead), case
                    pairs += FLOWS
            for port in dead:
                router.link(port, up=True)
    assert pairs >= 20_000


@pytest.mark.deep
@pytest.mark.parametrize("version", [4, 6])
def test_resilient_groups_of_the_kernel_are_predicted_from_their_buckets(router: Trial, version: int) -> None:
    router.sysctl(version, 1, 0x37, 77)
    for ports, count in ((4, 32), (7, 128), (16, 64)):
        homes = router.buckets(version, count, ports)
        assert len(homes) == count and set(homes) == set(range(ports))
        flows = some_flows(MAX_PACKETS, version, count)
        expected = predicted_ports(flows, version, 77, 1, 0x37)
        assert router.ask(flows).tolist() == expected
        assert router.send(flows).tolist() == expected


def test_the_self_test_agrees_with_this_kernel_and_with_no_other_arithmetic() -> None:
    found = examine()
    assert found.state == "agrees" and found.asked >= 500, found.text()
    for wrong in (
        lambda flows, seed, policy, fields: kernel_hash(flows, seed + 1, policy, fields),
        lambda flows, seed, policy, fields: (
            kernel_hash(flows, seed, policy, fields) ^ np.uint32(flows.ipv6) << np.uint32(31)
        ),
        lambda flows, seed, policy, fields: kernel_hash(flows, seed, 1 if policy == 3 else policy, fields),
    ):
        found = examine(wrong)
        assert found.differs and "flows with IPv" in found.text()


def test_a_trial_leaves_no_name_and_brings_its_thread_home_whatever_happens_in_it() -> None:
    def where() -> int:
        return Path("/proc/thread-self/ns/net").stat().st_ino

    home = where()
    with pytest.raises(ZeroDivisionError), trial(2) as made:
        there = where()
        made.route(4, [1, 1])
        named = {path.stat().st_ino for path in NETNS_DIR.glob("*") if path.exists()}  # a container may have ended
        raise ZeroDivisionError
    assert where() == home != there
    assert there not in named
