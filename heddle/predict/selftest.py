"""Compare the prediction with the running kernel, once per boot, kernel and version of the arithmetic.

In:  the running kernel, as a test router in a namespace without a name.
Out: SelfTest: about a thousand choices of the kernel, over policies, fields, seeds, weights, a dead port, a resilient
     group and both IP versions, compared with the prediction; stored in the state directory.
The kernel's documentation says that its multipath hash may change. If it has changed, Heddle reports it and uses kernel
lookups instead of its prediction.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from heddle.base import state
from heddle.base.arrays import I32, U32
from heddle.base.problems import HeddleError, MachineError
from heddle.base.process import run
from heddle.fabric.hashmodes import POLICY_CUSTOM, POLICY_L4
from heddle.host.doctor import Check
from heddle.kernel.namespace import nameless
from heddle.kernel.netlink import RTM_GETROUTE, RouteSocket, attribute, attributes
from heddle.kernel.uapi import RTA_DPORT, RTA_DST, RTA_IIF, RTA_IP_PROTO, RTA_OIF, RTA_SPORT, RTA_SRC, RTMSG
from heddle.predict.forwarding import NOWHERE, FlowArrays, forwarding_of
from heddle.predict.hashes import POLICY_L3, kernel_hash
from heddle.spec.routingpolicy import FIELDS_5_TUPLE
from heddle.traffic.flow import PROTOCOL_SHIFT
from heddle.wire.layout import PROTO_TCP, ROCE_PORT

MAX_PACKETS: Final = 256  # of one `send`: they fit into a socket's buffer
ROUTED: Final = {4: "10.1.0.0/16", 6: "fd01::/32"}  # the prefixes of trial destinations
_SOURCES: Final = {4: (0x0A020000,), 6: (0xFD020000, 0, 0, 0)}
_DESTINATIONS: Final = {4: (0x0A010000,), 6: (0xFD010000, 0, 0, 0)}
_GATEWAYS: Final = {4: "169.254.0.1", 6: "fe80::1"}
_ETHERTYPES: Final = {4: 0x0800, 6: 0x86DD}
_MAC: Final = bytes.fromhex("020000000002")
_PEER_MAC: Final = "02:00:00:00:00:01"
_MARK: Final = b"trial:"

_SYSCTL: Final = Path("/proc/sys/net")
_ETH_P_ALL: Final = 0x0003
_PACKET_OUTGOING: Final = 4
_PATIENCE_S: Final = 2.0


def some_flows(count: int, version: int, seed: int) -> FlowArrays:
    """Flows to ROUTED with random ports, RoCEv2 and TCP in turn; the same seed gives the same flows."""
    chance = np.random.default_rng(seed)

    def addresses(base: Sequence[int]) -> U32:
        words = np.tile(np.array(base, dtype=np.uint32), (count, 1))
        words[:, -1] |= chance.integers(1, 0xFFFF, count, dtype=np.uint32)
        if version == 6:
            words[:, 2] = chance.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
        return words if version == 6 else words[:, 0]

    sport = chance.integers(0xC000, 0x10000, count).astype(np.uint32)
    qpn = chance.integers(2, 1 << 24, count).astype(np.uint32)
    dport = np.full(count, ROCE_PORT, dtype=np.uint32)
    dport[1::2] = qpn[1::2] & 0xFFFF
    qpn[1::2] = PROTO_TCP << PROTOCOL_SHIFT | dport[1::2]
    return FlowArrays(addresses(_SOURCES[version]), addresses(_DESTINATIONS[version]), sport, dport, qpn)


class Trial:
    """A test router to query the kernel: packets enter at `in`, and leave at `out0`, `out1`, ... Needs root.

    It answers with the port that it selects for a flow: by netlink (`ask`), or by real packets (`send`). Its namespace
    belongs to this thread for a with block. It is removed afterwards, even if the process is killed.
    """

    def __init__(self, ports: int) -> None:
        self.ports = ports
        self.versions = (4, 6) if (_SYSCTL / "ipv6").exists() else (4,)  # IP versions of this kernel
        self._objects = 1000  # the next number of a nexthop object
        names = ["in", *(f"out{i}" for i in range(ports))]
        lines = ["link set lo up"]
        for name in names:
            lines.append(f"link add {name} address {_MAC.hex(':')} type veth peer name far-{name}")
            lines += [f"link set {name} up", f"link set far-{name} up"]
        self._ip(lines)
        for each in ("all", "default", "in"):
            (_SYSCTL / "ipv4/conf" / each / "rp_filter").write_text("0")  # sources of trials have no route back
        (_SYSCTL / "ipv4/ip_forward").write_text("1")
        for name, value in (("forwarding", "1"), ("disable_ipv6", "0")) if 6 in self.versions else ():
            (_SYSCTL / "ipv6/conf/all" / name).write_text(value)
        self._index = {name: socket.if_nametoindex(name) for name in names}
        self._port = {index: int(name[3:]) for name, index in self._index.items() if name != "in"}
        for port in range(ports):
            self._neighbours(port)

    def sysctl(self, version: int, policy: int, fields: int, seed: int) -> None:
        """Set the kernel's hashing."""
        for name, value in (("policy", policy), ("fields", fields)):
            (_SYSCTL / f"ipv{version}" / f"fib_multipath_hash_{name}").write_text(str(value))
        (_SYSCTL / "ipv4/fib_multipath_hash_seed").write_text(str(seed))  # IPv6 uses this one, too

    def route(self, version: int, weights: Sequence[int], prefix: str = "") -> None:
        """Set one route to `prefix` (default ROUTED), over as many ports as there are weights."""
        onlink = "onlink " if version == 4 else ""
        hops = [f"nexthop via {_GATEWAYS[version]} dev out{i} {onlink}weight {w}" for i, w in enumerate(weights)]
        self._ip([f"route replace {prefix or ROUTED[version]} {' '.join(hops)}"], version)

    def buckets(self, version: int, count: int, ports: int) -> tuple[int, ...]:
        """Set one route over a resilient group of `count` buckets; returns the port of each bucket in the kernel."""
        first = self._objects
        self._objects = group = first + ports
        self._objects += 1
        onlink = " onlink" if version == 4 else ""
        singles = [f"nexthop add id {first + i} via {_GATEWAYS[version]} dev out{i}{onlink}" for i in range(ports)]
        self._ip(singles, version)
        members = "/".join(str(first + i) for i in range(ports))
        self._ip([f"nexthop add id {group} group {members} type resilient buckets {count}"])  # of no family
        self._ip([f"route replace {ROUTED[version]} nhid {group}"], version)
        said = run(["ip", "nexthop", "bucket", "show", "id", str(group)]).out
        return tuple(int(line.split(" nhid ")[1].split()[0]) - first for line in said.splitlines())

    def link(self, port: int, *, up: bool) -> None:
        """Set a port down, so that the kernel marks its next hops dead; or up again, with its neighbours."""
        self._ip([f"link set out{port} {'up' if up else 'down'}"])
        if up:
            self._neighbours(port)

    def ask(self, flows: FlowArrays) -> I32:
        """The kernel's answer (RTM_GETROUTE) for each flow: the number of the port, -1 for an error."""
        bits = 128 if flows.ipv6 else 32
        head = RTMSG.pack(socket.AF_INET6 if flows.ipv6 else socket.AF_INET, bits, bits, 0, 0, 0, 0, 0, 0)
        iif = attribute(RTA_IIF, struct.pack("=I", self._index["in"]))
        questions = [
            b"".join((
                head, attribute(RTA_DST, dst), attribute(RTA_SRC, src), iif, attribute(RTA_IP_PROTO, bytes([protocol])),
                attribute(RTA_SPORT, struct.pack("!H", sport)), attribute(RTA_DPORT, struct.pack("!H", dport)),
            ))
            for (src, dst, sport, dport), protocol in zip(flows.rows(), flows.protocol.tolist(), strict=True)
        ]  # fmt: skip
        with RouteSocket(Path("/proc/thread-self/ns/net")) as netlink:
            answers = netlink.ask(RTM_GETROUTE, questions)
        ports = [NOWHERE if isinstance(answer, int) else self._out(answer) for answer in answers]
        return np.array(ports, dtype=np.int32)

    def send(self, flows: FlowArrays) -> I32:
        """The number of the port at which a packet of each flow leaves, -1 for none; at most MAX_PACKETS flows."""
        if len(flows) > MAX_PACKETS:
            raise ValueError(f"a trial sends at most {MAX_PACKETS} packets at a time")
        found = np.full(len(flows), NOWHERE, dtype=np.int32)
        deadline = time.monotonic() + _PATIENCE_S
        with (
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)) as seen,
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire,
        ):
            seen.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            wire.bind(("far-in", 0))
            for number, (row, protocol) in enumerate(zip(flows.rows(), flows.protocol.tolist(), strict=True)):
                wire.send(_frame(number, *row, protocol))
            while (found == NOWHERE).any() and (left := deadline - time.monotonic()) > 0:
                seen.settimeout(left)
                try:
                    data, (name, _, direction, *_) = seen.recvfrom(256)
                except TimeoutError:
                    break
                if direction == _PACKET_OUTGOING and name.startswith("out") and data[-8:-2] == _MARK:
                    found[int.from_bytes(data[-2:], "big")] = int(name[3:])
        return found

    def _out(self, answer: bytes) -> int:
        out = attributes(answer, RTMSG.size).get(RTA_OIF)
        return NOWHERE if out is None else self._port.get(struct.unpack("=I", out)[0], NOWHERE)

    def _neighbours(self, port: int) -> None:
        gateways = [_GATEWAYS[version] for version in self.versions]
        self._ip([f"neigh replace {each} lladdr {_PEER_MAC} dev out{port} nud permanent" for each in gateways])

    def _ip(self, lines: Sequence[str], version: int = 4) -> None:
        run(["ip", *(["-6"] if version == 6 else []), "-batch", "-"], stdin="\n".join(lines) + "\n")


