"""An imported OSPF network: the reason while it converges, and what its configuration decides."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.base.problems import CheckError
from heddle.base.process import run
from heddle.checks.validate import CheckResult, validate
from heddle.lab import lifecycle as life
from heddle.lab.imported.imported import import_topology
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from tests.listener import Listener
from tests.machine import patience

NODES = """name: ring
topology:
  defaults: {kind: linux}
  groups:
    routers:
      binds: ["daemons:/etc/frr/daemons", "__clabNodeName__.conf:/etc/frr/frr.conf"]
  nodes:
    r1: {group: routers}
    r2: {group: routers}
    r3: {group: routers}
    h1: {exec: [ip addr add 10.1.1.2/24 dev eth1, ip route add 10.0.0.0/8 via 10.1.1.1]}
    h2:
      exec: [ip addr add 10.1.2.2/24 dev eth1, ip route add 10.0.0.0/8 via 10.1.2.1]
  links:
    - endpoints: ["r1:eth1", "r2:eth1"]
    - endpoints: ["r1:eth2", "r3:eth1"]
    - endpoints: ["r1:eth3", "h1:eth1"]
    - endpoints: ["r2:eth3", "h2:eth1"]
"""
IPV6, IPV4 = "net.ipv6.conf.all.forwarding", "net.ipv4.ip_forward"
DEAD_S = round(patience(40))  # until a designated router is elected; the test ends before that
NO_IPV6 = "net.ipv6.conf.all.disable_ipv6"


def ring(directory: Path, ospf: str = "", far: str = "") -> Path:
    """r1 between r2 and r3, hosts at r1 and r2, OSPF everywhere. ospf: more for interfaces; far: r3's own lines."""
    (directory / "daemons").write_text("ospfd=yes\nisisd=yes\n")
    for number, ports in ((1, ("10.0.12.1", "10.0.13.1")), (2, ("10.0.12.2", None)), (3, ("10.0.13.3", None))):
        text = "no ipv6 forwarding\n!\n"
        for port, address in enumerate(ports, 1):
            if address is not None:
                lines = far if number == 3 else f" ip ospf area 0\n{ospf}"
                isis = " ip router isis x\n" if (number, port) != (3, 1) else ""
                text += f"interface eth{port}\n ip address {address}/24\n{lines}{isis}!\n"
        text += f"interface eth3\n ip address 10.1.{number}.1/24\n ip ospf area 0\n ip ospf passive\n!\n"
        text += f"router ospf\n ospf router-id 1.1.1.{number}\n!\n"
        text += f"router isis x\n net 49.0001.0000.0000.000{number}.00\n is-type level-2-only\n!\n"
        (directory / f"r{number}.conf").write_text(text)
    path = directory / "ring.clab.yml"
    path.write_text(NODES)
    return path


def sysctls(lab: Lab) -> CheckResult:
    return next(check for check in validate(lab) if check.name == "sysctls")


@pytest.mark.deep
def test_the_reason_names_neighbours_and_hosts(tmp_path: Path, runtime: str, lab_name: Callable[[], str]) -> None:
    name, heard = lab_name(), Listener()
    try:
        with pytest.raises(CheckError) as caught:
            path = ring(tmp_path, f" ip ospf hello-interval 2\n ip ospf dead-interval {DEAD_S}\n")
            life.up(import_topology(path, runtime, name), runtime=runtime, observer=heard, timeout=patience(8))
        last = heard.reasons[-1]
        states = f"(Init, dead interval {DEAD_S} s|2-Way, the designated router is elected after {DEAD_S} s); r2"
        assert re.match(rf"r1:eth1 OSPF neighbour 10\.0\.12\.2 is in {states}", last), last
        assert "r2 (and 1 more) has no route to h1:eth1 (10.1.1.2)" in last
        said = str(caught.value)
        assert f"r1:eth2  OSPF has no neighbour yet, dead interval {DEAD_S} s" in said
        assert "r1:eth2  IS-IS has no neighbour yet" in said
        assert "r1:eth1  IS-IS" not in said, "that one is up"
        assert "r1:eth3" not in said, "no switch is behind it"
        assert "vtysh -c 'show ip ospf neighbor'" in said
    finally:
        life.down(name)


@pytest.mark.deep
@pytest.mark.needs("procps")
def test_values_set_by_the_configuration_are_no_fault(tmp_path: Path, runtime: str, name: str) -> None:
    quick = " ip ospf network point-to-point\n ip ospf hello-interval 1\n ip ospf dead-interval 4\n"
    path = ring(tmp_path, quick, f" ip ospf area 0\n{quick}")
    path.write_text(NODES.replace("via 10.1.2.1]", f"via 10.1.2.1, sysctl -w {NO_IPV6}=1]"))
    life.up(import_topology(path, runtime, name), runtime=runtime)
    lab = open_lab(name)
    assert {check.name: check.detail for check in validate(lab) if not check.ok} == {}
    found = sysctls(lab)
    notes = (
        f"{IPV6} is 0 on r1, r2, r3, as the topology sets it (frr.conf: no ipv6 forwarding)",
        f"{NO_IPV6} is 1 on h2, as the topology sets it (sysctl -w {NO_IPV6}=1)",
    )
    assert found.notes == notes
    assert found.detail.endswith("; ".join(notes))
    assert found.to_json()["notes"] == list(notes)
    for node, change in (("r1", f"{IPV6}=1"), ("r2", f"{IPV4}=0"), ("h1", f"{NO_IPV6}=1")):
        run(["nsenter", f"--net={lab.handle(node).netns}", "sysctl", "-w", change])
    found = sysctls(lab)
    assert not found.ok
    assert found.detail.split("; ") == [
        f"r1: {IPV6} is 1, and the topology sets 0 (frr.conf: no ipv6 forwarding)",
        f"r2: {IPV4} is 0, not 1",
        f"h1: {NO_IPV6} is 1, not 0",
    ]
