"""The verb `craft`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from heddle.base.problems import InputError, Problem
from heddle.base.tables import many, table
from heddle.cli import completion
from heddle.cli.argv import Option, Options, group
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.proof.verdict import FlowProof, PathsResult
    from heddle_plugins.packets.craft import Crafted, HandPacket


_LINES: Final = 16  # packets of each kind that are printed
_NUMBER: Final = "N"
_HELP: Final[Options] = {
    "src": Option("the sending host, or its port (host1:eth2)", completion.nics),
    "dst": Option("the receiving host, or its port", completion.nics),
    "list": "list all opcodes and fields, and send nothing",
    **group(
        "Packet",
        {
            "opcode": Option(
                "name or number (0x0a); several with commas are sent in turn; otherwise RC_RDMA_WRITE_ONLY",
                "heddle_plugins.packets.verbs:opcodes", value="NAME",
            ),
            "qpn": Option("destination QP number; otherwise 0x100", value=_NUMBER),
            "psn": Option("PSN of the first packet; the others follow; otherwise 0", value=_NUMBER),
            "rkey": Option("remote key of a WRITE, READ or atomic; otherwise 0x1234", value=_NUMBER),
            "va": Option("remote address of a WRITE, READ or atomic; otherwise 0x10000", value=_NUMBER),
            "length": Option("bytes of the message, in the RETH; otherwise the sum of its packets", value=_NUMBER),
            "payload": Option(
                "a text, or bytes as 0x0102; otherwise 32 bytes, and one MTU in FIRST and MIDDLE", value="BYTES"
            ),
            "imm": Option("immediate data; otherwise 0", value=_NUMBER),
            "ecn": Option(
                "not-ect, ect0, ect1 or ce; otherwise ect0, and not-ect in answers", ("not-ect", "ect0", "ect1", "ce")
            ),
            "dscp": Option("0 to 63; otherwise 24, and 48 in answers", value=_NUMBER),
            "sport": Option("UDP source port; otherwise 49152", value=_NUMBER),
            "ttl": Option("TTL, or hop limit of IPv6; otherwise 64", value=_NUMBER),
            "icrc": Option("right, wrong, or a number of 32 bits", ("right", "wrong"), value="ICRC"),
            "set": Option("any field by scapy's name: BTH.pkey=0x8001; can be repeated", value="FIELD=VALUE"),
            "count": "send the packet, or the turn of packets, so many times: 1000 packets at most",
        },
    ),
    "wait": Option("seconds without an answer after which the command ends: up to 60", value="SECONDS"),
    "no_responder": "start no responder at the other host",
    "fields": "print every field of every packet",
}  # fmt: skip


def opcodes() -> list[str]:
    """The names of all opcodes, for completion."""
    from heddle.wire.layout import OPCODE_NAMES

    return list(OPCODE_NAMES.values())


@verb(
    group="Traffic",
    help=_HELP,
    positional=["src", "dst"],
    root=lambda typed: not typed["list_"],
)
def craft(
    out: Console,
    src: str | None = None,
    dst: str | None = None,
    opcode: str | None = None,
    qpn: str | None = None,
    psn: str | None = None,
    rkey: str | None = None,
    va: str | None = None,
    length: str | None = None,
    payload: str | None = None,
    imm: str | None = None,
    ecn: str | None = None,
    dscp: str | None = None,
    sport: str | None = None,
    ttl: str | None = None,
    icrc: str = "right",
    set_: Sequence[str] = (),
    count: int = 1,
    wait: float = 1.0,
    no_responder: bool = False,
    fields: bool = False,
    list_: bool = False,
    lab: str | None = None,
) -> None:
    """Send RoCEv2 packets made by hand, and show the answers and the path.

    ./inv craft host1 host3 sends a right RDMA WRITE. ./inv craft host1 host3 --icrc wrong sends it with a wrong ICRC.
    At the other host a responder answers for the time of the command. It has queue pair 0x100, expects PSN 0, and has
    64 KiB of memory at 0x10000 with key 0x1234. These are the defaults of the packets.
    The exit code is 0 whether there is an answer or not. docs/craft.md explains what each kind of packet causes.
    """
    if list_:
        return _list(out)
    if src is None or dst is None:
        hint = "name two hosts: ./inv craft host1 host3; --list lists opcodes and fields"
        raise InputError(Problem("", "craft", "needs a source and a destination", hint))
    from heddle_plugins.packets.craft import craft as send

    done = send(
        lab, src, dst, opcode=opcode, qpn=qpn, psn=psn, rkey=rkey, va=va, length=length, payload=payload, imm=imm,
        ecn=ecn, dscp=dscp, sport=sport, ttl=ttl, icrc=icrc, set=set_, count=count, wait=wait,
        responder=not no_responder,
    )  # fmt: skip
    return out.result(done.to_json(), crafted_text(done, wait, fields=fields))


def _list(out: Console) -> None:
    from heddle.wire import layout as wire
    from heddle_plugins.packets.crafted import field_rows

    names = [(opcode, name, wire.EXTENSIONS[opcode], opcode not in wire.HEADERS_ONLY)
             for opcode, name in wire.OPCODE_NAMES.items()]  # fmt: skip
    document = {
        "opcodes": [{"opcode": o, "name": n, "headers": list(h), "payload": p} for o, n, h, p in names],
        "fields": [dict(zip(("field", "width", "option"), row, strict=True)) for row in field_rows()],
    }
    shown = [(f"{o:#04x}", n, " ".join(h), "payload" if p else "") for o, n, h, p in names]
    text = table(("", "opcode", "headers behind the BTH", ""), shown)
    fields = table(("--set FIELD=VALUE", "width", "or"), field_rows())
    out.result(document, f"{text}\n\n{fields}")


def crafted_text(done: Crafted, wait_s: float, *, fields: bool = False) -> str:
    """Packets, one line each; what the responder saw; the paths. fields: also every field of every packet."""
    lines = _packets(done.src, "out", done.sent, "ICRC {0.icrc}", fields=fields)
    lines += _packets(done.dst, "in", done.arrived, "TTL {0.ttl}  ICRC {0.icrc}", fields=fields)
    lines += _packets(done.src, "in", done.answers, "ICRC {0.icrc}", fields=fields)
    if not done.answers:
        lines.append(f"no answer within {wait_s:g} s")
    lines += ["", *_responder(done)]
    if done.proof is None:
        return "\n".join([*lines, "path: not known, since switches count RoCEv2 packets only"])
    names = ("path", "answers")
    for name, proof in zip(names, done.proof.flows, strict=False):
        lines += _path(name, proof, done.proof)
    return "\n".join(lines)


def _packets(port: str, way: str, packets: Sequence[HandPacket], notes: str, *, fields: bool) -> list[str]:
    from heddle.cli.capture_live import packet_line
    from heddle_plugins.packets.conversations import NAK_REASONS

    lines = []
    for each in packets[:_LINES]:
        said = notes.format(each) if each.what.ip_at else ""
        syndrome: Any = each.what.fields.get("syndrome") if each.what.kind == "RoCE NAK" else None
        if syndrome is not None:
            said = f"{NAK_REASONS.get(syndrome, 'reserved')}  {said}"
        lines.append(packet_line(each.at_s, port, way, each.what, said))
        lines += [f"{'':12}{line}" for line in each.fields] if fields else []
    if len(packets) > _LINES:
        lines.append(f"{'':12}and {len(packets) - _LINES:,} more; --format json has all")
    return lines


def _responder(done: Crafted) -> list[str]:
    """The counters of the responder that are not 0, and its next PSN."""
    seen = done.responder
    if seen is None:
        return ["no responder: nothing answers"]
    counts = {
        "executed": seen.executed, "duplicate": seen.duplicates, "out of order": seen.out_of_order,
        "with a wrong ICRC": seen.icrc_errors, "that no queue pair takes": seen.stray, "malformed": seen.malformed,
    }  # fmt: skip
    said = [f"{count:,} {name}" for name, count in counts.items() if count]
    said += [f"{many(seen.naks, 'NAK')} sent"] if seen.naks else []
    said += [f"{many(seen.cnps, 'CNP')} sent"] if seen.cnps else []
    said += [f"PSN {seen.expected} is next"]
    said += [f"memory written: {seen.written}"] if seen.written else []
    said += [f"SENDs of {', '.join(map(str, seen.sends))} bytes"] if seen.sends else []
    said += [f"immediates {', '.join(map(hex, seen.imms))}"] if seen.imms else []
    return [f"responder: {'; '.join(said)}"]


def _path(name: str, proof: FlowProof, result: PathsResult) -> list[str]:
    counts = " ".join(map(str, proof.counted))
    if not proof.why:
        return [f"{name}: {' '.join(proof.measured)}  ({result.source_names} agree; packets {counts})"]
    rows = [("predicted", proof.predicted or ()), ("kernels", proof.oracle), ("counted", proof.measured)]
    return [f"{name}: {proof.why}", *(f"  {word:<9}  {' '.join(path) or '-'}" for word, path in rows)]