@contextmanager
def trial(ports: int) -> Iterator[Trial]:
    """A router for a with block; this thread is in its namespace. MachineError when the kernel refuses."""
    with nameless():
        yield Trial(ports)


def _frame(number: int, src: bytes, dst: bytes, sport: int, dport: int, protocol: int) -> bytes:
    """A whole packet that ends with its number. With another protocol than UDP, its ports are those that are hashed."""
    payload = _MARK + struct.pack("!H", number)
    udp = struct.pack("!HHHH", sport, dport, 8 + len(payload), 0)
    if len(src) == 16:
        head = struct.pack("!IHBB", 6 << 28, 8 + len(payload), protocol, 64) + src + dst
        return _MAC + bytes(6) + struct.pack("!H", _ETHERTYPES[6]) + head + udp + payload
    head = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(payload), 0, 0x4000, 64, protocol, 0) + src + dst
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    head = head[:10] + struct.pack("!H", ~total & 0xFFFF) + head[12:]
    return _MAC + bytes(6) + struct.pack("!H", _ETHERTYPES[4]) + head + udp + payload


_FILE: Final = "selftest.json"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_CODE: Final = ("hashes.py", "forwarding.py", "selftest.py")
_FLOWS: Final = 16  # of one comparison: a different hash agrees by chance in at most 1 of 2^16 cases
_PORTS: Final = 8
_BUCKETS: Final = 32
_WEIGHTS: Final = ((1,) * _PORTS, (1, 2, 3, 10), (5, 5, 5))
_POLICIES: Final = (
    (POLICY_CUSTOM, FIELDS_5_TUPLE), (POLICY_L4, FIELDS_5_TUPLE), (POLICY_L3, FIELDS_5_TUPLE),
    (POLICY_CUSTOM, 0x03), (POLICY_CUSTOM, 0x15), (POLICY_CUSTOM, 0x3F),
)  # fmt: skip
_SEEDS: Final = (1, 99, 3_000_000_000)

