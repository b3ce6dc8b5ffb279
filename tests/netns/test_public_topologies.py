"""Kinds of topologies that users bring: main processes that start FRR, scripts that run later, hosts in one subnet.

And the topologies of topologies/examples, which come up as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.endpoints.runoptions import run_options
from heddle.lab import lifecycle as life
from heddle.lab.imported.imported import import_topology
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.status import LabStatus, status
from heddle.runs.run import run
from tests.listener import Listener
from tests.machine import patience, until
from tests.marks import long
from tests.netns.collectives import proven
from tests.netns.live import failed

Up = Callable[..., tuple[Lab, Listener]]
SED = "sed -i 's/^bgpd=no/bgpd=yes/' /etc/frr/daemons"
LOOPBACK = "vtysh -c 'conf t' -c 'interface lo' -c 'ip address 10.255.0.2/32'"

# FRR's start by the command of its image; by a script with more behind it; by the script of its package.
STARTS = f"""name: x
topology:
  defaults: {{kind: linux, image: "quay.io/frrouting/frr:10.3.1"}}
  nodes:
    tor1: {{cmd: "sh -c \\"{SED} && /usr/lib/frr/docker-start\\"", binds: [tor1.conf:/etc/frr/frr.conf]}}
    tor2: {{entrypoint: bash, cmd: /setup.sh, binds: [tor2.conf:/etc/frr/frr.conf, setup.sh:/setup.sh]}}
    tor3:
      cmd: /sbin/tini -- bash -c "{SED}; /usr/lib/frr/frrinit.sh start; sleep infinity"
      binds: [tor3.conf:/etc/frr/frr.conf]
    gpu1: {{exec: [ip addr add 10.71.1.2/24 dev eth1, ip route add 10.71.0.0/16 via 10.71.1.1]}}
    gpu3: {{exec: [ip addr add 10.71.3.2/24 dev eth1, ip route add 10.71.0.0/16 via 10.71.3.1]}}
    late: {{cmd: sleep infinity}}
  links:
    - endpoints: ["tor1:eth1", "tor2:eth1"]
    - endpoints: ["tor2:eth3", "tor3:eth1"]
    - endpoints: ["tor1:eth2", "gpu1:eth1"]
    - endpoints: ["tor2:eth2", "late:eth1"]
    - endpoints: ["tor3:eth2", "gpu3:eth1"]
