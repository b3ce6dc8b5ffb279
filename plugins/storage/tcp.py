"""tcp: the hosts' own kernels carry the data, over as many TCP connections for each pair of ranks as it has QPs.

A connection carries data in one direction, and this direction is proven. Switches and the sender's kernel count the
acknowledgements in the other one, so that drops can be attributed. The source port is that of a queue pair, and the
receiver listens at a port that is the queue pair's number. So a plan knows every 5-tuple before the run, and switches
count each connection as a flow (Flow.qpn). Columns are read from TCP_INFO (tcpinfo.py).
"""

from __future__ import annotations

import errno
import os
import socket
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self

from heddle.base.declared import Declared
from heddle.base.problems import InputError, Problem, Problems, did_you_mean
from heddle.endpoints.countercolumn import Column
from heddle.endpoints.hoststack import HostStack
from heddle.endpoints.transports.protocol import Transport
from heddle.traffic.flow import Numbering
from heddle.traffic.options import MAX_QPS, NO_CONTROL, RunOptions
from heddle.traffic.plan import Plan
from heddle.wire.layout import PROTO_TCP
from heddle.wire.sport import SPORTS
from heddle_plugins.storage.tcpparams import LEAD, TcpParams

if TYPE_CHECKING:
    from heddle.endpoints.loops import NicLoop

_LISTENS: Final = 10_000  # the lowest port at which a rank may listen
_EACH: Final = 2560  # ports of each rank of a NIC: those of 14 ranks end below the source ports
_SPREAD: Final = 3000  # first ports differ between NICs
_LEAST_S: Final = 30.0
_SYSCTL: Final = Path("/proc/sys/net/ipv4")
_FAULTS: Final = {errno.ENOENT: "is not a congestion control of this kernel", errno.EPERM: "needs root"}


@dataclass(frozen=True, slots=True)
class TcpOptions:
    """What users choose of `tcp` alone."""

    streams: Annotated[int | None, Declared(
        "TCP connections from each rank to each of its peers (default: as --qps)", "Transport", value="N",
        least=1, most=MAX_QPS, hint="leave it out for one, or use --qps",
    )] = None  # fmt: skip
    # Both are filled in where a user types options, so that the header of a run names them.
    tcp_control: Annotated[str, Declared(
        "congestion control of the kernel, for tcp (default: the kernel's own)", "Congestion", value="NAME",
        words=("cubic", "reno", "bbr", "dctcp"), unlike="is not a congestion control",
    )] = ""  # fmt: skip
    tcp_ecn: Annotated[Literal["", "off", "on"], Declared(
        "whether TCP connections negotiate ECN: off (the kernel's default) or on", "Congestion",
        unlike="is not on or off",
    )] = ""  # fmt: skip


class TcpStack(HostStack):
    """TCP of the hosts' kernels."""

    def loop(self, plan: Plan, params: Any) -> NicLoop:
        from heddle_plugins.storage.tcploop import TcpLoop  # help lists all transports

        return TcpLoop(plan, params)


