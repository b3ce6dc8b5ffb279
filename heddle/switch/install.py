"""Turn a namespace into a fabric switch, and a host's port into a NIC: install queues, hashing, counters.

In:  a Fabric and the handles of its nodes, from any runtime.
Out: the state of the namespaces, and pins below /sys/fs/bpf/heddle/LAB, which `remove` deletes.
It uses only handles, so it works for namespaces and containers alike.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

from heddle.base import resources
from heddle.base.events import Observer
from heddle.base.problems import MachineError, Problem
from heddle.base.process import Journal
from heddle.fabric import hashmodes
from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import BACKEND, Node, Port
from heddle.host import delivery
from heddle.kernel import inorder
from heddle.kernel.fib import port_names
from heddle.kernel.grace import grace
from heddle.kernel.libbpf import Map, ensure_bpffs, loaded
from heddle.kernel.namespace import NodeHandle
from heddle.spec.queuepolicy import QueuePolicy
from heddle.switch import counters
from heddle.switch.hashing import hashing
from heddle.switch.hashing.maps import Tables, sizes
from heddle.switch.links.portfaults import LineSpaces, file_faults, require_netem, set_faults
from heddle.switch.pfc import control as pfc
from heddle.switch.queues import portqueues as queues
from heddle.switch.queues import red
from heddle.switch.queues.classes import OWNER, PortRef, check_ids, policies_of, row
from heddle.switch.queues.portqueues import HOSTS, programs_of

if TYPE_CHECKING:
    from heddle.switch.queues.cells import LabQueues

_STEP: Final = "queues, hashing, counters"
NIC_MAPS: Final = {"taken": 16, "wired": 4, "wires": 128}  # of bpf/nic.c -> bytes of a value; keys have 4


def apply(
    fabric: Fabric,
    handles: Mapping[str, NodeHandle],
    journal: Journal,
    observer: Observer,
    kept: Mapping[str, Container[str]] | None = None,
    cables: Path | None = None,
) -> None:
    """Set port rates, offloads, packet order and programs on every node of `handles`, and hashing on every switch.

    kept: switch -> hashing sysctls that its topology sets itself. cables: namespace of the stubs of cut links.

    The namespaces and their links must exist. Daemons may start later, or at the same time. Pins of an earlier,
    killed attempt are replaced. Raises MachineError for the first node that fails, after all nodes are done.
    """
    ensure_bpffs()
    remove(fabric.name)
    observer.begin(_STEP, len(handles))
    nodes = [node for node in fabric.nodes_here if node.name in handles]
    setup = queues.Setup.of(fabric)
    with _pin_queues(fabric, setup, journal) as lab_queues:
        if any(node.role is Role.HOST for node in nodes):
            pins = _pin_dir(fabric.name, HOSTS)
            with loaded(resources.HERE.bpf_object("nic"), {"wired": fabric.space[1]}) as made:
                for name, size in NIC_MAPS.items():
                    made.map(name, 4, size).pin(pins / name)
                made.program("nic").pin(pins / "nic")
        writer = Lock()
        with ThreadPoolExecutor(max_workers=min(16, 2 * (os.cpu_count() or 1))) as pool:
            jobs = [
                pool.submit(_apply_node, fabric, node, setup, handles[node.name], journal, kept or {}, writer)
                for node in nodes
            ]
        for done, job in enumerate(jobs, 1):
            job.result()
            observer.advance(_STEP, done)
        # Every `dequeue` is attached now: from here on, packets are counted both when they enter and leave a queue.
        lab_queues.set_policies(policies_of(fabric))
        wanted = {ref: fault for ref, fault in file_faults(fabric).items() if ref.partition(":")[0] in handles}
        set_faults(fabric, LineSpaces(handles, cables), lab_queues, wanted)
    observer.end(_STEP, f"{sum(len(n.ports) for n in nodes)} ports")


def start_agent(fabric: Fabric, handles: Mapping[str, NodeHandle], directory: Path, journal: Journal) -> None:
    """Start the lab's PFC agent, and return when it is running. Without gates it still corrects the counters of links
    that go down: their queues would count as full for ever.

    directory: of the lab, for the agent's log. MachineError when the agent cannot start. `pfc.stop` ends it.
    """
    pfc.start(fabric.name, fabric, handles, directory)
    journal.comment(f"the PFC agent is running; its log is {directory}/pfc.log")


def check(fabric: Fabric) -> None:
    """Check before anything is created: InputError or MachineError when `apply` could not set up these queues."""
    check_ids(fabric)
    policies_of(fabric)
    require_netem(fabric.policy.link_faults, "link.delay_at: link")
    pfc.check(fabric)


def remove(lab: str) -> None:
    """Unpin everything of one lab, if there is anything. The kernel frees the programs when their ports are removed."""
    if not hashing.PINS.is_symlink():  # a link is another user's, see _pin_dir: do not remove its target
        shutil.rmtree(hashing.PINS / lab, ignore_errors=True)
    try:
        hashing.PINS.rmdir()
    except OSError:
        return  # other labs have pins there


def pinned(lab: str) -> bool:
    """True when the lab has any pins."""
    return (hashing.PINS / lab).is_dir()


def _apply_node(
    fabric: Fabric,
    node: Node,
    setup: queues.Setup,
    handle: NodeHandle,
    journal: Journal,
    kept: Mapping[str, Container[str]],
    writer: Lock,
) -> None:
    """writer: taken for what needs RTNL: several threads would only spin on it (mutex_spin_on_owner)."""
    if node.role is Role.SWITCH:
        _pin_switch(fabric, node, setup.ids, handle, journal, kept.get(node.name, ()))
    with writer:
        _give(node, setup, handle, node.ports, journal)


def _give(node: Node, setup: queues.Setup, handle: NodeHandle, ports: Sequence[Port], journal: Journal) -> None:
    """Offloads, order, queues and programs of these ports. What is attached is pinned already."""
    numbers = {port.name: setup.ids[port.node, port.name] for port in ports}
    inorder.apply(handle.netns, numbers, delivery.chosen().delivery, inorder.cpus_here())
    queues.apply(handle.netns, node, setup, journal, ports)


def extend(
    fabric: Fabric, handles: Mapping[str, NodeHandle], added: Mapping[str, Sequence[Port]], journal: Journal
) -> None:
    """Set up more ports of a running lab, in the order of `apply`, and the new thresholds of all others.

    added: of each node that has got or lost ports, the new ones. Nodes without pins are new.
    """
    from heddle.switch.queues.cells import LabQueues

    setup = queues.Setup.of(fabric)
    with LabQueues.pinned(fabric) as live:
        live.add(port for ports in added.values() for port in ports)
        for name, ports in added.items():
            node, handle = fabric.by_name[name], handles[name]
            if node.role is Role.SWITCH and (pins := hashing.pin_dir(fabric.name, name)).is_dir():
                names = port_names(handle)
                with Tables.pinned(pins) as tables:
                    tables.number(
                        {at: setup.ids[name, port] for at, port in names.items() if (name, port) in setup.ids}
                    )
            elif node.role is Role.SWITCH:
                _pin_switch(fabric, node, setup.ids, handle, journal, ())
            _give(node, setup, handle, ports, journal)
        live.set_policies(policies_of(fabric))
        wanted = {port.ref for ports in added.values() for port in ports}
        faults = {ref: fault for ref, fault in file_faults(fabric).items() if ref in wanted}
        set_faults(fabric, LineSpaces(handles), live, faults)


def reduce(fabric: Fabric, handles: Mapping[str, NodeHandle], gone: Sequence[Port]) -> None:
    """Forget ports of a running lab: their links are removed, and no packet of them waits. fabric: as it was."""
    from heddle.switch.queues.cells import LabQueues

    with LabQueues.pinned(fabric) as live:
        for port in gone:
            live.vacate(live.ids[port.node, port.name])
        counters.forget(fabric, [live.ids[port.node, port.name] for port in gone])


def pins_of(fabric: Fabric, nodes: Iterable[Node] | None = None) -> list[Path]:
    """The pins of all programs that a running lab's ports have. nodes: all by default."""
    chosen = fabric.nodes if nodes is None else nodes
    return list(dict.fromkeys(each.pin(fabric.name) for node in chosen for each in programs_of(node)))