"""


def conf(number: int, *ports: str) -> str:
    peers = "".join(f" neighbor {port} interface remote-as external\n" for port in ports)
    address = f"interface eth2\n ip address 10.71.{number}.1/24\n!\n"
    end = " address-family ipv4 unicast\n  redistribute connected\n"
    return f"{address}router bgp 6571{number}\n no bgp ebgp-requires-policy\n{peers}{end}"


@pytest.fixture
def up(name: str, tmp_path: Path, leftovers: Callable[[str], list[str]]) -> object:
    """Bring up a text as a topology, with files beside it."""
    made = []

    def begin(text: str, **files: str) -> tuple[Lab, Listener]:
        for file, content in files.items():
            (tmp_path / file.replace("_", ".", 1)).write_text(content)
        (path := tmp_path / "x.clab.yml").write_text(text)
        made.append(name)
        heard = Listener()
        return life.up(import_topology(path, "netns", name), runtime="netns", observer=heard).lab, heard

    yield begin
    for each in made:
        life.down(each)
        assert not leftovers(each)


def machines_files() -> dict[str, str]:
    """The files of FRR on this machine."""
    roots = (Path("/etc/frr"), Path("/usr/lib/frr"), Path("/run/frr"))
    files = [each for root in roots if root.is_dir() for each in sorted(root.rglob("*")) if each.is_file()]
    return {str(each): sha256(each.read_bytes()).hexdigest() for each in files}


@pytest.mark.long
def test_frr_starts_as_main_processes_start_it_and_addresses_that_come_later_carry_ranks(up: Up) -> None:
    before = machines_files()
    script = f"#!/bin/bash\n{SED}\n/usr/lib/frr/docker-start &\nwait\n{LOOPBACK}\nexec sleep infinity\n"
    lab, _ = up(STARTS, tor1_conf=conf(1, "eth1"), tor2_conf=conf(2, "eth1", "eth3"), tor3_conf=conf(3, "eth1"),
                setup_sh=script)  # fmt: skip
    found = shown(lab)
    assert (found.converged, found.bgp.established, found.bgp.expected, found.hosts) == (True, 2, 2, 3)
    assert "10.255.0.2" in lab.output("tor1", ["ip", "route"]), "the script goes on behind FRR's start"
    for tor in ("tor1", "tor2", "tor3"):
        assert "bgpd=yes" in lab.output(tor, ["cat", "/etc/frr/daemons"])
    assert run(lab, run_options(size="64K", qps=2, iters=1), Silent()).wrong == 0
    assert len(proven(lab).flows) == 4, "two ranks"
    lab.output("late", ["ip", "addr", "add", "10.71.2.2/24", "dev", "eth1"])
    lab.output("late", ["ip", "route", "add", "10.71.0.0/16", "via", "10.71.2.1"])
    later = open_lab(lab.name)
    assert run(later, run_options(size="64K", qps=2, iters=1), Silent()).wrong == 0
    assert {row.flow.src for row in proven(later).flows} == {"gpu1", "gpu3", "late"}
    lab.output("gpu1", ["ip", "addr", "flush", "dev", "eth1"])
    assert open_lab(lab.name).fabric.by_name["gpu1"].port("eth1").address is None
    assert machines_files() == before


def shown(lab: Lab) -> LabStatus:
    (found,) = status(lab.name)
    return found


# As netlab writes it: scripts are bound, and a tool runs them after the deployment.
SCRIPTS = """name: x
topology:
  defaults: {kind: linux, image: "quay.io/frrouting/frr:10.7.1"}
  groups:
    sw:
      binds: [daemons:/etc/frr/daemons, __clabNodeName__.a:/etc/config/01-initial.sh,
              __clabNodeName__.b:/etc/config/02-bgp.sh]
  nodes:
    sw1: {group: sw}
    sw2: {group: sw}
    h1: {image: alpine, exec: [ip addr add 10.73.1.2/24 dev eth1, ip route add 10.73.0.0/16 via 10.73.1.1]}
    h2: {image: alpine, exec: [ip addr add 10.73.2.2/24 dev eth1, ip route add 10.73.0.0/16 via 10.73.2.1]}
  links:
    - endpoints: ["sw1:eth1", "sw2:eth1"]
    - endpoints: ["sw1:eth2", "h1:eth1"]
    - endpoints: ["sw2:eth2", "h2:eth1"]
