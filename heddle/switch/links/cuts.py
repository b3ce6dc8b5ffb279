"""Cut links: links whose other end is in another shard. Their stubs, their programs, and what has crossed them.

In:  a lab's fabric whose queues are pinned, and its cut links; the namespace of the stubs.
Out: programs at the stubs and at the tunnel (bpf/cut.h); packets sent and received by each cut port, and the losses of
the tunnel from the counts of both ends.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from heddle.base.families import Address
from heddle.base.problems import MachineError, Problem
from heddle.base.process import run
from heddle.fabric.model import Fabric
from heddle.host import delivery
from heddle.kernel import inorder
from heddle.kernel.fib import read_names
from heddle.kernel.libbpf import Program
from heddle.kernel.netlink import NetlinkError, RouteSocket
from heddle.switch.hashing.hashing import pin_dir
from heddle.switch.queues.classes import MOST_PORTS, OWNER, base_of, classid
from heddle.switch.queues.tcmessages import message

TUNNEL: Final = "tunnel"  # the VXLAN device
# Not IANA's 4789: Calico drops that from pods (felix PR 2063, "Drop VXLAN encapped packets originating in workloads").
TUNNEL_PORT: Final = 14789
BEAT: Final = 0x88B5  # EtherType of the shards' beats: IEEE 802, local experimental 1
_BLOCKS: Final = "ingress_block {} egress_block {}"
_TUNNEL_MTU: Final = 65000  # larger than any port's: its packets are cut into fragments on the way


@dataclass(frozen=True, slots=True)
class CutEnd:
    """The end of a cut link that is here. number, far: ids of its port, and of the port at the other end.

    remote: the address of the other shard, where the far port is. vni, own_vni: the numbers of the far port, and of
    this one, in the whole fabric: tunnels carry them.
    """

    node: str
    port: str
    number: int
    far: int
    remote: Address
    vni: int
    own_vni: int

    @property
    def stub(self) -> str:
        """The peer of its port."""
        return stub_name(self.number)


@dataclass(frozen=True, slots=True)
class CutCount:
    """Frames of one end since the lab came up: that it sent into the tunnel, and that came out for it."""

    port: str
    peer: str
    sent: int
    sent_bytes: int
    received: int
    received_bytes: int


def stub_name(number: int) -> str:
    """The name of a port's stub, from the port's id."""
    return f"p{number}"


def tunnel_port(options: Mapping[str, str]) -> int:
    """The UDP port of a lab's tunnels, by the options of its record."""
    return int(options.get("tunnel_port") or TUNNEL_PORT)


def tunnel_line(netns: str, port: int) -> str:
    """The words of `ip` that make the tunnel: its packets are sent and received where `ip` runs, not in `netns`."""
    device = f"link add {TUNNEL} netns {netns} mtu {_TUNNEL_MTU} type vxlan"
    return f"{device} external dstport {port} nolearning df unset"


def attach(fabric: Fabric, netns: Path, ends: Sequence[CutEnd]) -> None:
    """Attach the programs, and write where each end leads. netns: of the stubs. MachineError where they are refused."""
    from heddle.switch.queues.cells import LabQueues

    stubs = {end.stub: end.number for end in ends}
    inorder.apply(netns, stubs, delivery.chosen().delivery, inorder.cpus_here())
    with RouteSocket(netns) as netlink:
        indexes = {name: index for index, name in read_names(netlink).items()}
    with LabQueues.pinned(fabric) as live:
        for end in ends:
            packed = end.remote.packed
            words = struct.unpack("<4I", packed) if len(packed) == 16 else (int(end.remote), 0, 0, 0)
            live.cuts["tunnel"][end.far], live.cuts["ipv6"][end.far] = indexes[TUNNEL], len(packed) == 16
            live.cuts["remote"][end.far], live.cuts["vni"][end.far] = words, end.vni
            live.cuts["stub"][end.number], live.arrivals[end.own_vni] = indexes[end.stub], end.number
    pins = pin_dir(fabric.name, OWNER)
    lines = [f"qdisc replace dev {TUNNEL} clsact"]
    for hook, program in (("ingress", "cut_in"), (f"egress protocol {BEAT:#x}", "cut_beat")):
        what = f"bpf direct-action object-pinned {pins / program}"
        lines.append(f"filter replace dev {TUNNEL} {hook} pref 5 handle 1 {what}")
    run(["nsenter", f"--net={netns}", "tc", "-batch", "-"], stdin="\n".join(lines) + "\n")
    # Stubs share blocks of filters, as ports do (portqueues.py): mostly one, since stubs are made in the order of ids.
    bases = {end.stub: base_of(end.far, indexes[end.stub]) for end in ends}
    lines = [f"qdisc add dev {stub} {_BLOCKS.format(each, each + MOST_PORTS)} clsact" for stub, each in bases.items()]
    for base in dict.fromkeys(bases.values()):
        start = f"filter replace block {base} pref 5 handle 1 bpf direct-action"
        lines.append(f"{start} object-pinned {pins / 'cut_out'} classid {classid(base)}")

    def refused(number: int, error: NetlinkError) -> None:
        if error.errno != errno.EEXIST:  # attached before the other shard had another address
            raise MachineError(Problem(netns.name, f"tc {lines[number]}", f"was refused: {error.strerror}"))

    with RouteSocket(netns) as netlink, Program.pinned(pins / "cut_out") as pinned:
        netlink.change_all([message(line, indexes, lambda _: pinned.fd) for line in lines], refused)


def read_counts(fabric: Fabric, ends: Iterable[CutEnd]) -> list[CutCount]:
    """What has crossed the ends that are here."""
    from heddle.switch.queues.cells import LabQueues

    with LabQueues.pinned(fabric) as live:
        rows = live.cuts.copy()
    return [
        CutCount(
            f"{end.node}:{end.port}",
            fabric.by_name[end.node].port(end.port).peer_ref,
            *(int(rows[name][end.far]) for name in ("sent", "sent_bytes")),
            *(int(rows[name][end.number]) for name in ("received", "received_bytes")),
        )
        for end in ends
    ]


@dataclass(frozen=True, slots=True)
class TunnelUse:
    """One direction of a cut link: frames that `port` sent over the tunnel since the lab came up, and their losses.

    lost: at least so many did not arrive. unsure: so many more may be lost, or were on their way in each reading.
    """

    port: str
    sent: int
    lost: int
    unsure: int = 0


def tunnel_uses(readings: Sequence[Iterable[CutCount]]) -> list[TunnelUse]:
    """The losses, from several readings of both ends, oldest first.

    The ends are not read at the same moment. A frame that was sent before a reading has arrived before the next one, or
    is lost; and one that has arrived before a reading was sent before the next one. So sent - received has a lower and
    an upper bound from each two readings.
    """
    tables = [{each.port: each for each in reading} for reading in readings]
    last, found = tables[-1], []
    for port, row in last.items():
        if row.peer in last:
            pairs = [(one[port], two[port], one[row.peer], two[row.peer]) for one, two in pairwise(tables)]
            least = max(one.sent - two_far.received for one, _, _, two_far in pairs)
            most = min(two.sent - one_far.received for _, two, one_far, _ in pairs)
            found.append(TunnelUse(port, row.sent, max(0, least), max(0, most - max(0, least))))
    return found