def reinstall(
    fabric: Fabric,
    handles: Mapping[str, NodeHandle],
    broken: Mapping[str, Sequence[Port]],
    own: Mapping[str, QueuePolicy],
) -> None:
    """Give some ports of a running lab their queues and programs again. What waited there is lost, and not counted.

    broken: by node. own: node -> its queues where they were set live. Other ports, and what was set live, stay as they
    are. MachineError for the first port that fails.
    """
    from heddle.switch.queues.cells import LabQueues

    setup = queues.Setup.of(fabric)
    ends = [port for ports in broken.values() for port in ports]
    ends += [fabric.by_name[port.peer_node].port(port.peer_port) for port in ends]
    numbers = {setup.ids[end.node, end.name] for end in ends if (end.node, end.name) in setup.ids}
    with LabQueues.pinned(fabric) as live, _recounted(live, numbers):
        for name, ports in broken.items():
            node, handle = fabric.by_name[name], handles[name]
            live_set = {BACKEND: red.curves_of(own[name])} if name in own and BACKEND in setup.curves else {}
            queues.clear(handle.netns, ports)
            _give(node, replace(setup, curves={**setup.curves, **live_set}), handle, ports, Journal())


@contextmanager
def _recounted(live: LabQueues, ports: Collection[int]) -> Iterator[None]:
    """Take these ports out of service for a with block. Packets that come there meanwhile are dropped. Afterwards the
    ports are empty, and as many bytes were counted out as in.

    A port whose link is down is not counted in any case: the PFC agent takes care of it (pfc/agent.py).
    """
    from heddle.switch.queues.cells import LINK_DOWN

    flags = live.links["flags"]
    taken = [number for number in ports if not int(flags[number]) & LINK_DOWN]
    for number in taken:
        flags[number] = int(flags[number]) | LINK_DOWN
    grace()
    try:
        yield
        grace()  # what left just before has arrived
        for number in taken:
            live.reset_port(number)
            rows = slice(row(number, 0), row(number + 1, 0))
            for what in ("packets", "bytes"):
                live.cells[f"out_{what}"][rows] = live.cells[f"in_{what}"][rows]
            live.cells["strays"][rows] = 0
    finally:
        for number in taken:
            flags[number] = int(flags[number]) & ~LINK_DOWN
    live.settle()


