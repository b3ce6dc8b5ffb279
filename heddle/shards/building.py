"""What an agent does before its shard's part of a lab is up, and without a Lab: create it, start it, look for it.

Every public function here can be called by the coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from heddle.base import owners, state
from heddle.base.events import Observer, Silent
from heddle.base.problems import Problem
from heddle.base.process import Journal
from heddle.lab.cutlinks import CARRIER_KEY, cut_ends, end_carrier, keep_carriers
from heddle.lab.lifecycle import remove
from heddle.lab.opening import lab_of, topology_path
from heddle.runtimes.netns import NetnsRuntime, cable_space
from heddle.runtimes.netns_topology import unpack
from heddle.runtimes.shardparts import change_addresses
from heddle.switch.links import cuts


def create(nodes: Collection[str], record: Mapping[str, Any], files: str, key: str) -> None:
    """Make this shard's namespaces, links, and ends of cut links. What an earlier attempt left is removed.

    nodes: of this shard. record: the coordinator's, as data. files: the part of the topology (shardparts.py). key: by
    which shards know each other's datagrams.
    """
    own = state.Record(**{**record, "runtime": NetnsRuntime.name, "phase": "starting", "shard": list(nodes)})
    name = own.name
    remove(name, Silent(), NetnsRuntime(), keep_runs=True)
    with owners.lock(name, work="start"):
        owners.claim_lab(name)
        state.write_record(own)
        state.write_file(state.lab_dir(name) / CARRIER_KEY, key)
        topology = topology_path(name)
        topology.parent.mkdir(parents=True, exist_ok=True)
        unpack(files, topology.parent)
        NetnsRuntime().create(name, topology, Journal(), Silent())
        state.write_record(replace(own, phase="running"))


def readdress(name: str, moved: Mapping[str, str]) -> None:
    """Other shards have new addresses: send there from now on. moved: old address -> new one."""
    record = state.read_record(name)
    if record is None or not moved:
        return
    change_addresses(topology_path(name), moved)
    lab = lab_of(record)
    end_carrier(lab)
    cuts.attach(lab.fabric, cable_space(name), cut_ends(lab))
    keep_carriers(lab)


def clock() -> int:
    """CLOCK_MONOTONIC of this machine, ns."""
    return time.monotonic_ns()


def start(name: str, observer: Observer) -> None:
    """Run the start scripts of the nodes: the daemons run when this returns."""
    NetnsRuntime().start(name, topology_path(name), Journal(), observer)


def missing(name: str) -> list[Problem]:
    """Nodes of this shard that are not running."""
    record = state.read_record(name)
    if record is None:
        return [Problem("", f"lab {name}", "has no nodes in this shard", f"./inv up --repair --name {name}")]
    return lab_of(record).missing_nodes()