"""


@pytest.mark.long
def test_switches_whose_scripts_run_later_are_not_waited_for(up: Up) -> None:
    files = {}
    for n, far in ((1, 2), (2, 1)):
        lines = f'"interface eth1" -c "ip address 10.72.0.{n}/24" -c "interface eth2" -c "ip address 10.73.{n}.1/24"'
        files[f"sw{n}_a"] = f"#!/bin/sh\nset -e\nvtysh -c conf\\ t -c {lines}\n"
        bgp = f'"router bgp 6572{n}" -c "no bgp ebgp-requires-policy" -c "neighbor 10.72.0.{far} remote-as external"'
        files[f"sw{n}_b"] = f'#!/bin/sh\nset -e\nvtysh -c "conf t" -c {bgp} -c "redistribute connected"\n'
    start = time.monotonic()
    lab, heard = up(SCRIPTS, daemons="bgpd=yes\n", **files)
    assert time.monotonic() - start < patience(60), "without the 180 s that routes may take"
    (said,) = [line for line in heard.warnings if "scripts" in line]
    assert said.startswith("sw1, sw2 will not route: no command of the file runs the bound scripts.")
    assert "./inv exec sw1 -- sh /etc/config/01-initial.sh; ./inv exec sw1 -- sh /etc/config/02-bgp.sh" in said
    assert "containerlab" not in said
    (end,) = [line for line in heard.ended if "not waited for" in line]
    assert "sw1, sw2 without a configuration; routes to 10.73.1.2, 10.73.2.2" in end
    assert (shown(lab).converged, shown(lab).gaps) == (
        None,
        tuple(
            f"{n}  the configuration was not run: there is neither an address nor a BGP session" for n in ("sw1", "sw2")
        ),
    )
    assert life.repair_lab(lab.name).converged is None, "no switch routes yet"
    for switch in ("sw1", "sw2"):
        for script in ("01-initial.sh", "02-bgp.sh"):
            lab.output(switch, ["sh", f"/etc/config/{script}"])
    until(lambda: shown(lab).converged is True, every=0.3)
    assert life.repair_lab(lab.name).converged is True
    assert (shown(lab).bgp.established, shown(lab).bgp.expected, shown(lab).gaps) == (1, 1, ())
    later = open_lab(lab.name)
    assert run(later, run_options(size="64K", qps=2, iters=1), Silent()).wrong == 0
    assert len(proven(later).flows) == 4
    lab.output("sw2", ["vtysh", "-c", "conf t", "-c", "router bgp 65722", "-c", "no redistribute connected"])
    until(lambda: bool(shown(lab).gaps), every=0.3)
    assert shown(lab).gaps == ("sw1  no route to 10.73.2.2 (h2:eth1)",), "a route that one switch has must be in all"


OVERLAY = """name: x
topology:
  defaults: {kind: linux}
  nodes:
    leaf1:
      binds: [daemons:/etc/frr/daemons, leaf1.conf:/etc/frr/frr.conf]
      exec: &bridge [ip link add br10 type bridge, ip link set eth2 master br10, ip link set br10 up]
    leaf2: {binds: [daemons:/etc/frr/daemons, leaf2.conf:/etc/frr/frr.conf], exec: *bridge}
    h1: {exec: [ip addr add 10.9.0.1/24 dev eth1]}
    h2: {exec: [ip addr add 10.9.0.2/24 dev eth1]}
  links:
    - endpoints: ["leaf1:eth1", "leaf2:eth1"]
    - endpoints: ["leaf1:eth2", "h1:eth1"]
    - endpoints: ["leaf2:eth2", "h2:eth1"]
"""


def test_hosts_of_one_subnet_behind_bridges_of_several_switches_are_not_waited_for(up: Up) -> None:
    text = "interface eth1\n ip address 10.0.0.{}/24\n!\nrouter bgp 6500{}\n neighbor 10.0.0.{} remote-as external\n"
    start = time.monotonic()
    lab, heard = up(OVERLAY, daemons="bgpd=yes\n", leaf1_conf=text.format(1, 1, 2), leaf2_conf=text.format(2, 2, 1))
    assert time.monotonic() - start < patience(60)
    assert any(
        line.startswith("h1:eth1, h2:eth1 are in 10.9.0.0/24, behind leaf1, leaf2: the file gives no switch")
        for line in heard.warnings
    )
    assert (shown(lab).converged, shown(lab).bgp.established) == (True, 1)
    lab.output("leaf1", ["ip", "addr", "add", "10.9.0.254/24", "dev", "br10"])
    assert shown(lab).gaps == ("leaf2  no route to 10.9.0.1 (h1:eth1)", "leaf2  no route to 10.9.0.2 (h2:eth1)")


EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "topologies/examples").glob("*.clab.yml"))


@pytest.mark.deep
@pytest.mark.parametrize(
    "path", [path if "ospf" in path.name else long(path) for path in EXAMPLES], ids=lambda path: path.name
)
def test_an_example_topology_comes_up_and_its_paths_are_proven(path: Path, runtime: str, name: str) -> None:
    """In the gate: one of them. Imports of such files: test_bring_your_own.py, and tests/unit."""
    lab = life.up(import_topology(path, runtime, name), runtime=runtime, source=str(path)).lab
    (found,) = status(name)
    assert (found.state, found.converged, found.faults) == ("up", True, ())
    assert run(lab, run_options(collective="all-to-all", size="256K", qps=8, iters=2), Silent()).wrong == 0
    proof = proven(lab)
    ways: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    for row in proof.flows:
        ways.setdefault((row.flow.src, row.flow.dst), set()).add(tuple(row.measured))
    assert max(len(each) for each in ways.values()) > 1, "the example shows equal-cost paths"
    assert failed(lab) == {}
