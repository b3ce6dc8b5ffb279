"""The commands of `up` as a shell script: nothing is run.

In:  a loaded fabric file or another Blueprint. Out: the text of a script.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from heddle.base.process import Journal
from heddle.fabric.model import Fabric
from heddle.host import delivery, limits
from heddle.host.engine.binary import installed_version
from heddle.kernel.namespace import NodeHandle
from heddle.lab.lifecycle import BY_NETLINK, check_daemons
from heddle.lab.opening import Source, blueprint_from, topology_path
from heddle.render.dialects import RenderOptions, check_deployable
from heddle.render.render import DEFAULT
from heddle.runtimes.registry import get_runtime
from heddle.switch.queues.portqueues import Setup


def script_of(wanted: Source, runtime: str = "netns", options: RenderOptions = DEFAULT) -> str:
    """The commands of `up` as a shell script; nothing is run. InputError when `up` would refuse the options."""
    blueprint = blueprint_from(wanted)
    check_deployable(options, runtime, installed_version() if runtime == "containerlab" else None)
    check_daemons(blueprint.fabric, get_runtime(runtime))
    name = blueprint.fabric.name
    journal = Journal()
    problems, more = blueprint.kernel_faults()
    more += [f"up fails here: {each.what} {each.why}; {each.hint}" for each in problems]
    for line in (*blueprint.notes, *blueprint.warnings, *more):
        journal.comment(line)
    limits.HERE.write_script(name, limits.needs_of(blueprint.fabric), journal)
    with tempfile.TemporaryDirectory(prefix="heddle-") as scratch:
        topology = blueprint.write(Path(scratch, "topology"), options)
        journal.comment(f"The files of {name} are written to {topology_path(name).parent}:")
        where = "./inv render FABRIC --out DIR writes them to another directory for reading."
        copied = "a copy of the topology, with all inherited values written out."
        journal.comment(where if blueprint.rendered else copied)
        get_runtime(runtime).write_script(name, topology, journal)
        handles = get_runtime(runtime).nodes(name, topology)
    _script_of_ports(blueprint.fabric, handles, journal)
    if not blueprint.fabric.policy.routing.by_bgp:
        journal.comment(BY_NETLINK)
    return journal.script().replace(str(topology.parent), str(topology_path(name).parent))


def _script_of_ports(fabric: Fabric, handles: Mapping[str, NodeHandle], journal: Journal) -> None:
    """The commands that heddle/switch runs for every port. System calls set offloads and programs: as comments."""
    setup = Setup.of(fabric)
    for node in fabric.nodes:
        lines = [line for port in node.ports for line in setup.discipline.lines(port, setup.queues)]
        journal.note(["nsenter", f"--net={handles[node.name].netns}", "tc", "-batch", "-"], "\n".join(lines))
    programs = "BPF at clsact: dequeue and hash (in; hosts: dequeue, nic), count and enqueue (out; hosts: enqueue)"
    how = delivery.chosen().delivery.settings
    journal.comment(f"On every port: GSO, TSO and checksum offloads off; {how}; {programs}.")
    gates = "sends pause frames and closes and opens the gates (tbf)" if setup.gated else "watches the links"
    journal.comment(f"An agent is started, which {gates}.")
