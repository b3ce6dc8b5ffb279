"""`./inv capture --read FILE`: the first packets as lines, then what the whole capture adds up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from heddle.base.files import real, result_name
from heddle.base.problems import InputError, Problem, Problems
from heddle.base.tables import table
from heddle.cli.capture_live import frame_json, packet_line
from heddle.cli.console import Console
from heddle.wire.dissect import ROCE_V1, UNREAD, Dissected, dissect
from heddle_plugins.packets.capturefile import CaptureFile, open_capture
from heddle_plugins.packets.conversations import CaptureTotals, PsnOrder, QpConversation

_MOST_TUNNELS: Final = 10
LINES: Final = 10  # packets that are printed where no count is given
_ROWS, _ALL_ROWS = 16, 64  # conversations that the text shows of a port, and of all; the JSON has all
_MOST_LINES: Final = 100_000
_UNREAD: Final = Dissected("other", "?", "?", "of a link type that Heddle does not read")
_ICRC_WORDS: Final = {
    "right": "right",
    "wrong": "WRONG",
    "zero": "zero (captured before a NIC wrote them)",
    "cut": "cut off by the capture, so not checked",
    "unchecked": "of fragments or packets with IP options, so not checked",
}


def _check_alone(typed: Mapping[str, Any]) -> None:
    problems = Problems()
    for word, value in typed.items():
        if value:
            hint = "leave it out: a file is read completely"
            problems.add(
                where="", what=word, why="is for captures in a running lab, and --read reads a file", hint=hint
            )
    problems.raise_if_any()


def read_capture(out: Console, file: str, count: int | None, beside: Mapping[str, Any]) -> None:
    """Dissect a file. Exit code 2 when the file is damaged: what is before the damage is printed.

    beside: other words of the line and their values; InputError for those with a value, which are about a running lab.
    """
    _check_alone(beside)
    lines = LINES if count is None else count
    if not 0 < lines <= _MOST_LINES:
        hint = f"from 1 to {_MOST_LINES}"
        raise InputError(Problem("", f"--count {lines}", "is no number of packets to print", hint))
    opened = open_capture(real(file), file)
    totals = CaptureTotals()
    frames: list[dict[str, Any]] = []
    for packet in opened.packets():
        what = dissect(packet.data, packet.wire_bytes) if packet.data is not None else _UNREAD
        totals.add(packet, what)
        if packet.number <= lines:
            seconds = (packet.time_ns - totals.first_ns) / 1e9
            direction = {True: "out", False: "in", None: ""}[packet.outgoing]
            if out.json:
                frames.append(frame_json(packet.port, seconds, direction, packet.wire_bytes, what))
            else:
                out.show(packet_line(seconds, packet.port, direction, what))
    out.result(_json(file, opened, totals, frames), "\n".join(_text(file, opened, totals, lines)))
    if opened.damage:
        hint = "copy the file again, or end the capture that writes it"
        problem = Problem("", f"--read {file}", f"is damaged: {opened.damage}", hint)
        out.fail(problem, code=InputError.exit_code)


def _json(file: str, opened: CaptureFile, totals: CaptureTotals, frames: list[dict[str, Any]]) -> dict[str, Any]:
    others = [kind for kind in totals.kinds if not _is_rocev2(kind)]
    return {
        "file": result_name(file),
        "format": opened.format,
        "compressed": opened.compressed,
        "damage": opened.damage,
        "ports": [each.name for each in opened.interfaces],
        "packets": totals.packets,
        "bytes": totals.wire_bytes,
        "seconds": totals.seconds,
        "kinds": [
            {"kind": kind, "packets": count, "bytes": totals.kind_bytes[kind]}
            for kind, count in totals.kinds.most_common()
        ],
        "tunnels": dict(totals.tunnels.most_common()),
        "opcodes": dict(totals.opcodes.most_common()),
        "ecn": dict(totals.ecn),
        "dscp": dict(totals.dscps),
        "pcp": dict(totals.pcps),
        "copies": totals.copies,
        "cut_before_bth": totals.cut,
        "icrc": {**{word: totals.icrc[word] for word in _ICRC_WORDS}, "wrong_packets": totals.wrong},
        "qps": [each.to_json() for each in _ordered(totals)],
        "packets_of_more_qps": totals.uncounted,
        "pauses": [each.to_json() for each in totals.pauses.values()],
        "not_rocev2": {kind: totals.kinds[kind] for kind in others},
        "frames": frames,
    }


def _is_rocev2(kind: str) -> bool:
    return kind.startswith("RoCE") and kind != ROCE_V1


def _ordered(totals: CaptureTotals) -> list[QpConversation]:
    """Ports in the order in which they were first seen; of each, most packets first."""
    ports = {port: number for number, port in enumerate(dict.fromkeys(port for port, *_ in totals.qps))}
    return sorted(totals.qps.values(), key=lambda each: (ports[each.port], -each.packets))


def _text(file: str, opened: CaptureFile, totals: CaptureTotals, lines: int) -> list[str]:
    left = totals.packets - lines
    parts = [f"... {left:,} more packets; --count N prints more"] if left > 0 else []
    kinds = [(kind, f"{count:,}", f"{totals.kind_bytes[kind]:,}") for kind, count in totals.kinds.most_common()]
    parts += ["", table(("kind", "packets", "bytes"), kinds)] if kinds else []
    if totals.roce:
        parts += ["", *_roce_lines(totals), "", *_qp_lines(_ordered(totals))]
    parts += _pause_lines(totals)
    parts += ["", *_other_lines(totals)]
    size = f"{totals.packets:,} packets, {totals.wire_bytes:,} bytes in {totals.seconds:.3f} s"
    kind = f"{opened.format}{', gzip' if opened.compressed else ''}"
    ports = [name for name in dict.fromkeys(each.name for each in opened.interfaces) if name]
    where = f" at {', '.join(ports)}" if 0 < len(ports) <= 4 else f" at {len(ports)} ports" if ports else ""
    return [*parts, f"{file}: {kind}; {size}{where}"]


def _roce_lines(totals: CaptureTotals) -> list[str]:
    """ICRCs, opcodes and ECN of all RoCEv2 packets."""
    icrcs = [f"{totals.icrc[word]:,} {text}" for word, text in _ICRC_WORDS.items() if totals.icrc[word]]
    if totals.wrong:
        more = ", ..." if totals.icrc["wrong"] > len(totals.wrong) else ""
        icrcs.append(f"wrong in packet {', '.join(map(str, totals.wrong))}{more}")
    sums = {"opcode": totals.opcodes, "ECN": totals.ecn, "DSCP": totals.dscps, "PCP": totals.pcps}
    rows = [
        ("ICRC", "; ".join(icrcs)),
        *((name, ", ".join(f"{value} {count:,}" for value, count in sums[name].most_common())) for name in sums),
    ]
    if totals.copies:
        rows.append(("copies", f"{totals.copies:,} packets captured twice: a mirror of both directions, or a bond"))
    return table(("RoCEv2", f"{totals.roce:,} packets"), rows).splitlines()


def _psns(order: PsnOrder) -> str:
    return "" if order.first is None else f"{order.first}..{order.last}"


def _answers(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counts.items())


def _parts(counts: Counter[str]) -> str:
    """`26`, or `26 2, 0 1` where packets differ."""
    return ", ".join(f"{value} {count:,}" if len(counts) > 1 else value for value, count in counts.most_common())


# The columns of a conversation; one that is empty in every row is left out.
_COLUMNS: Final[Mapping[str, Callable[[QpConversation], str]]] = {
    "port": lambda qp: qp.port,
    "from": lambda qp: qp.src,
    "to": lambda qp: qp.dst,
    "QP": lambda qp: str(qp.qpn),
    "packets": lambda qp: f"{qp.packets:,}",
    "bytes": lambda qp: f"{qp.bytes:,}",
    "PSNs": lambda qp: _psns(qp.order),
    "READ PSNs": lambda qp: _psns(qp.order_of_responses),
    "missing": lambda qp: _count(qp.order.missing + qp.order_of_responses.missing),
    "late": lambda qp: _count(qp.order.late + qp.order_of_responses.late),
    "repeated": lambda qp: _count(qp.order.repeated + qp.order_of_responses.repeated),
    "reconnects": lambda qp: _count(qp.order.restarts + qp.order_of_responses.restarts),
    "copies": lambda qp: _count(qp.copies),
    "DSCP": lambda qp: _parts(qp.dscps),
    "PCP": lambda qp: _parts(qp.pcps),
    "CE": lambda qp: _count(qp.ce),
    "ACKs": lambda qp: _count(qp.acks),
    "NAKs": lambda qp: _answers(qp.naks),
    "reserved": lambda qp: _answers(qp.reserved),
    "RNR": lambda qp: _count(qp.rnrs),
    "CNPs": lambda qp: _count(qp.cnps),
    "bad ICRC": lambda qp: _count(qp.icrc_wrong),
}  # fmt: skip
_MEANINGS: Final = {
    "missing": "PSNs that did not pass here",
    "late": "PSNs that passed after a higher one",
    "repeated": "PSNs that had passed before (retransmissions)",
    "reconnects": "jumps of the PSNs by more than 4,096: likely a new connection with the same QP number",
    "copies": "packets captured twice, and sent once (the same IP ID and ICRC)",
    "reserved": "answers with a reserved syndrome",
}


def _count(number: int) -> str:
    return f"{number:,}" if number else ""


def _qp_lines(qps: Sequence[QpConversation]) -> list[str]:
    """A row for each direction of a queue pair, and what the columns mean that are there."""
    shown = [qp for _, group in groupby(qps, key=lambda qp: qp.port) for qp in list(group)[:_ROWS]][:_ALL_ROWS]
    rows = [[cell(qp) for cell in _COLUMNS.values()] for qp in shown]
    names = [name for name, column in zip(_COLUMNS, zip(*rows, strict=True), strict=True) if any(column)]
    cells = [[cell or "-" for name, cell in zip(_COLUMNS, row, strict=True) if name in names] for row in rows]
    lines = [table(names, cells)]
    if len(shown) < len(qps):
        lines.append(f"{len(shown):,} of {len(qps):,} queue pairs are shown; --format json has all")
    meanings = [f"{name}: {text}" for name, text in _MEANINGS.items() if name in names]
    return [*lines, *(["; ".join(meanings)] if meanings else [])]


def _pause_lines(totals: CaptureTotals) -> list[str]:
    """Pause frames by sender and class; nothing where there are none."""
    rows = [
        (each.port or "-", each.src, each.traffic_class, f"{each.pauses:,}", f"{each.resumes:,}", f"{each.longest:,}")
        for each in totals.pauses.values()
    ]
    return ["", table(("port", "pauses from", "class", "pauses", "resumes", "longest (quanta)"), rows)] if rows else []


def _other_lines(totals: CaptureTotals) -> list[str]:
    lines = [f"in {name}: {count:,} packets" for name, count in totals.tunnels.most_common(_MOST_TUNNELS)]
    if totals.cut:
        said = "port 4791, cut before the BTH, so without a queue pair"
        lines.append(f"{said}: {totals.cut:,} packets; capture at least 128 bytes of each (tcpdump -s 128)")
    if totals.uncounted:
        lines.append(f"of more queue pairs than are counted one by one: {totals.uncounted:,} packets")
    others = {kind: count for kind, count in totals.kinds.most_common() if not _is_rocev2(kind)}
    if not others:
        return [*lines, "every packet is RoCEv2" if totals.packets else "no packets"]
    lines += [f"not RoCEv2: {sum(others.values()):,} of {totals.packets:,} packets ({', '.join(others)})"]
    if ROCE_V1 in others:
        lines.append("RoCE v1 (Ethernet type 0x8915) has no IP header, so it is neither routed nor marked")
    sealed = [kind for kind in others if kind in UNREAD.values()]
    if sealed:
        lines.append(f"{', '.join(sealed)} may carry RoCEv2: Heddle does not read what is inside")
    if totals.unread:
        lines.append(f"packets of a link type that Heddle does not read: {totals.unread:,}")
    return lines
