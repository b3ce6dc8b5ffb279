"""containerlab's kind `bridge`: a network of several routers and hosts, in a node of the lab."""

from __future__ import annotations

from pathlib import Path

from heddle.checks.validate import validate
from heddle.lab import lifecycle as life
from heddle.lab.imported.imported import import_topology
from tests.own_topologies import DAEMONS, frr_conf

TOPOLOGY = """name: lan
topology:
  defaults: {kind: linux, binds: ["daemons:/etc/frr/daemons", "__clabNodeName__.conf:/etc/frr/frr.conf"]}
  nodes:
    br-lan: {kind: bridge}
    r1: {}
    r2: {}
    r3: {}
  links:
    - endpoints: ["r1:eth1", "br-lan:eth1"]
    - endpoints: ["r2:eth1", "br-lan:eth2"]
    - endpoints: [{node: r3, interface: eth1}, {node: br-lan, interface: ethernet3}]
"""


def test_routers_meet_on_a_bridge(tmp_path: Path, runtime: str, name: str) -> None:
    (tmp_path / "daemons").write_text(DAEMONS)
    for n in (1, 2, 3):
        peers = {f"10.0.0.{m}": 65000 + m for m in (1, 2, 3) if m != n}
        config = frr_conf(f"r{n}", 65000 + n, f"10.255.0.{n}", {"eth1": f"10.0.0.{n}/24"}, peers, [f"10.255.0.{n}/32"])
        (tmp_path / f"r{n}.conf").write_text(config)
    (path := tmp_path / "lan.clab.yml").write_text(TOPOLOGY)
    made = import_topology(path, runtime, name)
    assert "each bridge is one in a node of its own, not one of this machine: br-lan" in made.notes
    lab = life.up(made, runtime=runtime).lab
    assert lab.output("br-lan", ["ls", "/sys/class/net/bridge0/brif"]).split() == ["eth1", "eth2", "ethernet3"]
    for n in (2, 3):
        assert "via 10.0.0." in lab.output("r1", ["ip", "route", "show", f"10.255.0.{n}"])
    assert [check for check in validate(lab) if not check.ok] == []