@dataclass(frozen=True, slots=True)
class Tcp(Transport):
    """The connections, with their parameters."""

    params: TcpParams

    columns: ClassVar[tuple[Column, ...]] = (
        Column("retransmitted", "packets", "retransmitted", "packets"),
        Column("out_of_order", "packets", "out of order", "order"),
        Column("ece", "packets", "acknowledged with ECE"),
        Column("rtt_us", "us", "smoothed round-trip time at the end, mean", mean=True),
        Column("min_rtt_us", "us", "shortest round-trip time, mean", mean=True),
        Column("cwnd", "packets", "congestion window at the end, mean", mean=True),
        Column("mss", "bytes", "segment size, mean", mean=True),
    )
    stack: ClassVar[HostStack | None] = TcpStack()
    numbering: ClassVar[Numbering] = Numbering(
        PROTO_TCP, lambda nic: _LISTENS + zlib.crc32(nic.encode()) % _SPREAD, _EACH
    )
    lead: ClassVar[int] = LEAD.size
    options: ClassVar[type[Any] | None] = TcpOptions

    @classmethod
    def typed(cls, typed: Mapping[str, Any]) -> Mapping[str, Any]:
        streams, qps = typed.get("streams"), typed.get("qps")
        if streams is not None and qps not in (None, 1, streams):
            why = f"does not go together with --qps {qps}: with --transport tcp, a queue pair is a stream"
            raise InputError(Problem("", f"--streams {streams}", why, "leave --qps out"))
        usual = {"dscp": 0, "tcp_control": usual_control(), "tcp_ecn": "off"}
        more = {} if streams is None else {"qps": streams}
        return {**typed, **{word: value for word, value in usual.items() if typed.get(word) is None}, **more}

    @classmethod
    def check(cls, options: RunOptions, problems: Problems) -> None:
        o, control = options, options.of(TcpOptions).tcp_control or usual_control()
        for flag, hint in {
            **({f"--cc {o.congestion}": "use --tcp-control, or --transport rc"} if o.congestion != NO_CONTROL else {}),
            **({"--admission on": "use --transport rc, or leave it out"} if o.admission else {}),
            **({f"--window {o.window}": "leave it out"} if o.window is not None else {}),
            **({f"--local-ack-timeout {o.timeout}": "leave it out"} if o.timeout is not None else {}),
        }.items():
            why = "works with queue pairs, but with --transport tcp the kernel decides when segments leave"
            problems.add(where="", what=flag, why=why, hint=hint)
        if why := refused(control):
            has = (_SYSCTL / "tcp_available_congestion_control").read_text(encoding="ascii").split()
            hint = did_you_mean(control, has)
            problems.add(where="", what=f"--tcp-control {control}", why=why, hint=hint)
        if wrong := [port for port in o.source_ports.ports if port not in SPORTS]:
            why = f"has {wrong[0]}, but streams have source ports from {SPORTS[0]} to {SPORTS[-1]}"
            problems.add(where="", what="--sport", why=why, hint="use --sport qpn, or ports in this range")

    @classmethod
    def of(cls, plan: Plan) -> Self:
        problems, o, own = Problems(), plan.options, plan.options.of(TcpOptions)
        cls.check(o, problems)
        _check_numbers(plan, problems)
        if same := next((q.flow for q in plan.qps if q.flow.src == q.flow.dst), None):
            what = f"rank {same.src_rank} and rank {same.dst_rank}"
            why = f"are both on {same.src}, whose kernel delivers between its own addresses, not by the fabric"
            problems.add(where="", what=what, why=why, hint="use --nvlink-rate 3600, or a --placement on other hosts")
        problems.raise_if_any()
        headers = 72 if plan.ip_version == 6 else 52  # with timestamps
        mss = min(end.mtu for end in plan.endpoints) - headers
        # The longest wait without a loss is that of an ACK timeout; losses double the kernel's timer each time.
        control = own.tcp_control or usual_control()
        return cls(TcpParams(control, own.tcp_ecn == "on", o.dscp << 2, mss, max(_LEAST_S, 8 * plan.timeout_s)))


def _check_numbers(plan: Plan, problems: Problems) -> None:
    """An error for a rank with more streams than ports."""
    for end in plan.endpoints:
        ends = sum((q.flow.src_rank == end.rank) + (q.flow.dst_rank == end.rank) for q in plan.qps)
        if ends > _EACH:
            what = f"--qps {plan.options.qps} on {len(plan.endpoints)} ranks"
            why = f"makes {ends:,} ends of streams at rank {end.rank}, and a rank has {_EACH:,} ports"
            problems.add(where="", what=what, why=why, hint="use fewer --streams or --ranks")
            return


def usual_control() -> str:
    """The congestion control that this kernel uses by default; `cubic` where it does not say."""
    try:
        return (_SYSCTL / "tcp_congestion_control").read_text(encoding="ascii").strip()
    except OSError:
        return "cubic"


def refused(control: str) -> str:
    """Why this kernel does not let a socket use a congestion control; empty if it does. It may load a module for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        except OSError as error:
            return _FAULTS.get(error.errno or 0, f"cannot be set: {os.strerror(error.errno or 0)}")
    return ""
