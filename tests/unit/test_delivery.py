"""How a port keeps the order of its packets: the choice for a kernel, the CPU of a port, and what is named as wrong."""

from __future__ import annotations

import pytest

from heddle.host.delivery import Delivery, choose
from heddle.kernel.inorder import PortDelivery, cpu_for, cpu_mask, cpus_of, fault, online_cpus

ONE, TWO = frozenset({1}), frozenset({0, 1})


@pytest.mark.parametrize(
    ("release", "delivery", "reason"),
    [
        ("5.15.0-91-generic", Delivery.RPS, "share an ECMP next hop"),
        ("6.6.0-rc1", Delivery.RPS, "can lose packets in its receive ring"),
        ("6.18.44", Delivery.NAPI, "a full receive ring of a veth stops the sender"),
        ("an unreadable release", Delivery.RPS, "share an ECMP next hop"),
    ],
)
def test_a_kernel_release_decides_how_ports_keep_order(release: str, delivery: Delivery, reason: str) -> None:
    chosen = choose(release)
    assert chosen.delivery is delivery
    assert reason in chosen.reason


def test_ports_with_successive_numbers_are_spread_over_all_cpus() -> None:
    assert [cpu_for(number, [0, 2, 5]) for number in range(1, 7)] == [2, 5, 0, 2, 5, 0]
    assert cpu_for(7, [3]) == 3


@pytest.mark.parametrize(
    ("cpu", "mask"), [(0, "1"), (5, "20"), (31, "80000000"), (32, "1,00000000"), (70, "40,00000000,00000000")]
)
def test_a_cpu_is_written_as_the_kernels_bitmap_and_read_back(cpu: int, mask: str) -> None:
    assert cpu_mask(cpu) == mask
    assert cpus_of(mask + "\n") == {cpu}


def test_bitmaps_and_lists_of_the_kernel_are_read() -> None:
    assert cpus_of("0\n") == frozenset()
    assert cpus_of("00000001,00000003\n") == {0, 1, 32}
    assert online_cpus("0-2,8\n") == {0, 1, 2, 8}
    assert online_cpus("0\n") == {0}


@pytest.mark.parametrize(
    ("found", "delivery", "why"),
    [
        (PortDelivery(gro=True, gro_sizes=(1, 1), rps=()), Delivery.NAPI, ""),
        (PortDelivery(gro=False, gro_sizes=(1, 1), rps=()), Delivery.NAPI, "has GRO off"),
        (PortDelivery(gro=True, gro_sizes=(1, 65536), rps=()), Delivery.NAPI, "has gro_max_size 1 and 65536, not 1"),
        (PortDelivery(gro=True, gro_sizes=(), rps=()), Delivery.NAPI, "has gro_max_size unknown, not 1"),
        (PortDelivery(gro=False, gro_sizes=(), rps=(ONE,)), Delivery.RPS, ""),
        (PortDelivery(gro=True, gro_sizes=(), rps=(ONE,)), Delivery.RPS, "has GRO on"),
        (PortDelivery(gro=False, gro_sizes=(), rps=(TWO,)), Delivery.RPS, "does not have exactly one CPU in rps_cpus"),
        (PortDelivery(gro=False, gro_sizes=(), rps=()), Delivery.RPS, "does not have exactly one CPU in rps_cpus"),
        (PortDelivery(gro=False, gro_sizes=(), rps=(frozenset({7}),)), Delivery.RPS, "has the offline CPU 7"),
    ],
)
def test_a_port_that_may_deliver_out_of_order_is_found_by_its_settings(
    found: PortDelivery, delivery: Delivery, why: str
) -> None:
    said = fault(found, delivery, {0, 1})
    assert said.startswith(why) and bool(said) == bool(why)
