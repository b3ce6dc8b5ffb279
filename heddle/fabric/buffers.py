"""How a switch lays its buffer out, and what `queues` of a fabric file and the rest of it say to each other.

In:  FabricSpec (check), or QueuesSpec and the rates and MTUs of one switch's ports (buffer_bytes).
Out: nothing, or ValueError by `at`; Budget: bytes of headroom, of reserve, and what all ports share.
Every number here is arithmetic; which packet is dropped by them, bpf/queue.c decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heddle.base.ethernet import HEADER, QUANTUM_BITS
from heddle.base.units import format_duration, format_rate
from heddle.spec.keys import at
from heddle.spec.queuespec import LARGEST_PFC_MTU, BufferSpec, QueuesSpec, round_down, round_up, shown

if TYPE_CHECKING:
    from heddle.spec.schema import FabricSpec

# Bytes a port that `auto` gives beside headroom: an RTSW's buffer is shallow, other switches' are deep.
SHALLOW: Final = 150_000
DEEP: Final = 1_000_000


def check(spec: FabricSpec) -> None:
    """What queues and the rest of the file say to each other; ValueError by `at`."""
    queues, frame = spec.queues, spec.link.mtu + HEADER
    rates = [spec.link.host, spec.link.fabric, *spec.link.exceptions.values(), *([spec.top_rate] if spec.atsw else [])]
    if queues.buffer.host < 2 * frame:
        why = f"is below two frames of {frame} bytes"
        raise at("queues.buffer.host", why, "try 1MB", given=["link.mtu", "queues.buffer"])
    buffer = queues.buffer
    if not spec.atsw and buffer.atsw not in ("auto", buffer.rtsw):  # one size for all switches is no mistake
        raise at(
            "queues.buffer.atsw", "has no effect without a third tier", "leave it out, or say atsw", given=["atsw"]
        )
    if queues.pfc.enabled and queues.lossless:
        _check_pfc(spec, frame, min(rates))
    for tier, ports in _ports(spec).items():
        _check_buffer(spec, tier, ports)


def _check_pfc(spec: FabricSpec, frame: int, slowest: int) -> None:
    pfc = spec.queues.pfc
    if spec.link.mtu > LARGEST_PFC_MTU:
        why = f"is above {LARGEST_PFC_MTU}, the most that a closed gate holds back"
        hint = f"try {LARGEST_PFC_MTU}, or queues.pfc.enabled: false"
        raise at("link.mtu", why, hint, given=["queues.pfc.enabled", "queues.lossless"])
    if pfc.xoff < frame:
        why = f"is below a frame of {frame} bytes: each would pause its sender"
        raise at("queues.pfc.xoff", why, f"try {round_up(4 * frame)}", given=["link.mtu", "queues.pfc.xon"])
    if pfc.headroom != "auto" and pfc.headroom < frame:
        why = f"is below a frame of {frame} bytes: what would pass Xoff is dropped, and so its sender is never paused"
        raise at("queues.pfc.headroom", why, f"try auto, or {round_up(2 * frame)}", given=["link.mtu"])
    lasts = pfc.quanta_at(slowest) * QUANTUM_BITS * 10**9 // slowest
    if pfc.watchdog.enabled and lasts >= pfc.watchdog.detect:
        detect = format_duration(pfc.watchdog.detect)
        last = f"last {lasts / 10**6:g} ms at the slowest link, {format_rate(slowest)}: {QUANTUM_BITS} bits each"
        why = f"{last}; the watchdog takes a pause of {detect} for a storm"
        fit = pfc.watchdog.detect * slowest // (4 * QUANTUM_BITS * 10**9)
        longer = format_duration(-(-2 * lasts // 10**8) * 10**8)
        hint = f"try {max(1, fit)}, auto, or watchdog.detect: {longer}"
        given = ["queues.pfc.watchdog.detect", "link.host", "link.fabric", "link.exceptions", "oversubscription"]
        raise at("queues.pfc.quanta", why, hint, given=given)


def _ports(spec: FabricSpec) -> Mapping[str, list[int]]:
    """Tier -> the rates of one switch's ports, bit/s, links with a rate of their own aside."""
    nics, up = spec.hosts_per_rack * spec.nics_per_host, spec.atsw or 0
    rows = {
        "rtsw": [spec.link.fabric] * spec.ctsw + [spec.link.host] * nics,
        "ctsw": [spec.link.fabric] * spec.racks + [spec.top_rate] * up,
        "atsw": [spec.top_rate] * (spec.zones * spec.ctsw if up else 0),
    }
    return {tier: rates for tier, rates in rows.items() if rates}