Hash = Callable[[FlowArrays, int, int, int], U32]


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The verdict. asked: the number of compared choices. detail: the difference, or why nothing was compared."""

    state: Literal["agrees", "differs", "unchecked"]
    kernel: str
    asked: int = 0
    detail: str = ""

    @property
    def differs(self) -> bool:
        """True when the prediction is wrong on this kernel."""
        return self.state == "differs"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """One sentence."""
        if self.state == "agrees":
            return f"prediction and kernel {self.kernel} agree on {self.asked} choices"
        if self.state == "differs":
            return f"kernel {self.kernel} chooses differently from the prediction: {self.detail}"
        return f"prediction not compared with kernel {self.kernel}: {self.detail}"


@cache
def verdict(*, keep: bool = True) -> SelfTest:
    """The verdict for this kernel. The first call since boot compares, which takes about a second.

    Without root it is `unchecked`, unless root has compared before. keep: store a new verdict in the state directory.
    """
    stored = _stored()
    if stored is not None:
        return stored
    if os.geteuid() != 0:
        return SelfTest("unchecked", platform.release(), detail="it needs root")
    found = examine()
    if keep and found.state != "unchecked":
        with suppress(HeddleError):  # a full or foreign state directory: the next call compares again
            remember(found)
    return found


def remember(found: SelfTest) -> None:
    """Store a verdict for this boot, kernel and version; MachineError when the state directory cannot be written."""
    state.write_json(state.state_dir() / _FILE, {"key": _key(), "verdict": found.to_json()})


def _stored() -> SelfTest | None:
    try:
        data = json.loads((state.state_dir() / _FILE).read_text())
        return SelfTest(**data["verdict"]) if data["key"] == _key() else None
    except (OSError, ValueError, LookupError, TypeError):
        return None  # no verdict yet, or not one that Heddle wrote: compare again


def _key() -> list[str]:
    return [_boot(), platform.release(), _code()]


def doctor_check() -> Check:
    """For `doctor`: whether this kernel agrees with the prediction. The answer is not stored."""
    found = verdict(keep=False)
    # As root the reason is in the text: a missing program, for example.
    fix = "run sudo ./inv doctor to compare" if found.state == "unchecked" and os.geteuid() != 0 else ""
    return Check("prediction", found.state == "agrees", found.text(), fix, required=False)


def examine(hashed: Hash = kernel_hash) -> SelfTest:
    """Compare now. hashed: the hash function to compare with the kernel."""
    asked = 0
    try:
        with trial(_PORTS) as router:
            for what, flows, expected, answers in _comparisons(router, hashed):
                wrong = int((expected != answers).sum())
                asked += len(flows)
                if wrong:
                    return SelfTest("differs", platform.release(), asked, f"{wrong} of {len(flows)} flows with {what}")
    except (HeddleError, OSError) as error:
        return SelfTest("unchecked", platform.release(), detail=str(error).partition("\n")[0])
    return SelfTest("agrees", platform.release(), asked)


def _comparisons(router: Trial, hashed: Hash) -> Iterator[tuple[str, FlowArrays, I32, I32]]:
    """The comparison in words, the flows, the predicted ports, and the kernel's ports."""
    for version in router.versions:
        for number, weights in enumerate(_WEIGHTS):
            router.route(version, weights)
            seed = _SEEDS[number]
            for policy, fields in _POLICIES:
                router.sysctl(version, policy, fields, seed)
                flows = some_flows(_FLOWS, version, seed ^ policy << 8 ^ fields)
                ports = _ports(weights, hashed(flows, seed, policy, fields))
                what = f"IPv{version}, policy {policy}, fields {fields:#x}, seed {seed}, weights {list(weights)}"
                yield f"{what}, by packets", flows, ports, router.send(flows)
                if (version, policy) != (6, POLICY_CUSTOM):  # RTM_GETROUTE hashes once less there: see oracle.py
                    yield what, flows, ports, router.ask(flows)
        yield from _degraded(router, version, hashed)


