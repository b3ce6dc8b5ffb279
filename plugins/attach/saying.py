"""What the user reads when a port was attached: what is reachable, and what acts on the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from heddle.base.problems import HeddleError
from heddle.base.sysctls import read_sysctl
from heddle.base.tables import many, some_of
from heddle.base.units import format_rate
from heddle.fabric.wiring import Port
from heddle.kernel.namespace import inside
from heddle.lab.attached import Attachment, read
from heddle.lab.lab import Lab
from heddle_plugins.attach.attaching import routes_of


def attached_text(lab: Lab, rows: Sequence[Attachment]) -> str:
    """Lines for each attachment, then what is true of all."""
    lines = [line for row in rows for line in _lines(lab, row)]
    queues = lab.fabric.policy.queues
    classes: dict[int, list[int]] = defaultdict(list)
    for dscp, number in enumerate(queues.class_of_dscp):
        classes[number].append(dscp)
    said = "; ".join(f"class {n} ({queues.kind(n)}) DSCP {_ranges(found)}" for n, found in sorted(classes.items()))
    lines.append(f"classes: {said}")
    if queues.paused:
        lines.append("pauses stop the queue of the port, not the device: its sockets fill, and then they block")
    return "\n".join([*lines, *_warnings(lab, rows)])


def _lines(lab: Lab, row: Attachment) -> Iterator[str]:
    port = lab.fabric.by_name[row.host].port(row.port)
    nics = sum(each.network == port.network for each in lab.fabric.host_ports) - 1
    yield row.text
    yield f"  address {row.address}, MTU {port.mtu}, {format_rate(port.rate_bps)}"
    for text in row.routes or [*routes_of(lab.fabric, port)]:
        prefix, _, gateway, *_ = text.split()
        yield f"  reaches {many(nics, 'other NIC')} in {prefix} via {gateway}"
    if row.kind == "tap":
        yield f"  of the guest: ip addr add {row.address} dev eth0; ip link set eth0 mtu {port.mtu} up"
        prefix, _, gateway, *_ = next(routes_of(lab.fabric, port), "- via -").split()
        yield f"  and then: ip route add {prefix} via {gateway}"
        yield f"  -netdev tap,id=n0,ifname={row.device},script=no,downscript=no -device virtio-net-pci,{_guest(port)}"


def _guest(port: Port) -> str:
    return f"netdev=n0,mac={port.mac},host_mtu={port.mtu}"


def _ranges(numbers: Sequence[int]) -> str:
    """`0-23, 26`."""
    found: list[list[int]] = []
    for each in numbers:
        if found and found[-1][-1] == each - 1:
            found[-1].append(each)
        else:
            found.append([each])
    return ", ".join(f"{each[0]}-{each[-1]}" if len(each) > 1 else str(each[0]) for each in found)


def _warnings(lab: Lab, rows: Sequence[Attachment]) -> Iterator[str]:
    """What reaches further than the device, or does not pass the fabric."""
    spaces: dict[tuple[int, int], list[Attachment]] = defaultdict(list)
    for row in read(lab.dir):
        if row.kind != "tap":
            spaces[row.identity].append(row)
    mine = {row.identity: row for row in rows if row.kind != "tap"}
    for identity, row in mine.items():
        if len(several := spaces[identity]) > 1:
            names = some_of([each.ref for each in several])
            yield f"warning: {names} are in one namespace: its kernel delivers packets between them without the fabric"
        yield f"the fabric reaches programs of {row.target} that listen on {row.address} or on all addresses"
        with suppress(HeddleError, OSError), inside(Path(row.space)):
            version = lab.fabric.policy.ip_version
            key = "net.ipv4.ip_forward" if version == 4 else "net.ipv6.conf.all.forwarding"
            if read_sysctl(key).strip() != "0":
                yield f"warning: {row.target} forwards packets ({key}): the fabric reaches what is behind it, too"
    yield "nothing else of this machine can be reached through the fabric"
