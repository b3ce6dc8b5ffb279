"""The tc lines of a port's queues and programs as netlink messages: a process for each batch costs more than the work.

In:  lines as portqueues.py writes them, interface indexes, open programs.
Out: one request for each line. Only what those lines have is read; ValueError for anything else.
The kernel builds the same queues as from tc's own messages (tests/netns/test_tc_messages.py).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final

from heddle.base.units import parse_rate
from heddle.kernel import netlink as nl
from heddle.kernel import uapi

CLSACT: Final = 0xFFFFFFF1  # TC_H_CLSACT
BLOCKMSG: Final = struct.Struct("=B3xIIII")  # struct tcmsg of a shared block
SHARED_BLOCK: Final = 0xFFFFFFFF  # TCM_IFINDEX_MAGIC_BLOCK: the parent is the number of a block
TCA_INGRESS_BLOCK, TCA_EGRESS_BLOCK = 13, 14
TCA_BPF_CLASSID, TCA_BPF_NAME = 3, 7
_TCA_BPF_FD, _TCA_BPF_FLAGS, _DIRECT_ACTION = 6, 8, 1
_TCA_HTB_PARMS, _TCA_HTB_INIT, _TCA_HTB_DIRECT_QLEN, _TCA_HTB_RATE64, _TCA_HTB_CEIL64 = 1, 2, 5, 6, 7
_TCA_TBF_BURST: Final = 6
_ETS_NBANDS, _ETS_NSTRICT, _ETS_QUANTA, _ETS_QUANTUM, _ETS_PRIOMAP, _ETS_BAND = 1, 2, 3, 4, 5, 6
_WIDE: Final = 1 << 32  # bytes/s from which on a rate has an attribute of its own
_TICKS_A_US: Final = 15.625  # PSCHED_SHIFT: 64 ns each
_IFINDEX: Final = 4  # its place in struct tcmsg
NEW: Final = nl.NLM_F_CREATE | nl.NLM_F_EXCL


def message(line: str, indexes: Mapping[str, int], opened: Callable[[Path], int]) -> nl.Change:
    """The request for one line. indexes: of interfaces. opened: the descriptor of a pinned program."""
    if line.startswith("filter replace "):
        return nl.RTM_NEWTFILTER, _filter(line.split(), opened), nl.NLM_F_CREATE
    kind, _, _, port, rest = line.split(maxsplit=4)
    request, body = _at_port(kind, rest)
    return request, body[:_IFINDEX] + struct.pack("=i", indexes[port]) + body[_IFINDEX + 4 :], NEW


@lru_cache(1024)
def _at_port(kind: str, rest: str) -> tuple[int, bytes]:
    """Type and body of a request, without the port: most ports have the same lines. rest: the words after it."""
    words = rest.split()
    word = _values(words)
    if kind == "class":
        head = uapi.TCMSG.pack(0, 0, _handle(word["classid"]), _handle(word["parent"]), 0)
        return nl.RTM_NEWTCLASS, head + _what("htb", _htb_class(word))
    if words[-1] == "clsact":
        head = uapi.TCMSG.pack(0, 0, CLSACT & 0xFFFF0000, CLSACT, 0) + nl.attribute(uapi.TCA_KIND, b"clsact\0")
        blocks = ((TCA_INGRESS_BLOCK, "ingress_block"), (TCA_EGRESS_BLOCK, "egress_block"))
        return nl.RTM_NEWQDISC, head + b"".join(nl.attribute(key, _u32(int(word[name]))) for key, name in blocks)
    parent = uapi.TC_H_ROOT if words[0] == "root" else _handle(word["parent"])
    start = 3 if words[0] == "root" else 4  # root handle H, or parent P handle H
    name, options = words[start], words[start + 1 :]
    head = uapi.TCMSG.pack(0, 0, _handle(word["handle"]), parent, 0)
    return nl.RTM_NEWQDISC, head + _what(name, _OPTIONS[name](options), nested=name != "bfifo")


def _filter(words: Sequence[str], opened: Callable[[Path], int]) -> bytes:
    word = _values(words[2:])
    info = int(word["pref"]) << 16 | socket.htons(3)  # ETH_P_ALL
    pin = Path(word["object-pinned"])
    options = nl.attribute(_TCA_BPF_FD, _u32(opened(pin))) + nl.attribute(TCA_BPF_NAME, pin.name.encode() + b"\0")
    options += nl.attribute(_TCA_BPF_FLAGS, _u32(_DIRECT_ACTION))
    if "classid" in word:
        options += nl.attribute(TCA_BPF_CLASSID, _u32(_handle(word["classid"])))
    head = BLOCKMSG.pack(0, SHARED_BLOCK, int(word["handle"]), int(word["block"]), info)
    return head + _what("bpf", options)


def _htb_class(word: Mapping[str, str]) -> bytes:
    """struct tc_htb_opt: two struct tc_ratespec, buffer, cbuffer, quantum, level, prio."""
    rate, ceil = (parse_rate(word[name]) // 8 for name in ("rate", "ceil"))
    times = _ticks(word["burst"], rate), _ticks(word["cburst"], ceil)
    turn = int(word.get("quantum", 0)), 0, int(word.get("prio", 0))
    parms = _rate(rate) + _rate(ceil) + struct.pack("=5I", *times, *turn)
    wide = ((_TCA_HTB_RATE64, rate), (_TCA_HTB_CEIL64, ceil))
    return nl.attribute(_TCA_HTB_PARMS, parms) + b"".join(
        nl.attribute(key, struct.pack("=Q", value)) for key, value in wide if value >= _WIDE
    )


def _htb(rest: Sequence[str]) -> bytes:
    """struct tc_htb_glob: version, rate2quantum, default class, debug, direct packets."""
    word = _values(rest)
    found = nl.attribute(_TCA_HTB_INIT, struct.pack("=5I", 3, 10, int(word["default"], 16), 0, 0))
    return found + (
        nl.attribute(_TCA_HTB_DIRECT_QLEN, _u32(int(word["direct_qlen"]))) if "direct_qlen" in word else b""
    )


def _tbf(rest: Sequence[str]) -> bytes:
    """struct tc_tbf_qopt: two struct tc_ratespec, limit, buffer, mtu."""
    word = _values(rest)
    rate, burst = parse_rate(word["rate"]) // 8, _bytes(word["burst"])
    sizes = struct.pack("=III", _bytes(word["limit"]), _ticks(word["burst"], rate), 0)
    found = nl.attribute(uapi.TCA_TBF_PARMS, _rate(rate) + bytes(uapi.TC_RATESPEC.size) + sizes)
    found += nl.attribute(_TCA_TBF_BURST, _u32(burst))
    return found + (nl.attribute(uapi.TCA_TBF_RATE64, struct.pack("=Q", rate)) if rate >= _WIDE else b"")


def _fifo(rest: Sequence[str]) -> bytes:
    return _u32(_bytes(_values(rest)["limit"]))


def _ets(rest: Sequence[str]) -> bytes:
    cut = rest.index("quanta"), rest.index("priomap")
    word = _values(rest[: cut[0]])
    quanta = b"".join(nl.attribute(_ETS_QUANTUM, _u32(int(each))) for each in rest[cut[0] + 1 : cut[1]])
    bands = b"".join(nl.attribute(_ETS_BAND, bytes([int(each)])) for each in rest[cut[1] + 1 :])
    return (
        nl.attribute(_ETS_NBANDS, bytes([int(word["bands"])]))
        + nl.attribute(_ETS_NSTRICT, bytes([int(word["strict"])]))
        + nl.attribute(nl.NESTED | _ETS_QUANTA, quanta)
        + nl.attribute(nl.NESTED | _ETS_PRIOMAP, bands)
    )


_OPTIONS: Final[Mapping[str, Callable[[Sequence[str]], bytes]]] = {
    "htb": _htb,
    "tbf": _tbf,
    "bfifo": _fifo,
    "ets": _ets,
}


def _what(kind: str, options: bytes, *, nested: bool = True) -> bytes:
    flag = nl.NESTED if nested else 0
    return nl.attribute(uapi.TCA_KIND, kind.encode() + b"\0") + nl.attribute(uapi.TCA_OPTIONS | flag, options)


def _values(words: Sequence[str]) -> dict[str, str]:
    """Each word -> the word after it."""
    return dict(pairwise(words))


def _handle(text: str) -> int:
    """`1:` and `1:10`, hexadecimal, as one number."""
    major, _, minor = text.partition(":")
    return int(major, 16) << 16 | int(minor or "0", 16)


def _bytes(text: str) -> int:
    return int(text.removesuffix("b"))


def _rate(rate: int) -> bytes:
    return uapi.TC_RATESPEC.pack(0, uapi.TC_LINKLAYER_ETHERNET, 0, 0, 0, min(rate, _WIDE - 1))


def _ticks(size: str, rate: int) -> int:
    """The time of so many bytes at this rate, as tc computes it: whole microseconds, then ticks."""
    return int(int(1e6 * _bytes(size) / rate) * _TICKS_A_US)


def _u32(value: int) -> bytes:
    return struct.pack("=I", value)