@dataclass(frozen=True, slots=True)
class Budget:
    """How one switch's buffer is laid out, in bytes: buffer = headroom + reserved + shared."""

    buffer: int
    headroom: int
    reserved: int

    @property
    def shared(self) -> int:
        """What all classes of all ports share; below 0 where the buffer is too small."""
        return self.buffer - self.headroom - self.reserved


def buffer_bytes(queues: QueuesSpec, tier: str, ports: list[tuple[int, int]]) -> Budget:
    """The layout of a switch of a tier (`rtsw`) with these ports: (rate in bit/s, mtu) each."""
    pauses = len(queues.lossless) if queues.pfc.enabled else 0
    headroom = pauses * sum(queues.pfc.headroom_bytes(rate, mtu) for rate, mtu in ports)
    reserved = len(ports) * len(queues.numbers) * queues.reserve
    given = getattr(queues.buffer, tier)
    a_port = SHALLOW if tier == "rtsw" else DEEP
    total = headroom + len(ports) * a_port if given == "auto" else given
    return Budget(buffer=total, headroom=headroom, reserved=reserved)


def _check_buffer(spec: FabricSpec, tier: str, rates: list[int]) -> None:
    queues, mtu = spec.queues, spec.link.mtu
    found = buffer_bytes(queues, tier, [(rate, mtu) for rate in rates])
    if found.shared >= mtu + HEADER:
        return
    given = ["link.mtu", "link.host", "link.fabric", "racks", "ctsw", "atsw", "hosts_per_rack", "nics_per_host"]
    given += ["zones", "queues.lossless", "queues.weights", "queues.reserve", "queues.pfc"]
    if getattr(queues.buffer, tier) == "auto":
        each = f"x {len(queues.numbers)} classes x {len(rates)} ports of {tier}"
        left = found.buffer - found.headroom
        why = (
            f"{each} = {found.reserved} bytes leaves less than a frame of {mtu + HEADER} of the {left} that auto gives"
        )
        fit = round_down(left // 2 // len(queues.numbers) // len(rates))
        raise at("queues.reserve", why, f"try {fit}, or name a queues.buffer", given=[*given, f"queues.buffer.{tier}"])
    raise at(_path(queues.buffer, tier), *too_small(queues, tier, len(rates), found, mtu), given=given)


def _path(buffer: BufferSpec, tier: str) -> str:
    same = len({buffer.rtsw, buffer.ctsw, buffer.atsw}) == 1
    return "queues.buffer" if same else f"queues.buffer.{tier}"


def too_small(queues: QueuesSpec, name: str, ports: int, found: Budget, mtu: int) -> tuple[str, str]:
    """Why a switch's buffer does not do, and a hint. name: of the switch, or its tier."""
    frame = mtu + HEADER
    parts = [f"reserve {shown(queues.reserve)} x {len(queues.numbers)} classes x {ports} ports"]
    if found.headroom:
        pauses = "" if len(queues.lossless) == 1 else f" x {len(queues.lossless)} lossless classes"
        each = found.headroom // ports // len(queues.lossless)
        parts.insert(0, f"headroom {shown(each)}{pauses} x {ports} ports of {name}")
    need = found.headroom + found.reserved + frame
    why = f"is below {need} bytes: {' + '.join(parts)} + a frame of {frame}"
    smaller = "a smaller queues.reserve" if not found.headroom else "queues.pfc.enabled: false, or a smaller reserve"
    return why, f"try {round_up(need + len(queues.numbers) * frame * ports)}, {smaller}"
