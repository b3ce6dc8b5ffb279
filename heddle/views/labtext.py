"""Results of labs, checks, images and setup as text; `inspect`: nodes and ports; `fault`: faults of links; the cut of a
fabric into shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from heddle.base.files import place_flag
from heddle.base.tables import many, some_of, table
from heddle.base.units import format_rate
from heddle.fabric.cutting import MARGIN
from heddle.spec.impairments import COUNTS
from heddle.views.forecasttext import wrapped

if TYPE_CHECKING:
    from heddle.checks.validate import CheckResult
    from heddle.fabric.cutting import Cut
    from heddle.fabric.model import Fabric
    from heddle.host.engine.images import Image
    from heddle.host.engine.setup import SetupStep
    from heddle.lab.faults.packets import PortFault
    from heddle.lab.inventory import LabInventory, NodeEntry, PortEntry
    from heddle.lab.lifecycle import DownResult, UpResult
    from heddle.lab.status import LabStatus
    from heddle.offline.sharding import ShardingForecast

_NO_ROUTING: Final = "no routing program runs, so there is nothing to converge"
_LINES: Final = 12  # missing BGP sessions, or gaps, that `status LAB` shows
_FAULT_COLUMNS: Final = ("port", "to", "fault", *COUNTS)
_FAULT_LEGEND: Final = (
    "A fault concerns packets that leave by the port, after its queue. Counters start when the fault is set;\n"
    "delayed: packets that entered the delay line; waiting: packets in it now"
)
_FAULT_SCALE: Final = "times are of the hardware; here they are k = {k} times as long"
_FAULT_SOURCES: Final = {
    "file": "(file): set by `link` of the fabric file",
    "run": "(run): set for one run, until it ends; if that run was killed, the next run clears it",
}


def up_json(done: UpResult) -> dict[str, Any]:
    """`lab`, `converged`, `created`, `seconds`; with --repair `repaired` and `left` (down or drained on purpose)."""
    fixed = done.repaired
    return {
        "lab": done.lab.name,
        "created": done.created,
        "converged": done.converged,
        "topology": str(done.lab.topology),
        "seconds": dict(done.seconds),
        **({} if fixed is None else {"repaired": list(fixed.done), "left": list(fixed.left)}),
    }


def up_text(done: UpResult) -> str:
    """Two lines: the lab that is up, and the next commands."""
    name, fabric = done.lab.name, done.lab.fabric
    size = f"{len(fabric.switches)} switches, {len(fabric.hosts)} hosts, {len(fabric.links)} links"
    if not done.created and done.repaired is None:
        return f"{name} was changed: {size}" if "change" in done.seconds else f"{name} is already up: {size}"
    if not done.created:
        return "\n".join(_repaired_lines(done, size))
    # An imported topology may have no switch.
    looked_at = f"{(fabric.switches or fabric.hosts)[0].name} ip route"
    if fabric.switches and fabric.policy.routing.by_bgp:
        looked_at = f"{fabric.switches[0].name} vtysh"
    time = f"in {done.seconds['total']:.1f} s"
    state = {
        True: f"converged {time}",
        False: f"{time}, not converged: {some_of(done.faults, joint='; ')}",
        None: f"{time}; {_NO_ROUTING}",
    }[done.converged]
    up = f"{name} is up: {size}, {state}\n"
    if place := place_flag():  # it is long and every command needs it, so fewer commands are shown
        return f"{up}next: ./inv run --lab {name}{place}; ./inv down {name}{place}"
    return (
        f"{up}next: ./inv run --lab {name}; ./inv status {name}; ./inv exec --lab {name} {looked_at}; ./inv down {name}"
    )


def profile_json(done: UpResult) -> list[dict[str, Any]]:
    """The steps of `up`: seconds, CPU seconds of this machine, netlink requests, milliseconds for each port."""
    ports = sum(len(node.ports) for node in done.lab.fabric.nodes)
    return [
        {"step": name, **asdict(each), "ms_a_port": round(1000 * each.seconds / ports, 3)}
        for name, each in done.steps.items()
    ]


def profile_text(done: UpResult) -> str:
    """The same as a table, below the counts of nodes and ports."""
    nodes = done.lab.fabric.nodes
    rows = [[each["step"], *(f"{each[key]:.1f}" for key in ("seconds", "cpu_s")), str(each["requests"]),
             f"{each['ms_a_port']:.2f}"] for each in profile_json(done)]  # fmt: skip
    header = ("step", "seconds", "CPU seconds", "netlink requests", "ms a port")
    return f"{len(nodes)} nodes, {sum(len(node.ports) for node in nodes)} ports\n{table(header, rows)}"


def _repaired_lines(done: UpResult, size: str) -> Iterator[str]:
    """Each repair, each fault that stays because a user set it, and whether the lab forwards."""
    assert done.repaired is not None  # noqa: S101  (the caller has looked)
    for line in done.repaired.done:
        yield f"repaired  {line}"
    for line in done.repaired.left:
        yield f"left      {line}"
    count = len(done.repaired.done)
    what = f"{count} repair{'' if count == 1 else 's'}" if count else "nothing to repair"
    routes = {
        True: "all routes are in the kernels",
        False: "routes avoid what is down or drained on purpose" if done.repaired.left else some_of(done.faults),
        None: _NO_ROUTING,
    }[done.converged]
    yield f"{done.lab.name} is up: {size}; {what}; {routes}"


def down_text(removed: Mapping[str, DownResult]) -> str:
    """`zone: removed completely, with 3 stored runs`; a line for each lab that is not like the others."""
    plain = [name for name, done in removed.items() if not done.runs and done.other is None]
    lines = [f"{', '.join(plain)}: removed completely"] if plain else []
    for name, done in removed.items():
        runs = f", with {many(done.runs, 'stored run')}" if done.runs else ""
        if done.other is None:
            lines += [f"{name}: removed completely{runs}"] if runs else []
        elif done.forced:
            lines.append(f"{name}: removed from this machine; its record and its runs stay in {done.other.state}")
        else:
            lines.append(f"{name}: its record was removed{runs}; the lab of that name {done.other.text()}")
    return "\n".join(lines) or "no lab to take down"


def status_text(labs: Sequence[LabStatus], *, detail: bool) -> str:
    """A table of labs, or one lab line by line."""
    if not labs:
        return "no lab is running; run ./inv up zone to start one"
    if detail:
        lab, lists = labs[0], ("bgp", "missing_sessions", "gaps")
        rows = [(k, _value_text(v)) for k, v in lab.to_json().items() if k not in lists]
        if not lab.control:
            rows.append(("bgp", f"{lab.bgp.established} of {lab.bgp.expected} established"))
        rows += _first_rows("missing", [each.text() for each in lab.missing_sessions], lab.lab)
        if not lab.faults and not lab.missing_sessions:  # else gaps follow from them
            rows += _first_rows("gaps", lab.gaps, lab.lab)
        return table(("lab", lab.lab), rows[1:])
    header = ("lab", "runtime", "state", "converged", "switches", "hosts", "links", "bgp", "from")
    return table(
        header,
        [
            (
                *(s.lab, s.runtime, s.state, _value_text(s.converged), str(s.switches), str(s.hosts)),
                *(str(s.links), s.control or f"{s.bgp.established}/{s.bgp.expected}", s.source),
            )
            for s in labs
        ],
    )


def _first_rows(name: str, lines: Sequence[str], lab: str) -> list[tuple[str, str]]:
    """Rows of lines that can be many: the first ones, and how many more there are."""
    rows = [("" if at else name, line) for at, line in enumerate(lines[:_LINES])]
    more = len(lines) - len(rows)
    return [*rows, ("", f"and {more} more: ./inv status {lab} --format json lists all")] if more else rows


def _value_text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_value_text(each) for each in value) or "none"
    words = {True: "yes", False: "no", None: "no routing program"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def checks_text(checks: Sequence[CheckResult]) -> str:
    """A table of checks, and the verdict."""
    rows = [(c.name, "skipped" if c.skipped else "ok" if c.ok else "FAILED", c.detail) for c in checks]
    failed = [c.name for c in checks if not c.ok]
    verdict = f"failed: {', '.join(failed)}" if failed else "all checks passed"
    return table(("check", "result", "details"), rows) + "\n\n" + verdict


def images_text(found: Sequence[Image], removed: Sequence[str]) -> str:
    """A table of images, and what was removed."""
    rows = [(i.role, i.name, "built" if i.built else "already there", f"{i.bytes / 1e6:.0f} MB") for i in found]
    lines = [table(("for", "image", "", "size"), rows)]
    return "\n".join([*lines, *(f"removed {name}" for name in removed)])


def steps_text(steps: Sequence[SetupStep]) -> str:
    """A table of the steps of `setup`: done now, or already done."""
    return table(("step", "", "details"), [(s.name, "done" if s.done else "already done", s.detail) for s in steps])


def lab_text(found: LabInventory) -> str:
    """A table of all nodes. `address` is a switch's loopback, or the address of a host's only NIC."""
    rows = [
        (
            node.name,
            _role(node),
            "stopped" if node.trouble else "running",
            str(node.asn or "-"),
            _address(node),
            ", ".join(_link(node, port) for port in node.ports),
        )
        for node in found.nodes
    ]
    head = (
        f"{found.lab}: {found.switches} switches, {found.hosts} hosts, {found.links} links; runtime {found.runtime}\n"
        f"topology {found.topology}"
    )
    columns = ("node", "role", "state", "AS", "address", "ports and peers")
    example = found.nodes[0].name if found.nodes else "NODE"
    more = f"./inv inspect {found.lab} --node {example} shows one node: rates, MTU, BGP states"
    return f"{head}\n\n{table(columns, rows)}\n\n{more}"


def nodes_text(found: LabInventory) -> str:
    """The details of each node."""
    return "\n\n\n".join(_node_text(found.lab, node) for node in found.nodes)


def _node_text(lab: str, node: NodeEntry) -> str:
    facts = [
        ("role", _role(node)),
        ("state", f"stopped: {node.trouble}" if node.trouble else "running"),
        ("AS", str(node.asn) if node.asn else ""),
        ("loopback", node.loopback),
        ("router ID", node.router_id),
        ("prefix", node.prefix),
        *(
            (name, ", ".join(rows))
            for name, rows in node.others.items()
            if {row.partition("/")[0] for row in rows} != {node.loopback}  # which has a row of its own
        ),
        ("namespace", node.netns),
    ]
    head = table((node.name, f"of lab {lab}"), [(name, value) for name, value in facts if value])
    network = ["network"] if any(port.network for port in node.ports) else []
    columns = ("port", "link", "peer", "peer AS", "BGP", "rate", "MTU", *network, "address and MAC")
    rows = [
        (
            port.name,
            "-" if port.up is None else "up" if port.up else "down",
            port.peer,
            str(port.peer_as or "-"),
            port.bgp or "-",
            format_rate(port.rate_bps),
            str(port.mtu),
            *([port.network] if port.network else []),
            " ".join([*port.addresses, port.mac, *([f"({port.attached})"] if port.attached else [])]),
        )
        for port in node.ports
    ]
    return f"{head}\n\n{table(columns, rows)}" if rows else head


def _role(node: NodeEntry) -> str:
    return str(node.role) if node.role == "host" else node.title


def _link(node: NodeEntry, port: PortEntry) -> str:
    """`eth1->ctsw1:eth1`; for a host with several NICs `eth1(10.0.0.2/24)->rtsw1:eth3`."""
    own = f"({' '.join(port.addresses)})" if node.role == "host" and len(node.ports) > 1 and port.addresses else ""
    notes = f"{' (down)' if port.up is False else ''}{f' ({port.attached})' if port.attached else ''}"
    return f"{port.name}{own}->{port.peer}{notes}"


def _address(node: NodeEntry) -> str:
    if node.role == "host" and len(node.ports) == 1:
        return " ".join(node.ports[0].addresses) or "-"
    return node.loopback or " ".join(node.others.get("lo", ())) or "-"


def faults_text(faults: Sequence[PortFault], k: int, example: str) -> str:
    """The output of `./inv fault`. k: of the fabric. example: a port."""
    if not faults:
        return f"no fault of packets is set on any link; set one as in ./inv fault {example} --loss 1/256"
    lines = [table(_FAULT_COLUMNS, [_cells(each, k) for each in faults]), "", _FAULT_LEGEND]
    if any(each.fault.delay_ns for each in faults):
        lines.append(_FAULT_SCALE.format(k=k))
    lines += [text for by, text in _FAULT_SOURCES.items() if any(each.by == by for each in faults)]
    return "\n".join(lines)


def _cells(each: PortFault, k: int) -> tuple[str, ...]:
    found = each.counts
    what = each.fault.text(k) + (f" ({each.by})" if each.by in _FAULT_SOURCES else "")
    if found is None:
        return each.port, each.peer, f"{what}: missing, ./inv up --repair sets it again", *["-"] * len(COUNTS)
    return each.port, each.peer, what, *(f"{found[word]:,}" if found[word] else "-" for word in COUNTS)


_NODES = 4  # of a shard that are listed


def cut_json(fabric: Fabric, found: Cut, ahead: ShardingForecast) -> dict[str, Any]:
    """`shards`, `cut_links`, `tunnels`, `imbalance`, and `up`: the seconds of its phases."""
    ends = Counter(name for each in found.links for name in each.shards)
    shards = [
        {
            "name": each.name,
            "switches": each.switches,
            "hosts": len(each.nodes) - each.switches,
            "cut_links": ends[each.name],
            "memory_bytes": each.memory_bytes,
            "line_rate_cpus": round(each.cpus, 2),
            "nodes": list(each.nodes),
        }
        for each in found.shards
    ]
    links = [
        {"a": ":".join(each.link.a), "b": ":".join(each.link.b), "shards": list(each.shards)} for each in found.links
    ]
    seconds = {phase: round(value, 1) for phase, value in ahead.seconds.items()}
    return {
        "lab": fabric.name,
        "shards": shards,
        "cut_links": links,
        "tunnels": [{"shards": sorted(pair), "cut_links": count} for pair, count in found.tunnels.items()],
        "imbalance": round(found.imbalance, 3),
        "up": {
            "cpus": ahead.cpus,
            "seconds": seconds,
            "api_calls": ahead.api_calls,
            "bounds": [round(each, 1) for each in ahead.bounds],
            "busy": round(ahead.busy, 1) if ahead.local else None,
        },
        "limits": list(ahead.limits),
    }


def cut_text(fabric: Fabric, found: Cut, ahead: ShardingForecast) -> str:
    """The same as lines of at most 100 columns, without the list of cut links."""
    return "\n".join(_lines(fabric, found, ahead))


def _lines(fabric: Fabric, found: Cut, ahead: ShardingForecast) -> Iterator[str]:
    between = len(fabric.links) - len(fabric.host_ports)
    shards, tunnels = many(len(found.shards), "shard"), many(len(found.tunnels), "tunnel")
    yield f"{fabric.name} in {shards}: {len(found.links):,} of {between:,} links between switches are cut; {tunnels}"
    ends = Counter(name for each in found.links for name in each.shards)
    rows = [
        [
            each.name,
            f"{each.switches:,}",
            f"{len(each.nodes) - each.switches:,}",
            f"{ends[each.name]:,}",
            f"{each.memory_bytes / (1 << 20):,.0f} MiB",
            f"{each.cpus:.1f}",
            some_of(each.nodes, _NODES),
        ]
        for each in found.shards
    ]
    yield table(["shard", "switches", "hosts", "cut links", "memory", "CPUs", "nodes"], rows)
    memory = sum(each.memory_bytes for each in found.shards)
    yield from wrapped(
        f"memory: {memory / (1 << 20):,.0f} MiB, {MARGIN - 1:.0%} more than measured costs; the largest shard is "
        f"{found.imbalance:.1%} above the mean"
    )
    yield "CPUs: while all NICs send at line rate"
    phases = ", ".join(f"{phase} {value:.1f} s" for phase, value in ahead.seconds.items())
    low, high = ahead.bounds
    where = many(round(ahead.cpus), "idle CPU") + ("" if ahead.local else " a shard")
    calls = "" if ahead.local else f", and {many(ahead.api_calls, 'API call')}"
    yield from wrapped(f"up: {low:.{low < 20:d}f} to {high:.{high < 20:d}f} s with {where} ({phases}){calls}")
    if ahead.local and ahead.busy > high:
        yield f"up beside what runs on this machine now: about {ahead.busy:.0f} s"
    for limit in ahead.limits:
        yield from wrapped(f"limit: {limit}")