def _pin_queues(fabric: Fabric, setup: queues.Setup, journal: Journal) -> LabQueues:
    """Load the programs and maps that all ports of the lab share. No policy is active yet: queues count no packets."""
    from heddle.switch.queues.cells import LabQueues

    pins = _pin_dir(fabric.name, OWNER)
    counters.create(fabric, pins)
    journal.comment(f"BPF programs and maps of the lab's queues and counters pinned at {pins}")
    return LabQueues.create(fabric, {}, pins, setup.discipline.priorities(setup.queues))


def _pin_switch(
    fabric: Fabric,
    node: Node,
    ids: Mapping[PortRef, int],
    handle: NodeHandle,
    journal: Journal,
    kept: Container[str],
) -> None:
    """Load and pin a switch's own copy of `hash`; set the sysctls and the seed that the fabric defines."""
    wanted = hashing.hashing_of(fabric, node)
    version = fabric.policy.ip_version
    pins = _pin_dir(fabric.name, node.name)
    room = {**sizes(wanted.steering, len(fabric.switches)), "ids": fabric.places[node.name].width + 1}
    with _depths(fabric) as shared, loaded(resources.HERE.bpf_object("hash"), room, shared) as made:
        tables = Tables.of_object(made)
        indexes = {name: index for index, name in port_names(handle).items()}
        tables.number({indexes[port.name]: ids[node.name, port.name] for port in node.ports if port.name in indexes})
        tables.fill(hashing.rule_of(wanted, version), indexes)
        tables.flip()
        tables.pin(pins)
        made.program("hash").pin(pins / "hash")
    rules = hashmodes.sysctls(wanted.mode, wanted.seed, wanted.options, version)
    hashing.write_sysctls(handle.netns, rules, kept)
    journal.comment(f"{node.name}: BPF programs pinned at {pins}, hashing {wanted.mode}, seed {wanted.seed}")


@contextmanager
def _depths(fabric: Fabric) -> Iterator[dict[str, Map]]:
    """Open the maps of the lab's queues that `hash` also reads."""
    from heddle.switch.queues.cells import LAYOUTS

    pins = hashing.pin_dir(fabric.name, OWNER)
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Map.pinned(pins / name, 4, LAYOUTS[name].itemsize)) for name in ("cells", "dscp")
        }


def _pin_dir(lab: str, owner: str) -> Path:
    """Create the directory for an owner's pins. Another lab's `remove` may delete the empty parent meanwhile."""
    pins = hashing.pin_dir(lab, owner)
    for _ in range(10):
        try:
            pins.mkdir(parents=True, exist_ok=True)
            root = hashing.PINS.lstat()
        except FileNotFoundError:
            continue
        if root.st_uid != 0 or not stat.S_ISDIR(root.st_mode) or root.st_mode & stat.S_IWOTH:
            # Without mode=0700 every user may write to the BPF file system, as to /tmp.
            why = "belongs to another user, or every user may write to it"
            raise MachineError(Problem("bpf", str(hashing.PINS), why, f"run rm -r {hashing.PINS} when no lab is up"))
        return pins
    raise MachineError(Problem("bpf", str(pins), "cannot be created: another process keeps removing it"))
