"""Missing parts of a machine are reported all at once; how a port keeps the order of its packets."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from heddle.base.problems import MachineError
from heddle.fabric.shapes import build
from heddle.host import limits
from heddle.host import preflight as room
from heddle.host.delivery import Delivery, choose
from heddle.host.preflight import preflight
from heddle.kernel.inorder import PortDelivery, cpu_for, cpu_mask, cpus_of, fault, online_cpus
from heddle.spec.routingpolicy import RoutingPolicy
from heddle.spec.shapes.clos import ClosSpec
from tests.answers import Answers

LARGE = build(ClosSpec(name="large", racks=128, ctsw=16))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has everything, as files to be taken away."""
    for key, value in {
        "net/ipv4/fib_multipath_hash_seed": "0",
        "net/ipv4/neigh/default/gc_thresh3": "1024",
        "net/ipv6/neigh/default/gc_thresh3": "1024",
        "kernel/pid_max": "32768",
    }.items():
        path = tmp_path / "sys" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value)
    for daemon in ("zebra", "bgpd"):
        (tmp_path / "frr").mkdir(exist_ok=True)
        (tmp_path / "frr" / daemon).write_text("")
    (tmp_path / "net/stat").mkdir(parents=True)
    for table in ("arp_cache", "ndisc_cache"):
        (tmp_path / "net/stat" / table).write_text(f"entries  allocs\n{100:08x} 00000200\n")
    (tmp_path / "status").write_text("Name:\tx\nCapEff:\t000001ffffffffff\n")
    monkeypatch.setattr(room, "STATUS", tmp_path / "status")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    monkeypatch.setattr(room, "SYSCTLS", tmp_path / "sys")
    monkeypatch.setattr(room, "FRR_DIRS", (tmp_path / "frr",))
    monkeypatch.setattr(limits, "HERE", limits.MachineLimits(tmp_path, tmp_path / "run", tmp_path / "parameters"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")
    return tmp_path


def small(ecmp: Any = "flow") -> ClosSpec:
    return ClosSpec(name="small", racks=2, ctsw=2, routing=RoutingPolicy(ecmp=ecmp))


def test_a_fabric_passes_where_the_machine_has_everything_or_up_can_raise_it(machine: Path) -> None:
    preflight(build(small()))
    # A fabric that needs more neighbours passes where up can raise the limit.
    preflight(LARGE)
    # A kernel without seed runs e ecmp only.
    (machine / "sys/net/ipv4/fib_multipath_hash_seed").unlink()
    preflight(build(small("e-ecmp")))
    with pytest.raises(MachineError, match=r"routing\.ecmp=e-ecmp"):
        preflight(build(small()))


def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sysctls of the machine as in a container without --privileged."""
    monkeypatch.setattr(limits.MachineLimits, "writable", lambda self, key: False)


def test_limits_that_cannot_be_raised_come_with_their_sysctl(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_only(monkeypatch)
    (machine / "sys/kernel/pid_max").write_text("3000")
    with pytest.raises(MachineError) as caught:
        preflight(LARGE)
    said = str(caught.value)
    # 4 for each of 256 host links and of 2,048 fabric links, and 100 that are there.
    assert "net.ipv4.neigh.default.gc_thresh3 = 1024 is too low: 1124 neighbours are needed" in said
    assert "cannot raise it: the sysctl is read-only" in said
    assert "sysctl -w net.ipv6.neigh.default.gc_thresh3=32768" in said
    assert "sysctl -w kernel.pid_max=4096" in said


def test_hosts_of_an_ipv6_fabric_are_neighbours_of_ipv6(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_only(monkeypatch)
    hosts = build(ClosSpec(name="wide", family="ipv6", racks=4, ctsw=1, hosts_per_rack=64))
    with pytest.raises(MachineError) as caught:
        preflight(hosts)
    # 4 for each of 256 host links and of 4 fabric links, and 100 that are there.
    assert "net.ipv6.neigh.default.gc_thresh3 = 1024 is too low: 1140 neighbours are needed" in str(caught.value)
    assert "net.ipv4" not in str(caught.value)


def test_missing_capabilities_and_daemons_are_named(machine: Path) -> None:
    (machine / "status").write_text("CapEff:\t00000000a80425fb\n")  # Docker's own choice
    with pytest.raises(MachineError, match=r"not have CAP_NET_ADMIN, CAP_SYS_ADMIN here\n.*--cap-add NET_ADMIN"):
        preflight(build(small()))
    (machine / "status").unlink()
    preflight(build(small()))
    # Frr without bgpd is named.
    (machine / "frr/bgpd").unlink()
    with pytest.raises(MachineError, match="bgpd is missing"):
        preflight(build(small()))


def test_limits_of_the_shell_and_of_namespaces_are_reported(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "sys/user").mkdir()
    (machine / "sys/user/max_net_namespaces").write_text("7")
    with pytest.raises(MachineError, match=r"user\.max_net_namespaces = 7 is too low: 8 network namespaces are needed"):
        preflight(build(small()))
    # Limits of the shell are reported.
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 40))
    with pytest.raises(MachineError) as caught:
        preflight(build(small()))
    said = str(caught.value)
    assert "ulimit -u = 40 is too low: 48 processes and threads are needed" in said
    assert "ulimit -n = 40 is too low: 256 open files are needed" in said
    assert "ulimit -n 256" in said


def test_all_problems_are_reported_together(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda program: None)
    monkeypatch.setattr(room, "FRR_DIRS", ())
    read_only(monkeypatch)
    with pytest.raises(MachineError) as caught:
        preflight(LARGE)
    said = str(caught.value)
    for part in ("need root", "apt-get install iproute2", "apt-get install frr", "gc_thresh3"):
        assert part in said
    assert caught.value.exit_code == 3


ZEBRA = """#!/bin/sh
echo "zebra version 8.4.4
configured with:
	'--build=x86_64' {}'--enable-user=frr'"
"""


@pytest.mark.parametrize(("flag", "limit"), [("'--enable-multipath=8' ", 8), ("", 16)])
def test_an_frr_that_was_built_for_fewer_next_hops_is_named_before_anything_is_created(
    machine: Path, flag: str, limit: int
) -> None:
    zebra = machine / "frr/zebra"
    zebra.write_text(ZEBRA.format(flag))
    zebra.chmod(0o755)
    room._zebra_says.cache_clear()
    try:
        assert room.frr_release() == (8, 4, 4)
        preflight(build(ClosSpec(name="narrow", racks=2, ctsw=limit)))
        wide = build(ClosSpec(name="wide", racks=2, ctsw=limit + 1))
        with pytest.raises(MachineError) as caught:
            preflight(wide)
        why = f"zebra was built for {limit} next hops a route, and this fabric has {limit + 1}"
        assert why in str(caught.value)
        assert f"--enable-multipath={limit + 1}" in str(caught.value)
        preflight(wide, daemons=False)  # the image has its own FRR
    finally:
        room._zebra_says.cache_clear()


ONE, TWO = frozenset({1}), frozenset({0, 1})


def test_a_kernel_release_decides_how_ports_keep_order(answers: Answers) -> None:
    answers(choose)


def test_ports_with_successive_numbers_are_spread_over_all_cpus() -> None:
    assert [cpu_for(number, [0, 2, 5]) for number in range(1, 7)] == [2, 5, 0, 2, 5, 0]
    assert cpu_for(7, [3]) == 3


def test_a_cpu_is_written_as_the_kernels_bitmap_and_read_back(answers: Answers) -> None:
    def mask(cpu: int) -> str:
        assert cpus_of(f"{cpu_mask(cpu)}\n") == {cpu}
        return cpu_mask(cpu)

    answers(mask)


def test_bitmaps_and_lists_of_the_kernel_are_read() -> None:
    assert cpus_of("0\n") == frozenset()
    assert cpus_of("00000001,00000003\n") == {0, 1, 32}
    assert online_cpus("0-2,8\n") == {0, 1, 2, 8}
    assert online_cpus("0\n") == {0}


def test_a_port_that_may_deliver_out_of_order_is_found_by_its_settings(answers: Answers) -> None:
    def wrong(gro: bool, sizes: list[int], rps: list[list[int]], delivery: str) -> str:
        port = PortDelivery(gro=gro, gro_sizes=tuple(sizes), rps=tuple(map(frozenset, rps)))
        return fault(port, Delivery[delivery], {0, 1})

    answers(wrong)