def _degraded(router: Trial, version: int, hashed: Hash) -> Iterator[tuple[str, FlowArrays, I32, I32]]:
    """The same with a port that is down, and with a resilient group if the kernel supports it."""
    seed, lost = 7, 2
    router.route(version, (1, 2, 3, 10))
    router.sysctl(version, POLICY_L4, FIELDS_5_TUPLE, seed)
    flows = some_flows(_FLOWS, version, seed)
    value = hashed(flows, seed, POLICY_L4, FIELDS_5_TUPLE)
    router.link(lost, up=False)
    yield f"IPv{version}, a dead next hop", flows, _ports((1, 2, 3, 10), value, dead=lost), router.ask(flows)
    router.link(lost, up=True)
    try:
        homes = router.buckets(version, _BUCKETS, 4)
    except MachineError:
        return  # before Linux 5.13
    yield f"IPv{version}, a resilient group", flows, _ports((1,) * 4, value, homes=homes), router.ask(flows)


def _ports(weights: Sequence[int], value: U32, *, dead: int = -1, homes: Sequence[int] = ()) -> I32:
    """The port that each hash selects among ports of these weights, or among buckets."""
    members = list(homes) or [port for port in range(len(weights)) if port != dead]
    shares = [1] * len(homes) or [weights[port] for port in members]
    table = np.zeros((1, 1), dtype=np.int32)
    names = [f"router:out{i}" for i in range(len(weights))]
    forwarding = forwarding_of(["router"], names, [-1] * len(names), table, [(members, shares, bool(homes))])
    return forwarding.choose(np.zeros(len(value), dtype=np.int32), value >> np.uint32(1))


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _code() -> str:
    """A digest of the arithmetic: a changed version is compared again."""
    digest = hashlib.sha256()
    for name in _CODE:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:16]
